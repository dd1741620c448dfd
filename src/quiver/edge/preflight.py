"""Checks the settings of a node before it starts: what would make it fail, or would be ignored.

The settings have checked themselves one by one. Here they are checked together, and with the files
and folders that they name. Nothing is created, and no other machine is asked.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from quiver.client.transport.addresses import addresses_in
from quiver.cluster.metadata.secret_key import read_key
from quiver.config import Metadata, NodeConfig
from quiver.config.address import parse_address
from quiver.config.exposure import require_safe
from quiver.config.processes import is_shared
from quiver.edge.auth.tls import ServerTls
from quiver.edge.webhooks.targets import Targets
from quiver.errors import InvalidSetting

_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
_ADVERTISED_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|(?=.*:.*:)[0-9A-Fa-f:]+")
_OF_ETCD = ("endpoints", "username", "password_file", "ca_file", "cert_file", "key_file")


def require_startable(config: NodeConfig) -> None:
    """``InvalidSetting`` lists every mistake, each on a line of its own."""
    mistakes = list(mistakes_in(config))
    if mistakes:
        raise InvalidSetting("\n".join(mistakes), mistakes=mistakes)


def mistakes_in(config: NodeConfig) -> Iterator[str]:
    checks = [_exposure, _tls, _origins, _secrets, _addresses]
    if config.role == "forwarder":
        checks += [_forwarder]
    else:
        checks += [_alerts, _advertise, _data, _metadata, _upstream, _processes]
    for check in checks:
        yield from check(config)


def _refused(check: Callable[[], object], prefix: str = "") -> Iterator[str]:
    try:
        check()
    except InvalidSetting as error:
        yield prefix + error.message


def _exposure(config: NodeConfig) -> Iterator[str]:
    yield from _refused(lambda: require_safe(config))


def _tls(config: NodeConfig) -> Iterator[str]:
    security = config.security
    if security.tls_certificate:
        yield from _refused(lambda: ServerTls(security))
    if security.tls_ca:
        try:
            ssl.create_default_context(cafile=security.tls_ca)
        except OSError as error:
            yield f"security.tls_ca cannot be used: {error}"
    if security.admin_names and not security.tls_client_ca:
        yield (
            "security.admins are names in client certificates, and nothing is known of those "
            "without security.tls_client_ca"
        )


def _origins(config: NodeConfig) -> Iterator[str]:
    for origin in filter(None, map(str.strip, config.web.cors_origins.split(","))):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            yield (
                f"web.cors_origins: {origin[:200]!r} is not an origin; write it as "
                "'https://app.example.com', or '*' for all"
            )


def _secrets(config: NodeConfig) -> Iterator[str]:
    yield from _refused(lambda: read_key(config.security.key_file))
    folder = config.web.webhook_secrets
    if folder and not os.path.isdir(folder):
        yield f"web.webhook_secrets: {folder!r} is not a folder"


def _addresses(config: NodeConfig) -> Iterator[str]:
    if config.role == "broker" and config.http == config.native and config.native.port:
        yield f"http and native cannot both listen at {config.native}"


def _processes(config: NodeConfig) -> Iterator[str]:
    if not is_shared(config):
        return
    if config.metadata.store == "etcd":
        yield (
            "processes: several processes share one SQLite file, and metadata.store is etcd; start "
            "a node for each core instead, each with a name, a folder and addresses of its own"
        )
    if not hasattr(socket, "SO_REUSEPORT") or not hasattr(os, "fork"):
        yield "processes: this system cannot share a port among processes; use 1"


def _forwarder(config: NodeConfig) -> Iterator[str]:
    if config.processes != 1:
        yield "processes: a forwarder stores nothing that several could serve; start several forwarders"
    if not config.upstream:
        yield "a forwarder needs upstream, the URL of its nodes"
    else:
        yield from _refused(lambda: addresses_in(config.upstream), "upstream: ")


def _upstream(config: NodeConfig) -> Iterator[str]:
    if config.upstream:
        yield "upstream is for a forwarder: set role to forwarder as well"


def _alerts(config: NodeConfig) -> Iterator[str]:
    url = config.alerts.webhook
    if not url:
        return
    if not url.startswith(("http://", "https://")) or not _has_host(url):
        yield (
            "alerts.webhook must be a URL such as 'https://hooks.example.com/alerts', "
            f"not {url[:200]!r}"
        )
        return
    targets = Targets(config.web.webhook_targets)
    yield from _refused(lambda: targets.require(url), "alerts.webhook: ")


def _has_host(url: str) -> bool:
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:
        return False


def _advertise(config: NodeConfig) -> Iterator[str]:
    given = config.advertise
    if given and not _ADVERTISED_HOST.fullmatch(given):
        yield from _refused(lambda: parse_address(given), "advertise: ")


def _data(config: NodeConfig) -> Iterator[str]:
    """The folder, or the nearest that is there, must be one that can be written to."""
    folder = os.path.abspath(config.data)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        yield f"data: {folder!r} is not a folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield f"data: the folder {folder!r} cannot be written to"


def _metadata(config: NodeConfig) -> Iterator[str]:
    metadata = config.metadata
    if metadata.store == "sqlite":
        default = Metadata()
        given = [name for name in _OF_ETCD if getattr(metadata, name) != getattr(default, name)]
        if given:
            yield f"metadata.{given[0]} is for etcd: set metadata.store to etcd as well"
        return
    # An HTTP client is loaded only where it is used: that takes a fifth of a node's start.
    from quiver.cluster.metadata.etcd.open import etcd_settings  # noqa: PLC0415

    yield from _refused(lambda: etcd_settings(metadata))
    if metadata.key_file and not metadata.cert_file:
        yield "metadata.key_file needs metadata.cert_file"
    if metadata.username and not metadata.password_file:
        yield "metadata.username needs metadata.password_file"
    if metadata.password_file and not metadata.username:
        yield "metadata.password_file needs metadata.username"
    if not metadata.endpoints.lstrip().startswith("https://"):
        for name in ("ca_file", "cert_file"):
            if getattr(metadata, name):
                yield f"metadata.{name} is for https: write metadata.endpoints with https://"
