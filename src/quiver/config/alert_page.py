"""The reference page of alert rules, made from their definitions: ``python -m quiver.config.alert_page``."""

from __future__ import annotations

from quiver.config.alert_rule import DEFAULT_RULES, MEANING, UNITS, WATCHES, AlertRule
from quiver.config.document import bounds_of
from quiver.config.setting import settings_of, shown_size

_PAGE = """\
# Alert rules

A rule is a table `[alerts.rules.NAME]` in the settings file. A rule with the name of a default rule replaces
it; `alerts.defaults = false` turns all default rules off. A node with a mistake in a rule does not start, and
prints the file and line.

## What a rule can watch

| `watch` | `limit` in | the alert fires when |
| --- | --- | --- |
"""
_FIELDS = """
## Fields of a rule

| field | default | bounds | meaning |
| --- | --- | --- | --- |
"""
_DEFAULTS = """
`limit` may be written with a unit where it is a time (`"10m"`) or a size (`"20GiB"`).

## Default rules

| rule | `watch` | `limit` | `for_s` | `clear_for_s` | `clear_ratio` | `severity` |
| --- | --- | --- | --- | --- | --- | --- |
"""


def reference_page() -> str:
    watches = "".join(f"| `{one}` | {UNITS[one]} | {MEANING[one]} |\n" for one in WATCHES)
    rules = "".join(map(_rule, DEFAULT_RULES))
    return f"{_PAGE}{watches}{_FIELDS}{_fields()}{_DEFAULTS}{rules}"


def _fields() -> str:
    needed = ("watch", "limit")
    return "".join(
        f"| `{one.name}` | {'' if one.name in needed else f'`{one.default}`'} | {bounds_of(one)} "
        f"| {one.description} |\n"
        for one in settings_of(AlertRule)
        if one.name != "name"
    )


def _rule(rule: AlertRule) -> str:
    return (
        f"| `{rule.name}` | `{rule.watch}` | {limit_text(rule)} | {rule.for_s:g} | "
        f"{rule.clear_for_s:g} | {rule.clear_ratio:g} | {rule.severity} |\n"
    )


def limit_text(rule: AlertRule) -> str:
    """The limit with its unit."""
    match UNITS[rule.watch]:
        case "bytes":
            return shown_size(int(rule.limit))
        case "seconds":
            return f"{rule.limit:,g} s"
        case "share":
            return f"{rule.limit:g}"
    return f"{rule.limit:,.0f}"


if __name__ == "__main__":
    print(reference_page(), end="")
