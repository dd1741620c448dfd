"""The addresses of several processes: taken once, and kept for as long as the supervisor lives.

Processes listen with SO_REUSEPORT, and the kernel shares connections out among them. A socket that is
bound and does not listen keeps each port from being given to another program that asks for any.
"""

from __future__ import annotations

import errno
import socket

import msgspec

from quiver.config import Address, NodeConfig
from quiver.config.processes import own_port
from quiver.errors import QuiverError


class SharedPorts:
    """Use it with ``with``: ``native`` and ``http`` of all, and the ``own`` address of each."""

    def __init__(self, config: NodeConfig, count: int) -> None:
        self._held: list[socket.socket] = []
        try:
            self.native = self._taken(config.native, "--native")
            self.http = None if config.http is None else self._taken(config.http, "--http")
            self.own = [
                self._taken(
                    Address(config.native.host, own_port(config, number)), "--set process_port=PORT"
                )
                for number in range(count)
            ]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SharedPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def within(self, config: NodeConfig) -> NodeConfig:
        """The settings with the ports that were taken."""
        return msgspec.structs.replace(config, native=self.native, http=self.http)

    def close(self) -> None:
        for one in self._held:
            one.close()

    def _taken(self, address: Address, flag: str) -> Address:
        try:
            found = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            port = address.port
            for family, *_, at in dict.fromkeys(found):
                port = self._bind(family, (at[0], port, *at[2:]))
        except OSError as error:
            raise _explained(error, address, flag) from error
        return Address(address.host, port)

    def _bind(self, family: int, at: tuple[object, ...]) -> int:
        if at[1]:
            with _socket(family) as alone:
                alone.bind(at)  # refused if anybody has it, even to share it
        kept = _socket(family)
        self._held.append(kept)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(at)
        return int(kept.getsockname()[1])


def _socket(family: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made


def _explained(error: OSError, address: Address, flag: str) -> QuiverError:
    reason = {
        errno.EADDRINUSE: "the address is in use",
        errno.EADDRNOTAVAIL: "this machine has no such address",
        errno.EACCES: "permission denied",
    }.get(error.errno or 0, error.strerror or str(error))
    return QuiverError(f"cannot listen on {address}: {reason}; choose another with {flag}")
