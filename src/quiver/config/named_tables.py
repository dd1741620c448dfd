"""Tables of a settings file to which people give names, such as ``[alerts.rules.NAME]``.

They are taken out of the document before its settings are read; mistakes are told with file and line.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from quiver.config.setting import Setting, settings_of
from quiver.config.toml_lines import line_of
from quiver.errors import InvalidSetting


class SettingsFile(Struct, frozen=True):
    """A file that is read, and what is wrong with it so far."""

    path: str
    document: dict[str, Any]
    lines: dict[tuple[str, ...], int]
    mistakes: list[str]

    def wrong(self, name: str, what: str) -> None:
        """Note a mistake at the line of this key."""
        line = line_of(self.lines, name)
        place = self.path if line is None else f"{self.path}:{line}"
        self.mistakes.append(f"{place}: {what}")


def take_tables(file: SettingsFile, section: str, what: str, most: int) -> dict[str, Any]:
    """The tables of a section by name; the document has them no more afterwards."""
    parent, _, key = section.rpartition(".")
    holder = file.document.get(parent)
    tables = holder.pop(key, {}) if isinstance(holder, dict) else {}
    if not isinstance(tables, dict) or any(not isinstance(one, dict) for one in tables.values()):
        file.wrong(section, f"{what} are tables: write [{section}.NAME]")
        return {}
    if len(tables) > most:
        file.wrong(section, f"there are at most {most:,} {what}, not {len(tables):,}")
        return {}
    return tables


def fields_of(
    file: SettingsFile,
    table: str,
    given: dict[str, Any],
    kind: type[Struct],
    read: Callable[[Setting, Any], Any] = Setting.from_toml,
) -> dict[str, Any]:
    """The values of a table, as the struct has them; ``name`` is the table's own and no key in it."""
    known = {setting.name: setting for setting in settings_of(kind) if setting.name != "name"}
    values: dict[str, Any] = {}
    for key, value in given.items():
        try:
            values[key] = read(_setting(key, known), value)
        except InvalidSetting as error:
            file.wrong(f"{table}.{key}", f"{table}: {error.message}")
    return values


def _setting(key: str, known: dict[str, Setting]) -> Setting:
    if key in known:
        return known[key]
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; the settings are {', '.join(known)}"
    raise InvalidSetting(f"there is no setting {key!r}{hint}")
