"""The columns that filters know, and what each holds.

A column of the language may be missing from a batch: its values are then null. A name outside the
language is a mistake, found when the filter is parsed.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec
import pyarrow as pa

from quiver.model.schema import COLUMNS, TIMESTAMP


class ColumnKind(Enum):
    """What a column holds, and so what it may be compared with."""

    TEXT = "text"
    BYTES = "bytes"
    """Compared with the UTF-8 bytes of a text."""
    NUMBER = "number"
    TIME = "time"

    @property
    def is_text(self) -> bool:
        return self in (ColumnKind.TEXT, ColumnKind.BYTES)


def _kind_of(stored: pa.DataType) -> ColumnKind:
    if pa.types.is_binary(stored):
        return ColumnKind.BYTES
    if pa.types.is_integer(stored):
        return ColumnKind.NUMBER
    return ColumnKind.TIME if pa.types.is_timestamp(stored) else ColumnKind.TEXT


_NOT_FILTERED = {"payload", "sequence"}
_EXTRA_TYPES = {
    "offset": pa.int64(),
    "partition": pa.int32(),
    "timestamp": TIMESTAMP,
    "attempts": pa.int64(),
}
TYPES: dict[str, pa.DataType] = {
    **{field.name: field.type for field in COLUMNS if field.name not in _NOT_FILTERED},
    **_EXTRA_TYPES,
}
KINDS = {name: _kind_of(stored) for name, stored in TYPES.items()}
EXTRA_COLUMNS = frozenset(_EXTRA_TYPES)
"""Columns that are not stored in a batch: whoever evaluates the filter supplies them."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]+")


class Column(msgspec.Struct, frozen=True):
    """A column, or one header of the messages."""

    name: str
    header: str | None = None

    @property
    def kind(self) -> ColumnKind:
        return KINDS[self.name]

    @property
    def described(self) -> str:
        """What the column is, in a sentence; a header's name may be anything, so it is left out."""
        what = {ColumnKind.NUMBER: "a whole number", ColumnKind.TIME: "a time"}.get(
            self.kind, "text"
        )
        return f"{self.name if self.header is None else 'a header'} is {what}"

    def __str__(self) -> str:
        if self.header is None:
            return self.name
        if _PLAIN_NAME.fullmatch(self.header):
            return f"headers.{self.header}"
        return f"headers[{quoted(self.header)}]"


def quoted(text: str) -> str:
    """The text as a literal of the language."""
    return "'" + text.replace("'", "''") + "'"
