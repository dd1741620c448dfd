"""Reads alert rules from the tables of a settings file; mistakes are told with file and line."""

from __future__ import annotations

import difflib
from typing import Any

from quiver.config.alert_rule import RULES_MAX, UNITS, AlertRule
from quiver.config.setting import Setting, settings_of, shown
from quiver.config.toml_lines import line_of
from quiver.errors import InvalidSetting
from quiver.model.units import seconds, size_bytes

SECTION = "alerts.rules"
_NEEDED = ("watch", "limit")


def take_rules(
    document: dict[str, Any], path: str, lines: dict[tuple[str, ...], int], mistakes: list[str]
) -> tuple[AlertRule, ...]:
    """The rules in the document, which has them no more afterwards."""
    alerts = document.get("alerts")
    tables = alerts.pop("rules", {}) if isinstance(alerts, dict) else {}
    if not isinstance(tables, dict) or any(not isinstance(one, dict) for one in tables.values()):
        mistakes.append(f"{_place(path, lines, SECTION)}: rules are tables: write [{SECTION}.NAME]")
        return ()
    if len(tables) > RULES_MAX:
        place = _place(path, lines, SECTION)
        mistakes.append(f"{place}: there are at most {RULES_MAX:,} rules, not {len(tables):,}")
        return ()
    read = [_rule(name, table, path, lines, mistakes) for name, table in tables.items()]
    return tuple(rule for rule in read if rule is not None)


def _rule(
    name: str,
    table: dict[str, Any],
    path: str,
    lines: dict[tuple[str, ...], int],
    mistakes: list[str],
) -> AlertRule | None:
    known = {setting.name: setting for setting in settings_of(AlertRule) if setting.name != "name"}
    values: dict[str, Any] = {}
    wrong = len(mistakes)
    for key, value in table.items():
        try:
            values[key] = _value(key, value, table.get("watch"), known)
        except InvalidSetting as error:
            place = _place(path, lines, f"{SECTION}.{name}.{key}")
            mistakes.append(f"{place}: {SECTION}.{name}: {error.message}")
    place = _place(path, lines, f"{SECTION}.{name}")
    mistakes += [
        f"{place}: {SECTION}.{name}: {key} is missing" for key in _NEEDED if key not in table
    ]
    if len(mistakes) > wrong:
        return None
    try:
        return AlertRule(name=name, **values)
    except InvalidSetting as error:
        mistakes.append(f"{place}: {SECTION}.{name}: {error.message}")
        return None


def _value(key: str, value: Any, watch: Any, known: dict[str, Setting]) -> Any:
    setting = known.get(key)
    if setting is None:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
        raise InvalidSetting(f"there is no {key!r}{hint}")
    if key == "limit" and isinstance(value, str):
        return _limit(value, watch)
    if key == "limit" and type(value) not in (int, float):
        raise InvalidSetting(f"limit must be a number, not {shown(value)}")
    return setting.from_toml(value)


def _limit(text: str, watch: Any) -> float:
    """Text with a unit, where what is watched has one."""
    unit = UNITS.get(watch)
    if unit == "seconds":
        return seconds(text)
    if unit == "bytes":
        return float(size_bytes(text))
    raise InvalidSetting(f"limit must be a number, not {shown(text)}")


def _place(path: str, lines: dict[tuple[str, ...], int], name: str) -> str:
    line = line_of(lines, name)
    return path if line is None else f"{path}:{line}"
