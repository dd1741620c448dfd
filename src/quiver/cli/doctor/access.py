"""Who is let in, and who else could read what they say."""

from __future__ import annotations

import os
import stat

from quiver.cli.doctor.finding import Finding, failure, ok, warning
from quiver.config import NodeConfig
from quiver.config.exposure import exposed

_PAGE = "see docs/howto/secure.md"


def authentication(config: NodeConfig) -> Finding:
    """Without it everybody who can connect may do everything."""
    security, open_to_all = config.security, exposed(config)
    if security.authentication:
        return ok("authentication", "clients must show a token or a certificate")
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
            f"set security.authentication = true and take security.insecure away; {_PAGE}",
        )
    return failure(
        "authentication",
        f"off, and other machines could connect ({where}): a node refuses to start like this",
        f"set security.authentication = true; {_PAGE}",
    )


def encryption(config: NodeConfig) -> Finding:
    """Without TLS whoever sits in between reads everything, tokens included."""
    security = config.security
    if security.tls_certificate:
        clients = "; clients have certificates" if security.tls_client_required else ""
        return ok("encryption", f"TLS is on{clients}")
    if not exposed(config):
        return ok("encryption", "no TLS; nothing leaves this machine")
    return warning(
        "encryption",
        "no TLS: tokens and messages can be read on their way",
        f"set security.tls_certificate and security.tls_key; {_PAGE}",
    )


def private_files(config: NodeConfig) -> list[Finding]:
    """Files with a secret in them are for the node's own user."""
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
        mode &= folder  # a file nobody else can get at is theirs alone
    others = mode & 0o077 if check != "metadata" else mode & 0o007
    if not others:
        return ok(check, f"{path} is private")
    target = os.path.dirname(path) or "." if check == "metadata" else path
    allowed = "700" if check == "metadata" else "600"
    return warning(check, f"{path} can be read by others", f"chmod {allowed} {target}")
