"""Literals: a value in the text, as what the column beside it holds.

Text is kept as it is, whole numbers fit 64 bits, and times are microseconds since 1970 in UTC.
"""

from __future__ import annotations

import re
from datetime import datetime

from quiver.model.filter.column import Column, ColumnKind, quoted
from quiver.model.filter.lexer import Token, TokenKind
from quiver.model.filter.mistake import Mistake
from quiver.model.guard import TIME_MAX, TIME_MIN
from quiver.model.message import datetime_of, time_us_of

Value = str | int

_WHOLE = re.compile(r"-?[0-9]+")
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_HOW_TO_WRITE = {
    ColumnKind.TEXT: "write the value in single quotes",
    ColumnKind.BYTES: "write the value in single quotes",
    ColumnKind.NUMBER: "write the value without quotes and without a fraction",
    ColumnKind.TIME: "write the value as '2026-01-01T00:00:00Z'",
}


def value_of(token: Token, column: Column) -> Value:
    """The literal as a value of the column's kind."""
    if column.kind.is_text and token.kind is TokenKind.TEXT:
        return token.text
    if (
        column.kind is ColumnKind.NUMBER
        and token.kind is TokenKind.NUMBER
        and _WHOLE.fullmatch(token.text)
    ):
        return _number(token)
    if column.kind is ColumnKind.TIME and token.kind is TokenKind.TEXT:
        time_us = _time_us(token.text)
        if time_us is not None:
            return time_us
    raise Mistake(token.position, f"{column.described}: {_HOW_TO_WRITE[column.kind]}")


def literal_of(value: Value, column: Column) -> str:
    """The value as text that ``value_of`` reads as the same value."""
    if column.kind is ColumnKind.TIME:
        return quoted(datetime_of(int(value)).isoformat().replace("+00:00", "Z"))
    return quoted(value) if isinstance(value, str) else str(value)


def _number(token: Token) -> int:
    number = int(token.text)
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise Mistake(token.position, "the number does not fit 64 bits")
    return number


def _time_us(text: str) -> int | None:
    try:
        time_us = time_us_of(datetime.fromisoformat(text))
    except ValueError:
        return None
    return time_us if TIME_MIN <= time_us <= TIME_MAX else None
