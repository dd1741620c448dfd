"""Entries of a backup, stored at their own offsets and times in a topic that is being restored.

The bytes of the messages stay as they are. An entry that is there already is passed over, so a restore
that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import asyncio

import pyarrow as pa

from quiver.broker.partition.partitions import Partitions
from quiver.broker.partition.producers.in_flight import Placed
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import CorruptLog, InvalidBatch, InvalidRequest, ShuttingDown
from quiver.log.disk.disk_threads import RunBlocking
from quiver.model.batch import Bytes, StoredBatch, UnstoredBatch
from quiver.model.envelope import BATCH_BYTES_MAX, entries_in, is_hidden, seal_batch, seal_gap
from quiver.model.guard import check_batch
from quiver.model.schema import ALL_COLUMNS, PAYLOAD


def require_restoring(record: TopicRecord) -> None:
    """``InvalidRequest`` unless messages of a backup are still to come."""
    if not record.is_restoring:
        raise InvalidRequest(
            f"topic {record.name!r} is not being restored: only a new topic can be restored into"
        )


class EntryRestorer:
    """``run_checks`` is for work that only takes a while."""

    def __init__(
        self, topics: TopicCatalog, partitions: Partitions, *, run_checks: RunBlocking
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._run_checks = run_checks

    async def restore(self, topic: str, index: int, data: Bytes) -> int:
        """Store the entries in ``data``; the next offset, once all of them are acknowledged."""
        record = self._topics.get(topic)
        require_restoring(record)
        checked = await self._run_checks(lambda: _checked(data))
        partition = await self._partitions.get(record, index)
        underway: list[asyncio.Future[Placed]] = []
        try:
            for entry, batch, rows in checked:
                await partition.log.wait_for_room()
                placed = partition.restore(entry, batch, rows)
                if placed is not None:
                    underway.append(placed)
        finally:
            if underway:
                await asyncio.wait(underway)
        for placed in underway:
            if placed.cancelled():
                raise ShuttingDown()
            placed.result()
        return int(partition.log.staged_offset)


def _checked(data: Bytes) -> list[tuple[StoredBatch, UnstoredBatch, pa.RecordBatch | None]]:
    """The entries, the same without their producers, and their rows.

    Ids of producers are given out anew, so an old one would be taken for another producer's. What a
    backup has belongs to no transaction any more. Offsets without messages have no rows.
    ``InvalidBatch`` if an entry is not what a node may store.
    """
    try:
        entries = entries_in(data)
    except CorruptLog as error:
        raise InvalidBatch(error.message) from error
    checked: list[tuple[StoredBatch, UnstoredBatch, pa.RecordBatch | None]] = []
    for entry in entries:
        if is_hidden(entry):
            checked.append((entry, seal_gap(entry.count), None))
            continue
        if entry.columns & ~ALL_COLUMNS or not entry.columns & PAYLOAD:
            raise InvalidBatch(f"an entry has unknown columns: {entry.columns:#x}")
        batch = seal_batch(entry.body, entry.count, entry.columns)
        checked.append((entry, batch, check_batch(batch, BATCH_BYTES_MAX).rows))
    return checked
