"""The settings of a node for authentication, TLS and quotas."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from quiver.config.setting import check_fields
from quiver.errors import InvalidSetting


class Security(Struct, frozen=True, kw_only=True):
    """Authentication and TLS."""

    authentication: Annotated[
        bool,
        Meta(description="Whether clients need a token or a certificate."),
    ] = False
    insecure: Annotated[
        bool,
        Meta(
            description="Allow other machines to connect without authentication. Everybody may then do "
            "everything."
        ),
    ] = False
    tls_certificate: Annotated[
        str,
        Meta(max_length=4096, description="Certificate chain of the node (PEM). Empty: no TLS."),
    ] = ""
    tls_key: Annotated[
        str,
        Meta(max_length=4096, description="Private key of that certificate (PEM)."),
    ] = ""
    tls_ca: Annotated[
        str,
        Meta(
            max_length=4096,
            description="In a cluster, the CA of the nodes' certificates (PEM). Empty: `tls_client_ca`, "
            "or the system's.",
        ),
    ] = ""
    tls_client_ca: Annotated[
        str,
        Meta(
            max_length=4096,
            description="CA of client certificates (PEM). Empty: clients need none.",
        ),
    ] = ""
    tls_client_required: Annotated[
        bool,
        Meta(description="Whether every client needs a certificate."),
    ] = False
    key_file: Annotated[
        str,
        Meta(
            max_length=4096,
            description="A file with a key of the node or cluster. The metadata then holds no secret "
            "that is of use without it. Empty: it holds the secrets themselves.",
        ),
    ] = ""
    admins: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Names in client certificates that may do everything, separated by commas.",
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
    def node_ca(self) -> str:
        """What signs the certificates that nodes show each other; empty if nobody was named for that."""
        return self.tls_ca or self.tls_client_ca

    @property
    def admin_names(self) -> list[str]:
        return [name.strip() for name in self.admins.split(",") if name.strip()]


class Quotas(Struct, frozen=True, kw_only=True):
    """Limits for each principal; 0 is no limit. Limits for one: `[quotas.principals.NAME]`."""

    requests_per_second: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Requests per second of a principal, over all its connections.",
        ),
    ] = 0
    bytes_per_second: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Bytes per second of requests and replies of a principal, over all its "
            "connections.",
        ),
    ] = 0
    connections_max: Annotated[
        int, Meta(ge=0, le=1_000_000, description="Most connections of a principal at a time.")
    ] = 0
    inflight_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000_000,
            description="Most messages that a principal has received and not yet settled.",
        ),
    ] = 0
    topics_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Most topics and queues under the names that a principal has `admin` for.",
        ),
    ] = 0

    producer_names_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Most names of producers of a principal. Names that were not used for 30 days "
            "make room for new ones.",
        ),
    ] = 10_000

    @property
    def counts_nothing(self) -> bool:
        """Whether nothing that a principal does has to be counted. Names of producers are stored."""
        return not (
            self.requests_per_second
            or self.bytes_per_second
            or self.connections_max
            or self.inflight_messages_max
            or self.topics_max
        )

    def __post_init__(self) -> None:
        check_fields(self)
