"""The settings of a node about who is let in, and how much each of them may use."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from quiver.config.setting import check_fields
from quiver.errors import InvalidSetting


class Security(Struct, frozen=True, kw_only=True):
    """Who is let in, and how what they say is kept from others."""

    authentication: Annotated[
        bool,
        Meta(description="Whether clients must show a token or a certificate."),
    ] = False
    insecure: Annotated[
        bool,
        Meta(
            description="Listen to other machines without authentication: everybody may do everything."
        ),
    ] = False
    tls_certificate: Annotated[
        str,
        Meta(max_length=4096, description="The node's certificate chain (PEM); empty: no TLS."),
    ] = ""
    tls_key: Annotated[
        str,
        Meta(max_length=4096, description="The private key of that certificate (PEM)."),
    ] = ""
    tls_ca: Annotated[
        str,
        Meta(
            max_length=4096,
            description="In a cluster, who signs the nodes' certificates (PEM); empty: who signs "
            "clients', or whom the system trusts.",
        ),
    ] = ""
    tls_client_ca: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Who signs clients' certificates (PEM); empty: clients are not asked for one.",
        ),
    ] = ""
    tls_client_required: Annotated[
        bool,
        Meta(description="Whether a client without a certificate is turned away."),
    ] = False
    admins: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Names in client certificates that may do everything, with commas between them.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidSetting(
                "security.tls_certificate and security.tls_key need each other: set both"
            )
        for name in ("tls_ca", "tls_client_ca"):
            if getattr(self, name) and not self.tls_certificate:
                raise InvalidSetting(f"security.{name} needs security.tls_certificate")
        if self.tls_client_required and not self.tls_client_ca:
            raise InvalidSetting("security.tls_client_required needs security.tls_client_ca")

    @property
    def admin_names(self) -> list[str]:
        return [name.strip() for name in self.admins.split(",") if name.strip()]


class Quotas(Struct, frozen=True, kw_only=True):
    """What each principal may use; 0 is no limit. Other quotas for one: `[quotas.principals.NAME]`."""

    requests_per_second: Annotated[
        int, Meta(ge=0, le=10_000_000, description="Requests, over all connections of a principal.")
    ] = 0
    bytes_per_second: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Bytes of requests and replies, over all connections of a principal.",
        ),
    ] = 0
    connections_max: Annotated[
        int, Meta(ge=0, le=1_000_000, description="Connections of a principal at a time.")
    ] = 0
    inflight_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000_000,
            description="Messages that a principal has received and not yet settled.",
        ),
    ] = 0
    topics_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Topics and queues in the names that a principal is `admin` of.",
        ),
    ] = 0

    def __post_init__(self) -> None:
        check_fields(self)
