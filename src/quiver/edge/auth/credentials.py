"""The credentials that a caller presents, whatever the transport."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from typing import Any

import msgspec


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    token: str | None = None
    certificate: dict[str, Any] | None = None
    """A client certificate that TLS has verified, as ``SSLSocket.getpeercert`` describes it."""
    is_native: bool = False
    """Whether they came over the native protocol."""
    address: str = ""
    """From where, for the audit log and the bound on wrong tokens."""

    def __repr__(self) -> str:
        return f"Credentials(address={self.address!r})"


def names_host(certificate: dict[str, Any], hosts: Collection[str]) -> bool:
    """Whether a certificate is for one of these hosts, as a client would judge its server by it."""
    names = certificate.get("subjectAltName", ())
    return any(_is_for(kind, name, host.lower()) for kind, name in names for host in hosts)


def _is_for(kind: str, name: str, host: str) -> bool:
    if kind == "IP Address":
        try:
            return ip_address(name) == ip_address(host)
        except ValueError:
            return False
    first, _, rest = host.partition(".")
    name = name.lower()
    return kind == "DNS" and (name == host or (bool(first and rest) and name == f"*.{rest}"))


def certificate_names(certificate: dict[str, Any]) -> list[str]:
    """The names a certificate stands for: its alternative names, or without one its common name.

    A common name beside them counts for nothing: authorities do not check it as they check those.
    """
    names = [
        value
        for kind, value in certificate.get("subjectAltName", ())
        if kind in ("URI", "DNS", "email")
    ]
    if not names:
        for relative in certificate.get("subject", ()):
            names += [value for kind, value in relative if kind == "commonName"]
    return list(dict.fromkeys(names))
