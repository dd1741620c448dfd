"""The settings of one node. They may differ from node to node.

This is the only definition: each field has its bounds and its description, and its name ends in its
unit. Loading, the commented TOML and the reference page use it. Every instance is within its bounds.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from quiver.config.address import Address
from quiver.config.alert_rule import AlertRule
from quiver.config.observability import Alerts, Metrics
from quiver.config.security import Quotas, Security
from quiver.config.setting import check_fields
from quiver.errors import InvalidSetting

MIB = 1 << 20


class Logging(Struct, frozen=True, kw_only=True):
    """The node's log on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Lowest level that is logged."),
    ] = "info"
    format: Annotated[
        Literal["auto", "pretty", "json"],
        Meta(
            description="`pretty` for people, `json` for log collectors; `auto` is `pretty` on a terminal."
        ),
    ] = "auto"

    def __post_init__(self) -> None:
        check_fields(self)


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of the node, and its timeouts."""

    connections_max: Annotated[
        int,
        Meta(
            ge=1, le=1_000_000, description="Most connections at a time, of all protocols together."
        ),
    ] = 10_000
    requests_max: Annotated[
        int,
        Meta(ge=1, le=65_536, description="Most unanswered requests of one connection."),
    ] = 1024
    request_bytes_max: Annotated[
        int,
        Meta(ge=MIB, le=1024 * MIB, description="Largest frame that a client may send."),
    ] = 72 * MIB
    inflight_bytes_max: Annotated[
        int,
        Meta(
            ge=MIB,
            le=65_536 * MIB,
            description="Most bytes of unanswered requests of one connection. The node reads no more "
            "from it until some are answered.",
        ),
    ] = 64 * MIB
    handshake_timeout_s: Annotated[
        float,
        Meta(ge=0.1, le=300, description="Time that a new connection has for its handshake."),
    ] = 10.0
    frame_timeout_s: Annotated[
        float,
        Meta(ge=0.1, le=3600, description="Time that a frame or an HTTP body may take to arrive."),
    ] = 30.0
    idle_timeout_s: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            description="Time without a request after which a connection is closed.",
        ),
    ] = 600.0
    write_timeout_s: Annotated[
        float,
        Meta(ge=0.1, le=3600, description="Time that a client may leave its replies unread."),
    ] = 30.0
    body_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=1024 * MIB,
            description="Largest body of an HTTP request, as sent and after decompression.",
        ),
    ] = 16 * MIB
    header_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=MIB,
            description="Largest request line and headers of an HTTP request, together.",
        ),
    ] = 32 << 10
    drain_timeout_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="Time that a shutdown waits for running requests."),
    ] = 10.0
    retention_interval_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=86_400,
            description="Time between checks for messages that retention removes.",
        ),
    ] = 60.0
    free_bytes_min: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="Free disk space in the data folder below which publishing is refused.",
        ),
    ] = 256 * MIB
    memory_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 44,
            description="Memory for caches and for unanswered requests of all connections, together. "
            "0: a quarter of the memory that the process may use, 64 MiB at least.",
        ),
    ] = 0
    tail_bytes_total: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Part of `memory_bytes_max` for the newest batches of all partitions, and for "
            "others that were read a moment ago.",
        ),
    ] = 256 * MIB

    def __post_init__(self) -> None:
        check_fields(self)


class Web(Struct, frozen=True, kw_only=True):
    """Settings for browsers and webhooks."""

    cors_origins: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Origins whose pages may call the node, separated by commas, or `*`. Empty: none.",
        ),
    ] = ""
    hosts: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.*, -]{0,4096}$",
            description="Names under which HTTP is reached, such as the name of a proxy, separated by "
            "commas, or `*`. Without authentication, requests for other names than these, `localhost` "
            "and IP addresses are refused.",
        ),
    ] = ""
    webhook_targets: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Allowed targets of webhooks, separated by commas: hosts such as "
            "`hooks.example.com` or `*.example.com`, and networks such as `10.1.0.0/16`. Empty: none.",
        ),
    ] = ""
    webhook_secrets: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Folder with the secrets that sign webhooks, one file for each.",
        ),
    ] = ""
    webhooks_by: Annotated[
        Literal["nodes", "forwarders", "either"],
        Meta(
            description="Setting of a node: who calls webhooks. `either`: the forwarders, and the nodes "
            "while there is none. Forwarders with `webhook_targets` can call them."
        ),
    ] = "nodes"

    def __post_init__(self) -> None:
        check_fields(self)
        for entry in filter(None, map(str.strip, self.webhook_targets.split(","))):
            if not _is_target(entry):
                raise InvalidSetting(
                    f"webhook_targets: {entry[:200]!r} is neither a host such as hooks.example.com or "
                    "*.example.com nor a network such as 10.1.0.0/16"
                )


def _is_target(entry: str) -> bool:
    try:
        ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return bool(_HOST.fullmatch(entry)) and not _NUMBERS.fullmatch(entry)
    return True


_HOST = re.compile(r"[A-Za-z0-9*?_.-]+")
_NUMBERS = re.compile(r"[0-9.]+")
"""No host: an address that is not one."""


class Metadata(Struct, frozen=True, kw_only=True):
    """The store of the metadata: topics, subscriptions, leaders."""

    store: Annotated[
        Literal["sqlite", "etcd"],
        Meta(
            description="`sqlite`: a file in the data folder. `etcd`: shared by the nodes of a cluster."
        ),
    ] = "sqlite"
    endpoints: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="URLs of the etcd members, separated by commas.",
        ),
    ] = "http://127.0.0.1:2379"
    prefix: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_./-]{0,200}$",
            description="Prefix of every key in etcd, so that clusters can share one: "
            "letters, digits, '.', '_', '-' and '/'.",
        ),
    ] = "quiver/"
    username: Annotated[str, Meta(max_length=200, description="User in etcd. Empty: none.")] = ""
    password_file: Annotated[
        str, Meta(max_length=4096, description="File with the password of that user.")
    ] = ""
    ca_file: Annotated[
        str,
        Meta(
            max_length=4096,
            description="CA certificates (PEM) to trust for https endpoints. Empty: the system's.",
        ),
    ] = ""
    cert_file: Annotated[
        str,
        Meta(max_length=4096, description="Client certificate (PEM), if etcd requires one."),
    ] = ""
    key_file: Annotated[
        str, Meta(max_length=4096, description="Private key (PEM) of that certificate.")
    ] = ""
    request_timeout_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=60,
            description="Time that an etcd member has to answer before another is asked.",
        ),
    ] = 3.0
    lease_s: Annotated[
        int,
        Meta(
            ge=1,
            le=600,
            description="Lease of a node in etcd: time after which a silent node counts as down.",
        ),
    ] = 3

    def __post_init__(self) -> None:
        check_fields(self)


class NodeConfig(Struct, frozen=True, kw_only=True):
    """All settings of one node."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.-]{1,100}$",
            description="Name of the node: 1 to 100 letters, digits, '.', '_' or '-'.",
        ),
    ] = "node-1"
    data: Annotated[
        str,
        Meta(min_length=1, max_length=4096, description="Folder for all data of the node."),
    ] = "./data"
    processes: Annotated[
        int,
        Meta(
            ge=0,
            le=256,
            description="Number of processes that serve the data folder together, without etcd. 0 (`auto` "
            "with `--processes`): one for each core.",
        ),
    ] = 1
    process_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_000,
            description="With several processes, the port at which the first is reached alone; the others "
            "have the next ones. 0: ten above the port of `native`.",
        ),
    ] = 0
    role: Annotated[
        Literal["broker", "forwarder"],
        Meta(
            description="A `forwarder` stores nothing and serves clients for the nodes in `upstream`."
        ),
    ] = "broker"
    upstream: Annotated[
        str,
        Meta(
            max_length=4096,
            description="URL of the nodes that a forwarder serves, as `quiver://host:port,host:port`.",
        ),
    ] = ""
    http: Annotated[
        Address | None,
        Meta(
            description="Address for HTTP and WebSocket. Port 0 takes a free port; `off` disables HTTP."
        ),
    ] = Address("127.0.0.1", 7400)
    native: Annotated[
        Address,
        Meta(description="Address for the native protocol. Port 0 takes a free port."),
    ] = Address("127.0.0.1", 7401)
    advertise: Annotated[
        str,
        Meta(
            max_length=300,
            description="In a cluster, the address at which others reach `native`, as `host:port` or "
            "`host`. Empty: the address of `native`.",
        ),
    ] = ""
    zone: Annotated[
        str,
        Meta(
            max_length=100,
            description="In a cluster, the failure zone of this node, such as a rack. Replicas are "
            "spread over zones.",
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
