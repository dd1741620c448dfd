"""The settings of a node for metrics and alerts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from quiver.config.setting import check_fields


class Metrics(Struct, frozen=True, kw_only=True):
    """The metrics at `/metrics`."""

    names_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Most topics, and most subscriptions, that have metrics of their own. The "
            "others are summed up.",
        ),
    ] = 1000

    def __post_init__(self) -> None:
        check_fields(self)


class Alerts(Struct, frozen=True, kw_only=True):
    """Alerts, and where they are sent. Rules are tables: `[alerts.rules.NAME]`."""

    enabled: Annotated[bool, Meta(description="Whether alert rules are evaluated.")] = True
    defaults: Annotated[bool, Meta(description="Whether the default rules apply.")] = True
    interval_s: Annotated[
        float, Meta(ge=0.1, le=3600, description="Time between evaluations of the rules.")
    ] = 1.0
    webhook: Annotated[
        str,
        Meta(
            max_length=4096,
            description="URL that is called when an alert fires or clears. Its host must be in "
            "`web.webhook_targets`. Empty: none.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        check_fields(self)
