"""The names under which a setting may be given.

A setting has one name of its own. It may also be given as descriptions print it: a member of a group
by its whole name (``retention.age``), and a time with or without its unit (``segment_age`` and
``segment_age_s``, ``visibility_s`` and ``visibility``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from quiver.errors import InvalidSetting
from quiver.model.setting import Setting, Unit, fields_of


def own_names(structs: tuple[type[Struct], ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their own names. Names that are not known stay as they are."""
    aliases = _aliases(structs)
    found: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        group, dot, field = str(name).partition(".")
        known = aliases.get(group if dot else str(name))
        if known is None or (dot and known.group is None):
            found[name] = value
        elif dot:
            parts.setdefault(known.field, {})[field] = value
        else:
            if known.field in found:
                raise InvalidSetting(f"{known.field} is given twice", setting=known.field)
            found[known.field] = _named(known, value)
    for name, part in parts.items():
        known = aliases[name]
        whole = found.get(name) or {}
        if not isinstance(whole, dict):
            raise InvalidSetting(f"{name} is given twice", setting=name)
        found[name] = {**whole, **_named(known, part)}
    return found


def _named(one: Setting, value: Any) -> Any:
    if one.group is None or not isinstance(value, dict):
        return value
    return own_names((one.group,), value)


@cache
def _aliases(structs: tuple[type[Struct], ...]) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for one in (one for struct in structs for one in fields_of(struct)):
        found[one.field] = one
        if one.group is None and one.unit is Unit.SECONDS:
            plain = one.field.removesuffix("_s")
            found |= {plain: one, f"{plain}_s": one}
    return found
