"""Certificates for tests: an authority of their own, and files as an operator has them."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

from quiver.client import Tls
from quiver.config import Security


class Authority:
    """Signs certificates, and keeps them in a folder. ``trustme`` names each in its alternatives."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.file = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, who: str, *names: str) -> tuple[str, str]:
        """The files of a new certificate and its key; those of the same ``who`` are replaced."""
        issued = self._ca.issue_cert(*names, common_name=who)
        certificate, key = self._folder / f"{who}.pem", self._folder / f"{who}.key"
        key.write_bytes(issued.private_key_pem.bytes())
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return str(certificate), str(key)

    def node(self, **rest: object) -> Security:
        """The settings of a node with a certificate for the loopback interface."""
        certificate, key = self.issue("node", "127.0.0.1")
        return Security(tls_certificate=certificate, tls_key=key, **rest)  # type: ignore[arg-type]

    def trusting(self, who: str | None = None, *names: str) -> Tls:
        """A client that trusts this authority; with a certificate of its own if it has a name."""
        if who is None:
            return Tls(ca=self.file)
        certificate, key = self.issue(who, *names)
        return Tls(ca=self.file, certificate=certificate, key=key)

    def context(self) -> ssl.SSLContext:
        return self.trusting().context()
