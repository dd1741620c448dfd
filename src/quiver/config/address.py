"""Where a node listens or is reached: a host and a port, written as ``host:port``.

IPv6 addresses stand in brackets, as in a URL: ``[::1]:7401``. Port 0 asks the system for a free one.
"""

from __future__ import annotations

import re
import socket

import msgspec

from quiver.errors import InvalidSetting

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([A-Za-z0-9._-]{1,253})):(\d{1,5})")
PORT_MAX = 65_535


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address that ``text`` names; ``InvalidSetting`` if it names none."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(
            f"{text[:80]!r} is not an address; write it as '127.0.0.1:7401', '[::1]:7401' "
            "or, for all interfaces, '0.0.0.0:7401'"
        )
    port = int(match[3])
    if port > PORT_MAX:
        raise InvalidSetting(f"{text[:80]!r} is not an address: a port is at most {PORT_MAX:,}")
    return Address(match[1] or match[2], port)


def advertised(given: str, native: Address) -> str:
    """Where other nodes and clients reach this one."""
    host, _, port = given.rpartition(":")
    if not given:
        is_unspecified = native.host in ("0.0.0.0", "::", "")  # noqa: S104 - it is asked about, not bound
        return str(Address(socket.gethostname() if is_unspecified else native.host, native.port))
    return given if host and port.isdigit() else str(Address(given, native.port))
