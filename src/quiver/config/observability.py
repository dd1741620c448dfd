"""The settings of a node about what it shows of itself, and when it raises an alarm."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from quiver.config.setting import check_fields


class Metrics(Struct, frozen=True, kw_only=True):
    """What `/metrics` shows."""

    names_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="How many topics, and how many subscriptions, are shown one by one; the "
            "others are shown in sums.",
        ),
    ] = 1000

    def __post_init__(self) -> None:
        check_fields(self)


class Alerts(Struct, frozen=True, kw_only=True):
    """When the node raises an alarm, and whom it tells. Rules are tables: `[alerts.rules.NAME]`."""

    enabled: Annotated[bool, Meta(description="Whether rules are evaluated at all.")] = True
    defaults: Annotated[
        bool, Meta(description="Whether the rules that exist from the start are in force.")
    ] = True
    interval_s: Annotated[
        float, Meta(ge=0.1, le=3600, description="How often the rules are evaluated.")
    ] = 1.0
    webhook: Annotated[
        str,
        Meta(
            max_length=4096,
            description="A URL that is told when an alert fires and clears; its host must be in "
            "`web.webhook_targets`; empty: none.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        check_fields(self)
