"""Where webhooks may go. A node must not become a way into its own network.

A target's host must be on the node's list. The addresses that it resolves to for that connection must
be public, or in a network on the list.
"""

from __future__ import annotations

import fnmatch
import ipaddress
from urllib.parse import urlsplit

from quiver.errors import InvalidSetting

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


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
            is_listed = any(fnmatch.fnmatchcase(host, pattern) for pattern in self._patterns)
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
        return plain.is_global and not plain.is_multicast

    def _is_in_a_network(self, address: _IpAddress) -> bool:
        plain = _plain(address)
        return any(plain in network for network in self._networks)


def _plain(address: _IpAddress) -> _IpAddress:
    """An IPv4 address also where it is written as an IPv6 one."""
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _address(host: str) -> _IpAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
