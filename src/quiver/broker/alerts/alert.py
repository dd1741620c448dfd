"""An alert, as it is shown and reported."""

from __future__ import annotations

from typing import Literal

import msgspec

from quiver.config.alert_rule import UNITS, AlertRule, Unit

State = Literal["firing", "cleared"]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    watch: str
    subject: str
    """The subscription, topic or node; empty for the node that tells."""
    severity: str
    state: State
    value: float
    """When it fired or cleared."""
    limit: float
    unit: Unit
    since_us: int
    """When it fired."""
    until_us: int | None = None
    """When it cleared."""

    @property
    def summary(self) -> str:
        """The alert in one line."""
        subject = f" on {self.subject}" if self.subject else ""
        value = shown(self.value, self.unit)
        limit = shown(self.limit, self.unit)
        return f"{self.rule}{subject}: {self.watch} is {value} (limit {limit}), {self.state}"


def shown(value: float, unit: Unit) -> str:
    if unit == "bytes":
        return f"{value / (1 << 30):,.2f} GiB"
    if unit == "seconds":
        return f"{value:,.0f} s"
    return f"{value:.1%}" if unit == "share" else f"{value:,.0f}"


def fired(rule: AlertRule, subject: str, value: float, now_us: int) -> Alert:
    return Alert(
        rule=rule.name,
        watch=rule.watch,
        subject=subject,
        severity=rule.severity,
        state="firing",
        value=value,
        limit=rule.limit,
        unit=UNITS[rule.watch],
        since_us=now_us,
    )


def cleared(alert: Alert, value: float, now_us: int) -> Alert:
    return msgspec.structs.replace(alert, state="cleared", value=value, until_us=now_us)
