"""Keeps pages of other sites from using a browser to reach the node.

A browser on the node's machine or network can reach it, and any page can have it send requests. A page of
another site is known by its origin, or by what the browser says of the request (``Sec-Fetch-Site``). A
page whose name was rebound to the node's address is known by the name that it asks for (``Host``), which
only counts where no token protects the node: a page has no token.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from quiver.config import NodeConfig
from quiver.errors import AccessRefused

ANY = "*"
_OWN_SITE = (b"same-origin", b"none")
_ACCEPTED_MAX = 1000
_SCHEMES = {"ws": "http", "wss": "https"}

Fields = dict[bytes, bytes]


class WebAccess:
    """``proxies`` are names that the settings list, ``hosts`` other names of the node.

    Without ``checks_host`` it answers to any.
    """

    def __init__(
        self,
        origins: Iterable[str] = (),
        proxies: Iterable[str] = (),
        hosts: Iterable[str] = (),
        *,
        checks_host: bool = False,
    ) -> None:
        self.origins: Sequence[str] = tuple(origins)
        self._proxies = frozenset(host.lower() for host in proxies)
        self._hosts = self._proxies.union(host.lower() for host in hosts)
        self._checks_host = checks_host and ANY not in self._hosts
        self._accepted: set[bytes] = set()
        """Values of ``Host`` that were found to be good."""

    def check(self, fields: Fields, scheme: str) -> None:
        """``AccessRefused`` if a page of another site may have sent the request."""
        if self._checks_host:
            self._require_own_host(fields.get(b"host"))
        if ANY in self.origins:
            return
        origin = fields.get(b"origin")
        if origin is not None:
            if self._is_own(origin, fields, scheme):
                return
            if origin.decode("latin-1") in self.origins:
                return
            raise _refused("pages of this origin may not call the node")
        if fields.get(b"sec-fetch-site", b"none") not in _OWN_SITE:
            raise _refused("pages of other sites may not call the node")

    def check_receive(self, fields: Fields) -> None:
        """``AccessRefused`` if a browser may have sent a GET that takes messages for another site.

        An image in a page is enough for that, and has no origin. Browsers that do not say for which site a
        request is are told by their name.
        """
        if ANY in self.origins or fields.get(b"sec-fetch-site") in _OWN_SITE:
            return
        is_browser = fields.get(b"user-agent", b"").startswith(b"Mozilla/")
        if is_browser and b"origin" not in fields:
            raise AccessRefused("browsers receive messages with POST to the same path's /receive")

    def _is_own(self, origin: bytes, fields: Fields, scheme: str) -> bool:
        host = fields.get(b"host", b"")
        if origin == _SCHEMES.get(scheme, scheme).encode() + b"://" + host:
            return True
        # Behind a proxy, the scheme, the port and the name may be others than the node sees.
        at = origin.partition(b"://")[2]
        return _name_of(at) in self._proxies and (at == host or b":" not in at)

    def _require_own_host(self, host: bytes | None) -> None:
        if host is None or host in self._accepted:  # browsers always send one
            return
        name = _name_of(host)
        if name not in self._hosts and not _is_safe(name):
            raise AccessRefused(
                f"the node does not answer to the name {name[:200]!r} without authentication; "
                "list it in the setting web.hosts"
            )
        if len(self._accepted) < _ACCEPTED_MAX:
            self._accepted.add(host)


def access_of(config: NodeConfig) -> WebAccess:
    """What the settings allow. With authentication a node answers to any name."""
    hosts = {_name_of(config.advertise.encode())}
    if config.http is not None:
        hosts.add(config.http.host)
    return WebAccess(
        _listed(config.web.cors_origins),
        _listed(config.web.hosts),
        hosts - {""},
        checks_host=not config.security.authentication,
    )


def _listed(text: str) -> list[str]:
    return [entry for one in text.split(",") if (entry := one.strip())]


def _name_of(host: bytes) -> str:
    """The name in ``name:port``."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_safe(name: str) -> bool:
    """Whether nobody can have a name of their own lead here: it is an address, or this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refused(what: str) -> AccessRefused:
    return AccessRefused(f"{what}; allow its origin with the setting web.cors_origins")
