"""The credentials that a caller presents, whatever the transport."""

from __future__ import annotations

from typing import Any

import msgspec


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    token: str | None = None
    certificate: dict[str, Any] | None = None
    """A client certificate that TLS has verified, as ``SSLSocket.getpeercert`` describes it."""
    address: str = ""
    """From where, for the audit log and the bound on wrong tokens."""

    def __repr__(self) -> str:
        return f"Credentials(address={self.address!r})"


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
