"""TLS for the listeners: certificates from files, reloaded without a restart.

Each handshake uses the newest context. So a certificate, key or client CA that changes on disk applies
to the next connection; open connections stay as they are.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Any

import structlog

from quiver.config import Security
from quiver.errors import InvalidSetting
from quiver.model.clock import Clock

_LOOK_S = 2.0
"""How often the files are looked at."""

logger = structlog.get_logger()


class ServerTls:
    """Give ``context`` to listeners; ``watch`` follows the files until it is cancelled.

    ``asks_nodes``: also nodes are asked for their certificates. Whoever has none is let in without.
    """

    def __init__(self, security: Security, *, asks_nodes: bool = False) -> None:
        assert security.tls_certificate
        self._security = security
        authorities = (security.tls_client_ca, security.node_ca if asks_nodes else "")
        self._authorities = list(dict.fromkeys(filter(None, authorities)))
        self._stamp = self._stamps()
        self._current = self._made()
        self.context = self._made()
        self.context.sni_callback = self._choose

    def reload(self) -> bool:
        """Use the files as they are now, if they have changed; whether that was so.

        Files that do not fit together, because they are being written, change nothing: they are
        looked at again.
        """
        stamp = self._stamps()
        if stamp == self._stamp:
            return False
        try:
            self._current = self._made()
        except InvalidSetting as error:
            logger.warning("the new certificate is not used", reason=error.message)
            return False
        self._stamp = stamp
        logger.info("certificate reloaded", certificate=self._security.tls_certificate)
        return True

    async def watch(self, clock: Clock) -> None:
        while True:
            await clock.sleep(_LOOK_S)
            await asyncio.to_thread(self.reload)

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _made(self) -> ssl.SSLContext:
        security = self._security
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(security.tls_certificate, security.tls_key, _no_password)
            for authority in self._authorities:
                context.load_verify_locations(authority)
            if self._authorities:
                context.verify_mode = (
                    ssl.CERT_REQUIRED if security.tls_client_required else ssl.CERT_OPTIONAL
                )
                # A session taken up again would not be asked for its certificate anew.
                context.num_tickets = 0
                context.options |= ssl.OP_NO_TICKET
        except (OSError, ValueError) as error:
            files = (security.tls_certificate, security.tls_key, *self._authorities)
            raise InvalidSetting(
                f"TLS cannot use {', '.join(filter(None, files))}: {_reason(error)}"
            ) from error
        return context

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What tells one version of the files from the next."""
        security = self._security
        files = (security.tls_certificate, security.tls_key, *self._authorities)
        return tuple(_stamp(file) for file in files if file)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _no_password() -> str:
    """Asked for if the key is encrypted: nobody is there to type it."""
    raise ValueError("the key is encrypted; use one without a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        return str(error)
    return error.strerror or str(error)
