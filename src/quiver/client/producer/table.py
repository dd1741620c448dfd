"""Cuts Arrow tables into batches for partitions.

A row with a key goes to the key's partition, a row with a sequence of a named producer to the sequence's,
and the other rows stay together. Rows of a partition keep their order. Pieces are bounded by rows and
bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from quiver.client.producer.delivery import BatchPromise, Delivery, Published, outcomes
from quiver.errors import InvalidBatch, InvalidRequest, QuiverError
from quiver.model.key_hash import KeyRouter

_PLACING = frozenset(("key", "sequence", "dedup_id"))
"""The columns that decide on a row's partition."""


class Piece(msgspec.Struct, frozen=True):
    """Rows for one batch of one partition, and which rows of the table they were."""

    partition: int | None
    """``None``: any will do."""
    rows: Any
    numbers: Sequence[int]


class TableDelivery:
    """The pending result of the rows of a table. Wait for it with ``result()``, or with ``await``."""

    def __init__(self, row_count: int) -> None:
        self._row_count = row_count
        self._parts: list[tuple[BatchPromise, Sequence[int]]] = []

    def add(self, promise: BatchPromise, numbers: Sequence[int]) -> None:
        self._parts.append((promise, numbers))

    def done(self) -> bool:
        """Whether all rows are stored or have failed."""
        return all(promise.is_done() for promise, _ in self._parts)

    def result(self, timeout: float | None = None) -> list[Published]:
        """Block until all rows are stored, and return their positions in order."""
        for promise, _ in self._parts:
            promise.wait(timeout)
        return self._published()

    async def wait(self) -> list[Published]:
        """Wait until all rows are stored, and return their positions in order, as ``await`` does."""
        await self._settled()
        return self._published()

    async def outcomes(self) -> list[Published | QuiverError]:
        """Wait until all rows are stored or failed; where each is stored, or why it is not."""
        await self._settled()
        found: list[Any] = [None] * self._row_count
        for promise, numbers in self._parts:
            sent = [Delivery(promise, place) for place in range(len(numbers))]
            for number, one in zip(numbers, outcomes(sent), strict=True):
                found[number] = one
        return found

    async def stored(self) -> int:
        """Wait until all rows are stored, and return their number."""
        await self._settled()
        for promise, _ in self._parts:
            promise.published_at(())
        return self._row_count

    async def _settled(self) -> None:
        for promise, _ in self._parts:
            if not promise.is_done():
                await promise.future()

    def __await__(self) -> Generator[Any, None, list[Published]]:
        return self.wait().__await__()

    def _published(self) -> list[Published]:
        published: list[Any] = [None] * self._row_count
        for promise, _ in self._parts:
            promise.is_observed = True
        for promise, numbers in self._parts:
            placed = promise.published_at(range(len(numbers)))
            for number, one in zip(numbers, placed, strict=True):
                published[number] = one
        return published


def checked_table(data: pa.RecordBatch | pa.Table) -> pa.Table:
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if not isinstance(data, pa.Table):
        raise InvalidRequest(
            f"{type(data).__name__} is not a table; give a pyarrow Table or RecordBatch"
        )
    if "payload" not in data.schema.names:
        raise InvalidBatch("the table has no column 'payload'")
    return data


def numbers_in(rows: pa.RecordBatch) -> list[int | None] | None:
    """The user's numbers of the rows, if they have any."""
    if "sequence" not in rows.schema.names or rows.column("sequence").null_count == len(rows):
        return None
    numbers: list[int | None] = _cast(rows.column("sequence"), pa.int64(), "sequence").to_pylist()
    return numbers


def partitions_of(rows: pa.RecordBatch, router: KeyRouter) -> list[int | None] | None:
    """The partition of each row: by its key, its number or its id, else none in particular.

    ``None`` if that is so of all rows.
    """
    if _PLACING.isdisjoint(rows.schema.names):
        return None
    if len(owners := router.ranges) == 1:
        return [*owners] * len(rows)  # those without a key keep their places among the others
    places: list[int | None] = [None] * len(rows)
    if "key" in rows.schema.names and rows.column("key").null_count < len(rows):
        keys = _cast(rows.column("key"), pa.binary(), "key").to_pylist()
        places = [None if key is None else router.partition(key) for key in keys]
    numbers = numbers_in(rows)
    if numbers is not None:
        for row, number in enumerate(numbers):
            if places[row] is None and number is not None:
                places[row] = router.partition(number.to_bytes(8, "little", signed=True))
    if "dedup_id" in rows.schema.names and rows.column("dedup_id").null_count < len(rows):
        ids = _cast(rows.column("dedup_id"), pa.string(), "dedup_id").to_pylist()
        for row, one in enumerate(ids):
            if places[row] is None and one is not None:
                places[row] = router.partition(one.encode())
    return places


def pieces(
    rows: pa.RecordBatch,
    places: list[int | None] | None,
    first: int,
    *,
    bytes_max: int,
    count_max: int,
) -> Iterator[Piece]:
    """The rows by partition and within bounds; ``first`` is the number of their first row."""
    groups = {None: range(len(rows))} if places is None else _grouped(places)
    for place, members in groups.items():
        is_whole = len(groups) == 1
        chosen = rows if is_whole else rows.take(pa.array(members, pa.int64()))
        numbers = range(first, first + len(rows)) if is_whole else [first + row for row in members]
        at = 0
        for chunk in _chunks(chosen, bytes_max, count_max):
            yield Piece(place, chunk, numbers[at : at + len(chunk)])
            at += len(chunk)


def _grouped(places: list[int | None]) -> Mapping[int | None, Sequence[int]]:
    """The rows of each partition."""
    groups: dict[int | None, list[int]] = {}
    for row, place in enumerate(places):
        groups.setdefault(place, []).append(row)
    return groups


def _chunks(rows: pa.RecordBatch, bytes_max: int, count_max: int) -> Iterator[pa.RecordBatch]:
    """Halves, and halves of halves, until each is within bounds or a single row."""
    if len(rows) <= count_max and (rows.nbytes <= bytes_max or len(rows) == 1):
        if len(rows):
            yield rows
        return
    middle = len(rows) // 2
    yield from _chunks(rows.slice(0, middle), bytes_max, count_max)
    yield from _chunks(rows.slice(middle), bytes_max, count_max)


def _cast(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidBatch(f"column {name} must be {kind}: {error}") from error
