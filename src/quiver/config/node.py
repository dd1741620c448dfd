"""The settings of one node. They may differ from node to node.

This is the only definition: each field carries its bounds and its sentence, and its name ends in
its unit. Loading, the commented TOML and the reference page are all made from it. An object that
exists is within its bounds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from quiver.config.address import Address
from quiver.config.alert_rule import AlertRule
from quiver.config.observability import Alerts, Metrics
from quiver.config.security import Quotas, Security
from quiver.config.setting import check_fields

MIB = 1 << 20


class Logging(Struct, frozen=True, kw_only=True):
    """What the node says about itself on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The least serious lines that are written."),
    ] = "info"
    format: Annotated[
        Literal["auto", "pretty", "json"],
        Meta(
            description="`pretty` for people, `json` for collectors; `auto` asks if it is a terminal."
        ),
    ] = "auto"

    def __post_init__(self) -> None:
        check_fields(self)


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds on what the node takes on, and how long it waits."""

    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="How many clients may be connected at a time.")
    ] = 10_000
    requests_max: Annotated[
        int,
        Meta(ge=1, le=65_536, description="How many requests of one connection may be unanswered."),
    ] = 1024
    request_bytes_max: Annotated[
        int,
        Meta(ge=MIB, le=1024 * MIB, description="The largest frame a client may send."),
    ] = 72 * MIB
    inflight_bytes_max: Annotated[
        int,
        Meta(
            ge=MIB,
            le=65_536 * MIB,
            description="Unanswered request bytes of one connection after which no more is read from it.",
        ),
    ] = 64 * MIB
    handshake_timeout_s: Annotated[
        float,
        Meta(ge=0.1, le=300, description="How long a new connection may take to say hello."),
    ] = 10.0
    frame_timeout_s: Annotated[
        float,
        Meta(ge=0.1, le=3600, description="How long a frame that has begun may take to arrive."),
    ] = 30.0
    idle_timeout_s: Annotated[
        float,
        Meta(
            ge=1, le=86_400, description="After how long without a request a connection is closed."
        ),
    ] = 600.0
    write_timeout_s: Annotated[
        float,
        Meta(ge=0.1, le=3600, description="How long a client may leave its replies unread."),
    ] = 30.0
    body_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=1024 * MIB,
            description="The largest body of an HTTP request, as it is sent and once it is unpacked.",
        ),
    ] = 16 * MIB
    header_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=MIB,
            description="The largest request line and headers of an HTTP request together.",
        ),
    ] = 32 << 10
    drain_timeout_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="How long shutting down waits for requests under way."),
    ] = 10.0
    retention_interval_s: Annotated[
        float,
        Meta(
            ge=0.1, le=86_400, description="How often expired segments are looked for and removed."
        ),
    ] = 60.0
    free_bytes_min: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="Free space on the data folder's disk below which publishing is refused.",
        ),
    ] = 256 * MIB
    tail_bytes_total: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Memory for the newest batches of all partitions; reading them touches no disk.",
        ),
    ] = 256 * MIB

    def __post_init__(self) -> None:
        check_fields(self)


class Web(Struct, frozen=True, kw_only=True):
    """What browsers and webhooks may do."""

    cors_origins: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Origins whose pages may call the node, with commas between them, or `*`; "
            "empty: none.",
        ),
    ] = ""
    webhook_targets: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Where webhooks may go, with commas between them: hosts such as "
            "`hooks.example.com` or `*.example.com`, and networks such as `10.1.0.0/16`; empty: nowhere.",
        ),
    ] = ""
    webhook_secrets: Annotated[
        str,
        Meta(
            max_length=4096,
            description="The folder with the secrets that webhooks are signed with, a file for each.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        check_fields(self)


class Metadata(Struct, frozen=True, kw_only=True):
    """Where nodes keep what they agree on: topics, subscriptions, who leads what."""

    store: Annotated[
        Literal["sqlite", "etcd"],
        Meta(description="`sqlite`: a file in the data folder; `etcd`: shared with other nodes."),
    ] = "sqlite"
    endpoints: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="etcd's addresses, with commas between them.",
        ),
    ] = "http://127.0.0.1:2379"
    prefix: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_./-]{0,200}$",
            description="Before every key in etcd, so that clusters can share one: "
            "letters, digits, '.', '_', '-' and '/'.",
        ),
    ] = "quiver/"
    username: Annotated[
        str, Meta(max_length=200, description="etcd's user; empty if etcd asks for none.")
    ] = ""
    password_file: Annotated[
        str, Meta(max_length=4096, description="The file that holds the password of that user.")
    ] = ""
    ca_file: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Certificates (PEM) to trust with https endpoints; empty: the system's.",
        ),
    ] = ""
    cert_file: Annotated[
        str,
        Meta(max_length=4096, description="This node's certificate (PEM), if etcd asks for one."),
    ] = ""
    key_file: Annotated[
        str, Meta(max_length=4096, description="The private key (PEM) of that certificate.")
    ] = ""
    request_timeout_s: Annotated[
        float,
        Meta(ge=0.1, le=60, description="How long one etcd may take before another is asked."),
    ] = 3.0
    lease_s: Annotated[
        int,
        Meta(
            ge=1,
            le=600,
            description="How long a node that etcd no longer hears of counts as alive.",
        ),
    ] = 3

    def __post_init__(self) -> None:
        check_fields(self)


class NodeConfig(Struct, frozen=True, kw_only=True):
    """Everything that can be set about one node."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.-]{1,100}$",
            description="What the node is called: 1 to 100 letters, digits, '.', '_' or '-'.",
        ),
    ] = "node-1"
    data: Annotated[
        str,
        Meta(
            min_length=1, max_length=4096, description="The folder for everything the node stores."
        ),
    ] = "./data"
    role: Annotated[
        Literal["broker", "forwarder"],
        Meta(
            description="A `forwarder` stores nothing: it serves HTTP for the nodes in `upstream`."
        ),
    ] = "broker"
    upstream: Annotated[
        str,
        Meta(
            max_length=4096,
            description="The nodes behind a forwarder, as `quiver://host:port,host:port`.",
        ),
    ] = ""
    http: Annotated[
        Address | None,
        Meta(
            description="Where HTTP and WebSocket are spoken; port 0 takes a free one, `off` none."
        ),
    ] = Address("127.0.0.1", 7400)
    native: Annotated[
        Address,
        Meta(description="Where clients of the native protocol connect; port 0 takes a free one."),
    ] = Address("127.0.0.1", 7401)
    advertise: Annotated[
        str,
        Meta(
            max_length=300,
            description="In a cluster, where others reach `native`, as `host:port` or `host`; "
            "empty: where it listens.",
        ),
    ] = ""
    zone: Annotated[
        str,
        Meta(
            max_length=100,
            description="In a cluster, what this node fails together with; replicas are spread over zones.",
        ),
    ] = ""
    logging: Logging = Logging()
    limits: Limits = Limits()
    web: Web = Web()
    security: Security = Security()
    quotas: Quotas = Quotas()
    metadata: Metadata = Metadata()
    metrics: Metrics = Metrics()
    alerts: Alerts = Alerts()
    alert_rules: tuple[AlertRule, ...] = ()
    """From the tables ``[alerts.rules.NAME]`` of the settings file."""
    principal_quotas: dict[str, Quotas] = {}
    """From the tables ``[quotas.principals.NAME]`` of the settings file."""

    def __post_init__(self) -> None:
        check_fields(self)
