"""The nodes in a URL such as ``quiver://host:port,host2:port2``.

One reachable node is enough to find the others. ``quivers://`` uses TLS. A host is a name, an IPv4
address, or an IPv6 address in brackets. The default port is 7401.
"""

from __future__ import annotations

import re

from quiver.errors import InvalidSetting

SCHEME = "quiver://"
SECURE_SCHEME = "quivers://"
DEFAULT_PORT = 7401
DEFAULT_URL = f"{SCHEME}127.0.0.1:{DEFAULT_PORT}"
_NODE = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[A-Za-z0-9._-]{1,253})(?::(\d{1,5}))?")
_PORT_MAX = 65_535


def addresses_in(url: str) -> list[str]:
    """The nodes of a URL as ``host:port``, in their order and each once."""
    if not isinstance(url, str) or not url.startswith((SCHEME, SECURE_SCHEME)):
        raise InvalidSetting(f"{url!r} is not a Quiver URL; write it as {DEFAULT_URL!r}")
    nodes = url.partition("://")[2].removesuffix("/").split(",")
    return list(dict.fromkeys(_address(node.strip(), url) for node in nodes))


def is_secure(url: str) -> bool:
    """Whether the nodes of a URL are reached over TLS."""
    return url.startswith(SECURE_SCHEME)


def _address(node: str, url: str) -> str:
    match = _NODE.fullmatch(node)
    if match is None:
        raise InvalidSetting(
            f"{url!r} is not a Quiver URL: {node!r} is not a host or host:port "
            f"(as in {DEFAULT_URL!r})"
        )
    port = DEFAULT_PORT if match[2] is None else int(match[2])
    if not 0 < port <= _PORT_MAX:
        raise InvalidSetting(f"{url!r} is not a Quiver URL: a port is 1 to {_PORT_MAX:,}")
    return f"{match[1]}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of ``host:port``, as a socket wants them."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidSetting(
            f"{address!r} is not an address; write it as '127.0.0.1:{DEFAULT_PORT}'"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)
