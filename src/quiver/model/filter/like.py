"""Patterns of ``like``: ``%`` is any run of characters, ``_`` any one, ``\\`` takes their meaning away.

A pattern becomes the cheapest Arrow kernel that does the same: equality, beginning, end, substring,
or at last a regular expression. Arrow's own ``match_like`` is not used, because it misreads an escaped
backslash at a pattern's end.

Bounds keep the regular expression above 100 MB/s on the worst text: behind a ``%``, each ``_`` can
double the states of its automaton.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from quiver import arrow_compute as pc
from quiver.model.filter.mistake import Mistake

PATTERN_MAX = 256
ONES_MAX = 10

Kernel = Callable[[pa.Array], pa.Array]

_ANY, _ONE = "%", "_"
_FUNCTIONS = {
    "%": "starts_with",
    "x%": "starts_with",
    "%x": "ends_with",
    "%x%": "match_substring",
}
"""By the shape of a pattern, the names of kernels that do without a regular expression."""
_PART = re.compile(r"\\(?P<escaped>.)|(?P<any>%+)|(?P<one>_)|(?P<plain>[^\\%_]+)", re.DOTALL)
_WELL_ESCAPED = re.compile(r"(?:[^\\]|\\.)*+", re.DOTALL)


def check_pattern(pattern: str, position: int) -> None:
    """Refuse a pattern that means nothing or may cost too much."""
    if len(pattern) > PATTERN_MAX:
        raise Mistake(position, f"a pattern has at most {PATTERN_MAX} characters")
    if not _WELL_ESCAPED.fullmatch(pattern):
        raise Mistake(position, "the pattern ends in a backslash; write it twice to mean itself")
    wildcards = [text for text, is_wildcard in _parts(pattern) if is_wildcard]
    if _ANY in wildcards and wildcards.count(_ONE) > ONES_MAX:
        raise Mistake(position, f"a pattern with % may contain _ at most {ONES_MAX} times")


def like_kernel(pattern: str, kind: pa.DataType) -> Kernel:
    """The kernel for a pattern that was checked, on arrays of this type."""
    parts = _parts(pattern)
    shape = _shape(parts)
    words = "".join(text for text, is_wildcard in parts if not is_wildcard)
    if shape in ("", "x"):
        scalar = pa.scalar(words if pa.types.is_string(kind) else words.encode(), kind)
        return lambda values: pc.equal(values, scalar)
    if shape in _FUNCTIONS:
        return _with_pattern(getattr(pc, _FUNCTIONS[shape]), words)
    return _with_pattern(pc.match_substring_regex, _regex(parts))


def is_general(pattern: str) -> bool:
    """Whether only a regular expression can match it, which costs ten times as much as the others."""
    shape = _shape(_parts(pattern))
    return shape not in ("", "x", *_FUNCTIONS)


def _shape(parts: list[tuple[str, bool]]) -> str:
    return "".join(text if is_wildcard else "x" for text, is_wildcard in parts)


def _with_pattern(function: Callable[..., Any], pattern: str) -> Kernel:
    options = pc.MatchSubstringOptions(pattern)
    return lambda values: function(values, options=options)


def _parts(pattern: str) -> list[tuple[str, bool]]:
    """Runs of plain text, and wildcards (true), in turn; runs of ``%`` count as one."""
    parts: list[tuple[str, bool]] = []
    for match in _PART.finditer(pattern):
        wildcard = _ANY if match["any"] else match["one"]
        text = match["escaped"] or match["plain"]
        if wildcard:
            parts.append((wildcard, True))
        elif parts and not parts[-1][1]:
            parts[-1] = (parts[-1][0] + text, False)
        else:
            parts.append((text, False))
    return parts


def _regex(parts: list[tuple[str, bool]]) -> str:
    """The whole pattern as an RE2 expression. Arrow reads it byte by byte for columns of bytes."""
    wildcards = {_ANY: ".*", _ONE: "."}
    body = "".join(
        wildcards[text] if is_wildcard else _verbatim(text) for text, is_wildcard in parts
    )
    return rf"(?s)\A{body}\z"


def _verbatim(text: str) -> str:
    return "".join(
        character if character.isalnum() or not character.isascii() else f"\\x{ord(character):02x}"
        for character in text
    )
