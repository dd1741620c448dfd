"""The columns of one batch as a filter wants them: numbers in numpy, texts in Arrow.

Each column is read once, whatever the number of tests on it. Nothing is copied but the values of a
header, which lie among those of all the others. Offsets and lengths are honoured, so a slice of a batch
is as good as a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quiver import arrow_compute as pc
from quiver.errors import InvalidBatch
from quiver.model.filter.column import TYPES, Column
from quiver.model.message import PRIORITY_DEFAULT

Mask = npt.NDArray[np.bool_]
_Integers = npt.NDArray[Any]

_DTYPES = {
    name: np.dtype(f"i{kind.bit_width // 8}")
    for name, kind in TYPES.items()
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind)
}


class Numbers(msgspec.Struct, frozen=True):
    """A column of numbers or times."""

    values: _Integers
    valid: Mask | None
    """``None``: none of them is null."""


class Texts(msgspec.Struct, frozen=True):
    """A column of texts, or the values of one header in those messages that have it."""

    values: pa.Array
    valid: Mask | None
    """``None``: none of them is null."""
    places: _Integers | None = None
    """The row of each value; ``None``: there is one for each row."""


class Rows:
    """One batch, and what its reader knows beside it."""

    __slots__ = ("_extra", "_found", "_rows", "count")

    def __init__(self, rows: pa.RecordBatch, extra: Mapping[str, pa.Array]) -> None:
        self.count: int = rows.num_rows
        self._rows = rows
        self._extra = extra
        self._found: dict[Column, Any] = {}

    def none(self) -> Mask:
        return np.zeros(self.count, np.bool_)

    def numbers(self, column: Column) -> Numbers | None:
        """The numbers of a column; ``None`` if the batch has none."""
        if column not in self._found:
            self._found[column] = self._read_numbers(column.name)
        numbers: Numbers | None = self._found[column]
        return numbers

    def texts(self, column: Column) -> Texts | None:
        """The texts of a column or header; ``None`` if the batch has none."""
        if column not in self._found:
            self._found[column] = self._read_texts(column)
        texts: Texts | None = self._found[column]
        return texts

    def spread(self, truths: Mask, texts: Texts) -> Mask:
        """What is true of the texts, as what is true of the rows."""
        if texts.places is None:
            return truths
        mask = self.none()
        mask[texts.places] = truths
        return mask

    def _array(self, name: str) -> pa.Array | None:
        array = self._extra.get(name)
        if array is None:
            place = self._rows.schema.get_field_index(name)
            if place < 0:
                return None
            array = self._rows.column(place)
        assert len(array) == self.count, f"{len(array)} of {name} for {self.count} messages"
        kind = TYPES[name]
        if array.type == kind:
            return array
        try:
            return array.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidBatch(f"column {name} must be {kind}: {error}") from error

    def _read_numbers(self, name: str) -> Numbers | None:
        array = self._array(name)
        default = PRIORITY_DEFAULT if name == "priority" else None
        if array is None:
            return None if default is None else Numbers(np.full(self.count, default), None)
        values, valid = (
            _integers(array.buffers()[1], _DTYPES[name], array.offset, self.count),
            valid_in(array),
        )
        if valid is not None and default is not None:
            return Numbers(np.where(valid, values, default), None)
        return Numbers(values, valid)

    def _read_texts(self, column: Column) -> Texts | None:
        array = self._array(column.name)
        if array is None:
            return None
        if column.header is None:
            return Texts(array, valid_in(array))
        return _header(array, column.header)


def valid_in(array: pa.Array) -> Mask | None:
    """Which values are not null; ``None`` if all are."""
    return _bits(array.buffers()[0], array.offset, len(array)) if array.null_count else None


def truths_of(array: pa.BooleanArray) -> Mask:
    """The booleans; whatever stands in place of a null is not meant."""
    return _bits(array.buffers()[1], array.offset, len(array))


def _header(headers: pa.MapArray, name: str) -> Texts | None:
    """The values of the first header of that name in each message that has one."""
    offsets = _integers(headers.buffers()[1], np.dtype("i4"), headers.offset, len(headers) + 1)
    start, end = int(offsets[0]), int(offsets[-1])
    names = headers.keys.slice(start, end - start)
    if not len(names):
        return None
    entries = truths_of(pc.equal(names, _scalar(name))).nonzero()[0] + start
    places = offsets.searchsorted(entries, "right") - 1
    is_kept = np.ones(len(entries), np.bool_)
    is_kept[1:] = places[1:] != places[:-1]
    valid = valid_in(headers)
    if valid is not None:
        is_kept &= valid[places]
    if not is_kept.all():
        entries, places = entries[is_kept], places[is_kept]
    if not len(entries):
        return None
    values = headers.items.take(pa.array(entries))
    return Texts(values, valid_in(values), places)


@lru_cache(maxsize=1024)
def _scalar(name: str) -> pa.Scalar:
    """Kept, because making one costs more than the comparison."""
    return pa.scalar(name, pa.string())


def _integers(buffer: pa.Buffer, dtype: np.dtype[Any], offset: int, count: int) -> _Integers:
    return np.frombuffer(buffer, dtype, count, offset * dtype.itemsize)


def _bits(buffer: pa.Buffer, offset: int, count: int) -> Mask:
    """A bitmap as booleans. Bitmaps of Arrow begin with the lowest bit."""
    packed = np.frombuffer(buffer, np.uint8)
    bits = np.unpackbits(packed, count=offset + count, bitorder="little")
    return bits[offset:].view(np.bool_)
