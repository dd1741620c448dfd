"""In which line of a TOML file a key is set, which ``tomllib`` does not tell.

It knows tables, dotted keys and keys inside inline tables (found at the line where those begin).
It is for messages only: for a key it cannot find, it says nothing rather than something wrong.
"""

from __future__ import annotations

import re

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_PATH = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_PATH})\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(rf"\s*({_PATH})\s*=")


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line, counted from 1, of each table and key, by its path from the top."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.fullmatch(line):
            table = _parts(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            path = table + _parts(key[1])
            for depth in range(len(table) + 1, len(path) + 1):
                lines.setdefault(path[:depth], number)
    return lines


def line_of(lines: dict[tuple[str, ...], int], name: str) -> int | None:
    """The line of a setting such as ``limits.connections_max``, or of the table it is in."""
    path = tuple(name.split("."))
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, path))
