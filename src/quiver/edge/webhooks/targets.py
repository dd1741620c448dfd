"""Where webhooks may go. A node must not become a way into its own network.

A target's host must be on the node's list. The addresses that it resolves to for that connection must
be public, or in a network on the list.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from urllib.parse import urlsplit

from quiver.errors import InvalidSetting

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"({_LABEL}\.)*{_LABEL}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""No name ends in a number: resolvers read such a host as an IPv4 address, in forms of their own."""
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All IPv6 addresses of the Internet. Site-local and IPv4-compatible ones, for example, are others."""
_EMBEDDING = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("::/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
)
"""IPv6 networks that lead to an IPv4 address, and how many bits follow it: IPv4-mapped, NAT64,
IPv4-compatible and 6to4."""


class Targets:
    """The list, as ``web.webhook_targets`` has it: host patterns and networks."""

    def __init__(self, text: str) -> None:
        self._patterns: list[str] = []
        self._networks: list[_Network] = []
        for entry in filter(None, (part.strip().lower() for part in text.split(","))):
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                self._patterns.append(entry)

    def require(self, url: str) -> None:
        """Refuse a URL whose host is not on the list."""
        try:
            host = (urlsplit(url).hostname or "").lower()
        except ValueError:
            raise InvalidSetting(
                f"push.url must be a URL such as 'https://hooks.example.com/quiver', not {url[:200]!r}",
                setting="push.url",
            ) from None
        address = _address(host)
        if address is not None:
            is_listed = self._is_in_a_network(address)
        else:
            is_listed = _is_name(host) and any(
                fnmatch.fnmatchcase(host, pattern) for pattern in self._patterns
            )
        if not is_listed:
            raise InvalidSetting(
                f"web.webhook_targets does not allow webhooks to {host[:200]!r}",
                setting="push.url",
            )

    def may_reach(self, text: str) -> bool:
        """Whether a host on the list may be at this address."""
        address = _address(text.partition("%")[0])
        if address is None:
            return False
        if self._is_in_a_network(address):
            return True
        plain = _plain(address)
        if isinstance(plain, ipaddress.IPv6Address) and plain not in _GLOBAL_UNICAST:
            return False
        return plain.is_global and not plain.is_multicast

    def _is_in_a_network(self, address: _IpAddress) -> bool:
        forms = {address, _plain(address)}
        return any(form in network for network in self._networks for form in forms)


def _plain(address: _IpAddress) -> _IpAddress:
    """The IPv4 address that an IPv6 address leads to, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        for network, after in _EMBEDDING:
            if address in network:
                return ipaddress.IPv4Address(int(address) >> after & 0xFFFF_FFFF)
    return address


def _is_name(host: str) -> bool:
    """Whether it is a name, and no address in a form that only resolvers understand."""
    host = host.removesuffix(".")
    is_number = _NUMBER.fullmatch(host.rpartition(".")[2]) is not None
    return not is_number and len(host) <= 253 and _NAME.fullmatch(host) is not None


def _address(host: str) -> _IpAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
