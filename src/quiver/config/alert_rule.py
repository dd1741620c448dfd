"""A rule for alerts: what is watched, of whom, and from where on it is too much.

Rules stand in the settings file as tables, ``[alerts.rules.NAME]``. One with the name of a rule that
exists from the start takes its place.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from quiver.config.setting import check_fields
from quiver.errors import InvalidSetting

Watch = Literal[
    "depth",
    "oldest_age",
    "lag_growing",
    "dead_letters",
    "error_rate",
    "disk_low",
    "under_replicated",
    "node_down",
]
Unit = Literal["messages", "seconds", "bytes", "share", "replicas", "nodes"]
WATCHES: tuple[Watch, ...] = get_args(Watch)
UNITS: dict[Watch, Unit] = {
    "depth": "messages",
    "oldest_age": "seconds",
    "lag_growing": "seconds",
    "dead_letters": "messages",
    "error_rate": "share",
    "disk_low": "bytes",
    "under_replicated": "replicas",
    "node_down": "nodes",
}
MEANING: dict[Watch, str] = {
    "depth": "Messages of a subscription that are not finished, more than `limit`.",
    "oldest_age": "The oldest message of a subscription that is not finished is older than `limit`.",
    "lag_growing": "What a subscription has not finished has grown all the time for `limit`.",
    "dead_letters": "Messages of a subscription that became dead letters within 5 minutes, more "
    "than `limit`.",
    "error_rate": "Of the node's requests of the last minute, the share that failed, more than `limit`.",
    "disk_low": "The data folder's disk has less than `limit` free.",
    "under_replicated": "Replicas of a topic that are not in sync, more than `limit`.",
    "node_down": "Nodes of the cluster that do not answer, more than `limit`.",
}
RULES_MAX = 1000


class AlertRule(Struct, frozen=True, kw_only=True):
    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.-]{1,100}$",
            description="1 to 100 letters, digits, '.', '_' or '-'.",
        ),
    ]
    watch: Annotated[Watch, Meta(description="What is watched.")]
    limit: Annotated[
        float,
        Meta(ge=0, le=1 << 50, description="More than this is too much; of a disk, less."),
    ]
    on: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.*-]{1,200}$",
            description="The subscription, queue or topic, or a pattern such as `orders.*`. `*` "
            "leaves out queues of dead letters.",
        ),
    ] = "*"
    for_s: Annotated[
        float,
        Meta(ge=0, le=604_800, description="How long it must last before the alert fires."),
    ] = 0.0
    clear_for_s: Annotated[
        float,
        Meta(ge=0, le=604_800, description="How long it must be over before the alert clears."),
    ] = 0.0
    clear_ratio: Annotated[
        float,
        Meta(ge=0.01, le=1, description="It is over at this share of `limit`, not before."),
    ] = 0.8
    severity: Annotated[Literal["warning", "critical"], Meta(description="How bad it is.")] = (
        "warning"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.watch == "error_rate" and self.limit > 1:
            raise InvalidSetting(
                f"limit of error_rate must be a share from 0 to 1, not {self.limit:g}"
            )

    @property
    def is_below(self) -> bool:
        """Whether too little is what is bad."""
        return self.watch == "disk_low"

    @property
    def clear_limit(self) -> float:
        """From here on it is over."""
        return self.limit / self.clear_ratio if self.is_below else self.limit * self.clear_ratio


DEFAULT_RULES = (
    AlertRule(name="queue-deep", watch="depth", limit=100_000, for_s=60, clear_for_s=30),
    AlertRule(name="message-old", watch="oldest_age", limit=900, for_s=60, clear_for_s=30),
    AlertRule(name="lag-growing", watch="lag_growing", limit=900, clear_for_s=30, clear_ratio=0.01),
    AlertRule(name="dead-letters", watch="dead_letters", limit=0),
    AlertRule(name="errors", watch="error_rate", limit=0.1, for_s=60, clear_for_s=60),
    AlertRule(
        name="disk-low",
        watch="disk_low",
        limit=2 << 30,
        for_s=10,
        clear_for_s=30,
        severity="critical",
    ),
    AlertRule(
        name="under-replicated",
        watch="under_replicated",
        limit=0,
        for_s=30,
        clear_for_s=30,
        severity="critical",
    ),
    AlertRule(
        name="node-down", watch="node_down", limit=0, for_s=15, clear_for_s=15, severity="critical"
    ),
)
"""Those that exist from the start."""


def rules_in_force(given: tuple[AlertRule, ...], *, defaults: bool) -> tuple[AlertRule, ...]:
    """The rules from the start, as far as they are wanted, and those that somebody gave."""
    rules = {rule.name: rule for rule in DEFAULT_RULES if defaults}
    return tuple((rules | {rule.name: rule for rule in given}).values())
