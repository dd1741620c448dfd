"""The local partition that a mirror copies into: entries are stored as they are, and gaps as gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pyarrow as pa

from quiver.aio import retrieve_exception
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers.gaps import LogGaps
from quiver.broker.partition.producers.in_flight import Placed
from quiver.errors import CorruptLog, InvalidBatch, NotEnoughReplicas, ShuttingDown
from quiver.model.batch import Bytes, StoredBatch, UnstoredBatch
from quiver.model.envelope import (
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    MARKER,
    copy_batch,
    entries_in,
    seal_gap,
)
from quiver.model.guard import check_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.mirror.entry_mark import EntryMark, mark_of
from quiver.model.schema import ALL_COLUMNS, PAYLOAD

_SETTLE_S = 5.0
_TURN = 16
"""How many entries are submitted in a row: that takes about 0.2 ms."""
Checked = tuple[StoredBatch, UnstoredBatch, pa.RecordBatch | None]
"""An entry of the source, what is stored of it, and its rows if it has any."""


def checked_entries(data: Bytes) -> list[Checked]:
    """The entries of an answer; ``InvalidBatch`` if one is not what a node may store.

    May run in another thread.
    """
    try:
        entries = entries_in(data)
    except CorruptLog as error:
        raise InvalidBatch(f"the source sent bytes that are not intact: {error.message}") from error
    return [_checked(entry) for entry in entries]


def _checked(entry: StoredBatch) -> Checked:
    batch = copy_batch(entry)
    if entry.flags & MARKER:
        return entry, batch, None
    if entry.columns & ~ALL_COLUMNS or not entry.columns & PAYLOAD:
        raise InvalidBatch(f"an entry has unknown columns: {entry.columns:#x}")
    return entry, batch, check_batch(batch, BATCH_BYTES_MAX).rows


class PartitionCopy:
    """One caller at a time. After an error, begin again with another."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    @property
    def end(self) -> Offset:
        """Where the copy ends, stored or about to be."""
        return self._partition.log.staged_offset

    @property
    def gaps(self) -> LogGaps:
        """The offsets that the source had no messages for any more; kept up to date."""
        return self._partition.gaps

    async def settle(self) -> None:
        """Return when everything that was submitted is acknowledged."""
        log = self._partition.log
        if log.next_offset < log.staged_offset and not await log.wait_beyond(
            Offset(log.staged_offset - 1), _SETTLE_S
        ):
            raise NotEnoughReplicas("the last entries are not on enough replicas yet")

    async def last(self) -> EntryMark | None:
        """The last entry that is stored; ``None`` if there is none."""
        log = self._partition.log
        if log.stored_from >= log.next_offset:
            return None
        (entry, *_) = await log.read(Offset(log.next_offset - 1), 1, stored=True)
        return mark_of(entry)

    async def append(
        self, entries: Sequence[Checked], require_wanted: Callable[[], None]
    ) -> Stored:
        """Submit entries that follow on what is there. Wait for the result: then they are acknowledged.

        Others have their turn in between, such as the log, for its next commit. ``require_wanted``
        raises when no more is wanted.
        """
        stored = Stored()
        for count, (entry, batch, rows) in enumerate(entries, 1):
            if count % _TURN == 0:
                await asyncio.sleep(0)
            await self._partition.log.wait_for_room()
            require_wanted()
            placed = self._partition.restore(entry, batch, rows)
            if placed is not None:
                stored.add(placed)
        return stored

    async def skip(
        self, begin: Offset, end: Offset, now: Microseconds, require_wanted: Callable[[], None]
    ) -> None:
        """Store that the source has no messages at these offsets any more, as is known now."""
        gaps: list[Checked] = []
        at = begin
        while at < end:
            batch = seal_gap(min(BATCH_COUNT_MAX, end - at), now)
            gaps.append((_placed(batch, at), batch, None))
            at = Offset(at + batch.count)
        await (await self.append(gaps, require_wanted)).wait()


class Stored:
    """Entries that were submitted. They end in their order, so the last one ends when all have."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: asyncio.Future[Placed] | None = None

    def add(self, placed: asyncio.Future[Placed]) -> None:
        placed.add_done_callback(retrieve_exception)
        self._last = placed

    async def wait(self) -> None:
        """Return when all are acknowledged; raise what kept one from it."""
        if self._last is None:
            return
        await asyncio.wait([self._last])  # the log goes on with them if the caller is cancelled
        if self._last.cancelled():
            raise ShuttingDown()
        self._last.result()


def _placed(batch: UnstoredBatch, offset: Offset) -> StoredBatch:
    """A gap at its place. Its time is that of the entry before it."""
    return StoredBatch(
        base_offset=offset,
        count=batch.count,
        epoch=LeaderEpoch(0),
        append_time=Microseconds(0),
        durable_offset=offset,
        columns=batch.columns,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        sequence=batch.sequence,
        head=b"",
        body=b"",
        flags=batch.flags,
    )
