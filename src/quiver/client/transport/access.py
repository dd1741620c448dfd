"""How a client authenticates itself and the node: a token, and TLS.

Defaults come from the environment: ``QUIVER_TOKEN``, ``QUIVER_CA_FILE``, ``QUIVER_CERTIFICATE_FILE`` and
``QUIVER_KEY_FILE``.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

import msgspec

from quiver.errors import InvalidSetting

_TOKEN_CHARS_MAX = 1000


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Files for TLS (PEM). ``ca`` is the CA of the nodes' certificates, by default the system's;
    ``certificate`` and ``key`` are the client's, if the nodes require one."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:
            files = [file for file in (self.ca, self.certificate, self.key) if file]
            raise InvalidSetting(
                f"TLS cannot use {', '.join(files)}: {_reason(error)}", setting="tls"
            ) from error
        return context


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection is opened with. It does not show its token."""

    token: str | None = None
    tls: Tls | None = None

    def __repr__(self) -> str:
        return f"Access(tls={self.tls!r})"


def access_of(
    token: str | None, tls: Tls | None, *, is_secure: bool, environment: Mapping[str, str]
) -> Access:
    """What was given, and where nothing was, what the environment has."""
    token = token or environment.get("QUIVER_TOKEN") or None
    if token is not None:
        token = token.strip()
        if len(token) > _TOKEN_CHARS_MAX or not token.isascii() or not token.isprintable():
            raise InvalidSetting(
                "the token is not valid: a token begins with 'qv_'", setting="token"
            )
    if tls is None and is_secure:
        tls = Tls(
            ca=environment.get("QUIVER_CA_FILE") or None,
            certificate=environment.get("QUIVER_CERTIFICATE_FILE") or None,
            key=environment.get("QUIVER_KEY_FILE") or None,
        )
    return Access(token=token, tls=tls)


def access_from_environment(token: str | None, tls: Tls | None, *, is_secure: bool) -> Access:
    return access_of(token, tls, is_secure=is_secure, environment=os.environ)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        return str(error)
    return error.strerror or str(error)
