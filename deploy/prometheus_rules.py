"""The rules that exist from the start, for those who let Prometheus judge instead of the node."""

from __future__ import annotations

import json
from collections.abc import Callable

from quiver.broker.alerts.readings import (
    DEAD_LETTERS_WINDOW_S,
    ERRORS_WINDOW_S,
    UNREAD_LOST_WINDOW_S,
)
from quiver.config.alert_page import limit_text
from quiver.config.alert_rule import DEFAULT_RULES, MEANING, AlertRule, Watch
from quiver.metrics import definitions
from quiver.metrics.definitions import Definition

_HEAD = """\
# Quiver's alerts as Prometheus rules. Generated: change the definitions, then run `make deploy`.
groups:
  - name: quiver
    rules:
"""
_NO_DEAD_LETTERS = 'subscription!~".+\\\\.dlq"'


def _of_subscriptions(one: Definition) -> str:
    return f"{one.name}{{{_NO_DEAD_LETTERS}}}"


def _rate(one: Definition) -> str:
    return f"sum by (instance) (rate({one.name}[{ERRORS_WINDOW_S:.0f}s]))"


def _lag_growing(rule: AlertRule) -> str:
    grows = f"deriv({_of_subscriptions(definitions.LAG)}[2m]) > bool 0"
    return f"min_over_time(({grows})[{rule.limit:.0f}s:30s]) == 1"


_EXPRESSIONS: dict[Watch, Callable[[AlertRule], str]] = {
    "depth": lambda rule: f"{_of_subscriptions(definitions.LAG)} > {rule.limit:.0f}",
    "oldest_age": lambda rule: f"{_of_subscriptions(definitions.OLDEST_AGE)} > {rule.limit:g}",
    "lag_growing": _lag_growing,
    "dead_letters": lambda rule: f'{definitions.MESSAGES.name}{{state="dead"}} > {rule.limit:.0f}',
    "dead_letter_arrivals": lambda rule: (
        f"increase({definitions.DEAD_LETTERED.name}[{DEAD_LETTERS_WINDOW_S:.0f}s]) > {rule.limit:.0f}"
    ),
    "unread_lost": lambda rule: (
        f"increase({definitions.UNREAD_LOST.name}[{UNREAD_LOST_WINDOW_S:.0f}s]) > {rule.limit:.0f}"
    ),
    "error_rate": lambda rule: (
        f"{_rate(definitions.ERRORS)} / {_rate(definitions.REQUESTS)} > {rule.limit:g}"
    ),
    "dedup_forgotten": lambda rule: (
        f"increase({definitions.DEDUP_FORGOTTEN.name}[5m]) > {rule.limit:.0f}"
    ),
    "transaction_age": lambda rule: f"{definitions.TRANSACTION_AGE.name} > {rule.limit:g}",
    "disk_low": lambda rule: f"{definitions.DISK_FREE.name} < {rule.limit:.0f}",
    "under_replicated": lambda rule: f"{definitions.REPLICAS_MISSING.name} > {rule.limit:.0f}",
    "mirror_lag": lambda rule: f"{definitions.MIRROR_LAG_SECONDS.name} > {rule.limit:g}",
    "mirror_gaps": lambda rule: (
        f"increase({definitions.MIRROR_GAPS.name}[{UNREAD_LOST_WINDOW_S:.0f}s]) > {rule.limit:.0f}"
    ),
    "mirror_broken": lambda rule: (
        f"{definitions.MIRROR_BROKEN.name} > {rule.limit:.0f} "
        f"or {definitions.MIRROR_SOURCE_BROKEN.name} > {rule.limit:.0f}"
    ),
    "node_down": lambda rule: f"{definitions.NODES_DOWN.name} > {rule.limit:.0f}",
}


def rules() -> str:
    return _HEAD + "".join(map(_rule, DEFAULT_RULES)) + _unreachable()


def _rule(rule: AlertRule) -> str:
    name = "Quiver" + "".join(word.capitalize() for word in rule.name.split("-"))
    meaning = MEANING[rule.watch].replace("`limit`", limit_text(rule))
    return _entry(name, _EXPRESSIONS[rule.watch](rule), rule.for_s, rule.severity, meaning)


def _unreachable() -> str:
    """What no node can tell of itself."""
    meaning = "Prometheus cannot scrape the node."
    return _entry("QuiverUnreachable", 'up{job="quiver"} == 0', 30, "critical", meaning)


def _entry(name: str, expression: str, for_s: float, severity: str, summary: str) -> str:
    return (
        f"      - alert: {name}\n"
        f"        expr: {json.dumps(expression)}\n"
        f"        for: {for_s:.0f}s\n"
        f"        labels:\n          severity: {severity}\n"
        f"        annotations:\n          summary: {json.dumps(summary)}\n"
    )
