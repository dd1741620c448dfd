"""An alert rule: what it watches, on which subscriptions or topics, and its limit.

Rules are tables in the settings file, ``[alerts.rules.NAME]``. A rule with the name of a default
rule replaces it.
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
    "dead_letter_arrivals",
    "unread_lost",
    "dedup_forgotten",
    "transaction_age",
    "error_rate",
    "disk_low",
    "under_replicated",
    "node_down",
    "mirror_lag",
    "mirror_gaps",
    "mirror_broken",
]
Unit = Literal["messages", "ids", "seconds", "bytes", "share", "replicas", "nodes", "partitions"]
WATCHES: tuple[Watch, ...] = get_args(Watch)
UNITS: dict[Watch, Unit] = {
    "depth": "messages",
    "oldest_age": "seconds",
    "lag_growing": "seconds",
    "dead_letters": "messages",
    "dead_letter_arrivals": "messages",
    "unread_lost": "messages",
    "dedup_forgotten": "ids",
    "transaction_age": "seconds",
    "error_rate": "share",
    "disk_low": "bytes",
    "under_replicated": "replicas",
    "node_down": "nodes",
    "mirror_lag": "seconds",
    "mirror_gaps": "messages",
    "mirror_broken": "partitions",
}
MEANING: dict[Watch, str] = {
    "depth": "A subscription has more than `limit` unacknowledged messages.",
    "oldest_age": "The oldest unacknowledged message of a subscription is older than `limit`.",
    "lag_growing": "The lag of a subscription has grown without a break for `limit`.",
    "dead_letters": "A subscription has more than `limit` dead letters that nobody has handled.",
    "dead_letter_arrivals": "A subscription dead-lettered more than `limit` messages within 5 minutes.",
    "unread_lost": "Retention deleted more than `limit` messages within an hour that a subscription "
    "had not read.",
    "dedup_forgotten": "The dedup windows of a topic forgot more than `limit` ids early within 5 minutes.",
    "transaction_age": "A transaction has been open in a topic for longer than `limit`: readers wait for "
    "it.",
    "error_rate": "Of the node's requests within the last minute, a share above `limit` failed.",
    "disk_low": "The disk of the data folder has less than `limit` free.",
    "under_replicated": "A topic has more than `limit` replicas that are not in sync.",
    "node_down": "More than `limit` nodes of the cluster are down.",
    "mirror_lag": "For longer than `limit`, a mirrored topic has not had everything that its source had.",
    "mirror_gaps": "Retention at the source removed more than `limit` messages of a mirrored topic within "
    "an hour, before they were copied.",
    "mirror_broken": "More than `limit` partitions of a mirrored topic are not copied because the source "
    "has other messages; or the source refuses the mirror, or has not answered even once for a minute.",
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
    watch: Annotated[Watch, Meta(description="What the rule watches.")]
    limit: Annotated[
        float,
        Meta(
            ge=0,
            le=1 << 50,
            description="The alert fires above this value; for `disk_low`, below it.",
        ),
    ]
    on: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.*-]{1,200}$",
            description="Subscription, queue or topic, or a pattern such as `orders.*`. `*` does not "
            "match dead-letter queues.",
        ),
    ] = "*"
    for_s: Annotated[
        float,
        Meta(ge=0, le=604_800, description="Time beyond the limit before the alert fires."),
    ] = 0.0
    clear_for_s: Annotated[
        float,
        Meta(ge=0, le=604_800, description="Time back within the limit before the alert clears."),
    ] = 0.0
    clear_ratio: Annotated[
        float,
        Meta(ge=0.01, le=1, description="The alert clears only at this share of `limit`."),
    ] = 0.8
    severity: Annotated[
        Literal["warning", "critical"], Meta(description="Severity of the alert.")
    ] = "warning"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.watch == "error_rate" and self.limit > 1:
            raise InvalidSetting(
                f"limit of error_rate must be a share from 0 to 1, not {self.limit:g}"
            )

    @property
    def is_below(self) -> bool:
        """Whether the alert fires below the limit."""
        return self.watch == "disk_low"

    @property
    def clear_limit(self) -> float:
        """The value at which the alert clears."""
        return self.limit / self.clear_ratio if self.is_below else self.limit * self.clear_ratio


DEFAULT_RULES = (
    AlertRule(name="queue-deep", watch="depth", limit=100_000, for_s=60, clear_for_s=30),
    AlertRule(name="message-old", watch="oldest_age", limit=900, for_s=60, clear_for_s=30),
    AlertRule(name="lag-growing", watch="lag_growing", limit=900, clear_for_s=30, clear_ratio=0.01),
    AlertRule(name="dead-letters", watch="dead_letters", limit=0),
    AlertRule(name="unread-lost", watch="unread_lost", limit=0, severity="critical"),
    AlertRule(name="dedup-forgotten", watch="dedup_forgotten", limit=0),
    AlertRule(name="transaction-old", watch="transaction_age", limit=120),
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
    AlertRule(name="mirror-lagging", watch="mirror_lag", limit=60, for_s=30, clear_for_s=30),
    AlertRule(name="mirror-gap", watch="mirror_gaps", limit=0, severity="critical"),
    AlertRule(name="mirror-broken", watch="mirror_broken", limit=0, severity="critical"),
)
"""The default rules."""


def rules_in_force(given: tuple[AlertRule, ...], *, defaults: bool) -> tuple[AlertRule, ...]:
    """The given rules, and the default rules if they apply."""
    rules = {rule.name: rule for rule in DEFAULT_RULES if defaults}
    return tuple((rules | {rule.name: rule for rule in given}).values())
