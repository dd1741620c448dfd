"""Opens the etcd that a node's settings name."""

from __future__ import annotations

import ssl

from quiver.cluster.metadata.etcd.gateway import EtcdSettings
from quiver.cluster.metadata.etcd.store import EtcdStore
from quiver.config import Metadata
from quiver.errors import InvalidSetting
from quiver.model.clock import Clock

_PASSWORD_BYTES_MAX = 4096


async def open_etcd(settings: Metadata, clock: Clock) -> EtcdStore:
    return await EtcdStore.open(etcd_settings(settings), clock)


def etcd_settings(settings: Metadata) -> EtcdSettings:
    """Read the files that the settings name; ``InvalidSetting`` says which cannot be used."""
    endpoints = tuple(part.strip() for part in settings.endpoints.split(",") if part.strip())
    for endpoint in endpoints:
        if not endpoint.startswith(("http://", "https://")):
            raise InvalidSetting(
                f"metadata.endpoints: write each as 'http://host:2379', not {endpoint[:80]!r}"
            )
    secure = {endpoint.startswith("https://") for endpoint in endpoints}
    if len(secure) != 1:
        raise InvalidSetting(
            "metadata.endpoints must name at least one endpoint, all http or all https"
        )
    return EtcdSettings(
        endpoints=endpoints,
        prefix=settings.prefix,
        username=settings.username,
        password=_password(settings),
        tls=_tls(settings) if True in secure else None,
        request_timeout_s=settings.request_timeout_s,
    )


def _password(settings: Metadata) -> str:
    if not settings.password_file:
        return ""
    try:
        with open(settings.password_file, encoding="utf-8") as file:
            return file.read(_PASSWORD_BYTES_MAX).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"metadata.password_file cannot be read: {error}") from error


def _tls(settings: Metadata) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(
            f"metadata.ca_file, cert_file or key_file cannot be used: {error}"
        ) from error
    return context
