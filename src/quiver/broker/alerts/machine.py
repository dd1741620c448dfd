"""Decides when alerts fire and clear: a pure machine over samples.

An alert fires when its value has been beyond the limit for as long as the rule asks. It clears when the
value has been back behind the lower limit for long enough, so a value that swings around its limit
fires once. An alert about something that was so before the node looked is shown and not reported again. One
that goes on at another node ends here without a report.
Invariant: reports about one subject alternate between firing and cleared, from all nodes together. Time comes
in with each call.
"""

from __future__ import annotations

from collections import Counter

from quiver.broker.alerts.alert import Alert, cleared, fired
from quiver.broker.alerts.readings import Reader
from quiver.config.alert_rule import AlertRule
from quiver.metrics.sample import NodeSample

FIRING_MAX = 1000
"""How many alerts fire at a time. What comes on top of that waits until there is room."""


class AlertMachine:
    def __init__(self, rules: tuple[AlertRule, ...]) -> None:
        self._rules = [_Rule(rule) for rule in rules]

    @property
    def firing(self) -> list[Alert]:
        """The worst first, then the newest."""
        alerts = [alert for rule in self._rules for alert in rule.firing.values()]
        return sorted(alerts, key=lambda one: (one.severity != "critical", -one.since_us))

    @property
    def firing_by_severity(self) -> dict[str, int]:
        return {"warning": 0, "critical": 0} | Counter(one.severity for one in self.firing)

    def evaluate(self, sample: NodeSample, now: float) -> list[Alert]:
        """What fires or clears with this sample, taken at ``now`` on a clock that never goes back."""
        changes: list[Alert] = []
        room = FIRING_MAX - sum(len(rule.firing) for rule in self._rules)
        for rule in self._rules:
            for alert in rule.evaluate(sample, now, room):
                room += -1 if alert.state == "firing" else 1
                changes.append(alert)
        return changes


class _Rule:
    """One rule and its alerts, by subject."""

    def __init__(self, rule: AlertRule) -> None:
        self.firing: dict[str, Alert] = {}
        self._rule = rule
        self._reader = Reader(rule)
        self._bad_since: dict[str, float] = {}
        self._good_since: dict[str, float] = {}

    def evaluate(self, sample: NodeSample, now: float, room: int) -> list[Alert]:
        readings = self._reader.read(sample, now)
        changes = self._clear(readings, sample.time_us, now)
        room += len(changes)
        beyond = {subject: value for subject, value in readings.items() if self._is_bad(value)}
        room -= self._recover(beyond, room)
        self._bad_since = {
            subject: self._bad_since.get(subject, now)
            for subject in beyond
            if subject not in self.firing
        }
        for subject, since in list(self._bad_since.items()):
            if now - since >= self._rule.for_s and room > 0:
                room -= 1
                alert = fired(self._rule, subject, beyond[subject], sample.time_us)
                self.firing[subject] = alert
                del self._bad_since[subject]
                changes.append(alert)
        return changes

    def _recover(self, beyond: dict[str, float], room: int) -> int:
        """Alerts that fired before this node looked go on, and are not reported again; how many."""
        recovered = [
            fired(self._rule, subject, beyond[subject], since_us)
            for subject, since_us in self._reader.recovered.items()
            if subject in beyond and subject not in self.firing
        ][: max(0, room)]
        self.firing |= {alert.subject: alert for alert in recovered}
        return len(recovered)

    def _clear(self, readings: dict[str, float], time_us: int, now: float) -> list[Alert]:
        changes = []
        for subject in self._reader.moved & self.firing.keys():
            del self.firing[subject]  # it goes on elsewhere, and is told of there
            self._good_since.pop(subject, None)
        for subject, alert in list(self.firing.items()):
            value = readings.get(subject, 0.0)
            if subject in readings and not self._is_good(value):
                self._good_since.pop(subject, None)
                continue
            if now - self._good_since.setdefault(subject, now) >= self._rule.clear_for_s:
                del self.firing[subject], self._good_since[subject]
                changes.append(cleared(alert, value, time_us))
        return changes

    def _is_bad(self, value: float) -> bool:
        return value < self._rule.limit if self._rule.is_below else value > self._rule.limit

    def _is_good(self, value: float) -> bool:
        limit = self._rule.clear_limit
        return value >= limit if self._rule.is_below else value <= limit
