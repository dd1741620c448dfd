"""Reads alert rules from the tables of a settings file; mistakes are told with file and line."""

from __future__ import annotations

from functools import partial
from typing import Any

from quiver.config.alert_rule import RULES_MAX, UNITS, AlertRule
from quiver.config.named_tables import SettingsFile, fields_of, take_tables
from quiver.config.setting import Setting, shown
from quiver.errors import InvalidSetting
from quiver.model.units import seconds, size_bytes

SECTION = "alerts.rules"
_NEEDED = ("watch", "limit")


def take_rules(file: SettingsFile) -> tuple[AlertRule, ...]:
    """The rules in the document, which has them no more afterwards."""
    tables = take_tables(file, SECTION, "rules", RULES_MAX)
    read = [_rule(file, name, table) for name, table in tables.items()]
    return tuple(rule for rule in read if rule is not None)


def _rule(file: SettingsFile, name: str, table: dict[str, Any]) -> AlertRule | None:
    wrong, place = len(file.mistakes), f"{SECTION}.{name}"
    values = fields_of(file, place, table, AlertRule, partial(_value, table.get("watch")))
    for key in _NEEDED:
        if key not in table:
            file.wrong(place, f"{place}: {key} is missing")
    if len(file.mistakes) > wrong:
        return None
    try:
        return AlertRule(name=name, **values)
    except InvalidSetting as error:
        file.wrong(place, f"{place}: {error.message}")
        return None


def _value(watch: Any, setting: Setting, value: Any) -> Any:
    if setting.name != "limit":
        return setting.from_toml(value)
    if isinstance(value, str):
        return _limit(value, watch)
    if type(value) not in (int, float):
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
