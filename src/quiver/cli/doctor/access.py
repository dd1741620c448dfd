"""Checks of authentication, TLS and the permissions of secret files."""

from __future__ import annotations

import os
import stat

from quiver.cli.doctor.finding import Finding, failure, ok, warning
from quiver.config import NodeConfig
from quiver.config.exposure import exposed

_PAGE = "see docs/howto/secure.md"


def authentication(config: NodeConfig) -> Finding:
    """Without authentication, everybody who can connect may do everything."""
    security, open_to_all = config.security, exposed(config)
    if security.authentication:
        return ok("authentication", "on: clients need a token or a certificate")
    if not open_to_all:
        return warning(
            "authentication",
            "off: everybody on this machine may do everything",
            f"set security.authentication = true; {_PAGE}",
        )
    where = ", ".join(open_to_all)
    if security.insecure:
        return warning(
            "authentication",
            f"off, and other machines can connect ({where}): everybody there may do everything",
            f"set security.authentication = true and remove security.insecure; {_PAGE}",
        )
    return failure(
        "authentication",
        f"off, and other machines could connect ({where}): the node does not start like this",
        f"set security.authentication = true; {_PAGE}",
    )


def encryption(config: NodeConfig) -> Finding:
    """Without TLS, anybody on the network path can read everything, tokens included."""
    security = config.security
    if security.tls_certificate:
        clients = "; clients need certificates" if security.tls_client_required else ""
        return ok("encryption", f"TLS is on{clients}")
    if not exposed(config):
        return ok("encryption", "off, but only this machine can connect")
    return warning(
        "encryption",
        "off: tokens and messages can be read on the network",
        f"set security.tls_certificate and security.tls_key; {_PAGE}",
    )


def stored_secrets(config: NodeConfig) -> Finding:
    """Without a key file, whoever reads the metadata can forge receipts, and in a cluster be a node."""
    if config.security.key_file:
        return ok("secrets", "the metadata holds none that is of use without the key file")
    if config.metadata.store == "etcd":
        return warning(
            "secrets",
            "in clear in etcd: whoever reads it can act as a node",
            f"set security.key_file on all nodes; {_PAGE}",
        )
    return ok("secrets", "in clear in metadata.db; with security.key_file it holds none")


def private_files(config: NodeConfig) -> list[Finding]:
    """Only the node's own user should be able to read files with secrets."""
    files = [
        ("key file", config.security.tls_key),
        ("token file", os.path.join(config.data, "admin.token")),
        ("metadata", os.path.join(config.data, "metadata.db")),
    ]
    return [_private(check, path) for check, path in files if path and os.path.exists(path)]


def _private(check: str, path: str) -> Finding:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if check == "metadata":
        folder = stat.S_IMODE(os.stat(os.path.dirname(path) or ".").st_mode)
        mode &= folder  # nobody else can reach a file in a private folder
    others = mode & 0o077 if check != "metadata" else mode & 0o007
    if not others:
        return ok(check, f"{path} is private")
    target = os.path.dirname(path) or "." if check == "metadata" else path
    allowed = "700" if check == "metadata" else "600"
    return warning(check, f"{path} can be read by others", f"chmod {allowed} {target}")
