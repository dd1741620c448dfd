"""What a failback does with the partitions of this node: marks to compare, what is kept aside, and the cut.

Every step can be repeated, and is noted in the topic's record when it is done. Nothing is cut before all of
it is stored in the topic beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog
from msgspec.structs import replace

from quiver.broker.definitions.topics import Topics
from quiver.broker.mirror.partition_copy import PartitionCopy
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions
from quiver.broker.partition.producers.open_transactions import OpenTransactions
from quiver.broker.remote.partition_router import RemoteBroker
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import NotLeader, PartitionUnavailable
from quiver.log.log import Log
from quiver.model.batch import StoredBatch
from quiver.model.envelope import MARKER, is_hidden, seal_gap, store_batch
from quiver.model.ids import LeaderEpoch, Offset
from quiver.model.mirror.failback import Failback, FailbackPartition

_READ_BYTES = 4 << 20

logger = structlog.get_logger()

Restore = Callable[[str, int, bytes], Awaitable[int]]
"""Stores entries at their own offsets in a partition that this node leads."""


class FailbackPartitions:
    """``remote`` are the other nodes of the cluster, if there are any."""

    def __init__(
        self,
        catalog: TopicCatalog,
        topics: Topics,
        partitions: Partitions,
        restore: Restore,
        remote: RemoteBroker | None,
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._partitions = partitions
        self._restore = restore
        self._remote = remote

    def under_way(self, mirror: str) -> list[TopicRecord]:
        """The topics that are about to be copies of a mirror."""
        found = [one for one in self._catalog.topics() if one.failback is not None]
        return [one for one in found if one.source is not None and one.source.mirror == mirror]

    def led(self, record: TopicRecord) -> list[int]:
        return self._partitions.led(record)

    # ------------------------------------------------------------------ comparing

    async def settled_log(self, record: TopicRecord, index: int) -> Log:
        """The log of a partition, once nothing of it is under way and no transaction is open."""
        partition = await self._partitions.get(record, index)
        await PartitionCopy(partition).settle()
        if partition.committed.next_offset < partition.log.next_offset:
            raise PartitionUnavailable(
                "a transaction is open: the failback goes on when it has ended"
            )
        return partition.log

    async def compared(self, record: TopicRecord, index: int, log: Log, common: Offset) -> None:
        """The log was the source's up to ``common``: note what is to be kept aside."""
        end = log.next_offset
        cut = await _cut(log, common)
        is_same = cut == end
        part = FailbackPartition(cut=cut, end=end, is_kept=is_same, is_cut=is_same)
        await self._topics.note_failback(record, index, part)

    # ------------------------------------------------------------------ keeping aside

    async def keep(self, record: TopicRecord, index: int) -> None:
        """Store in the topic beside it what the source does not have."""
        failback, part = _of(record, index)
        partition = await self._partitions.get(record, index)
        if partition.log.staged_offset != part.end:
            await self._topics.note_failback(record, index, None)  # it is compared again
            return
        cuts = [0 if one is None else one.cut for one in failback.partitions]
        aside = await self._topics.set_aside(record, failback.aside, cuts)
        await self._copy(partition, part, aside, index)
        await self._topics.note_failback(record, index, replace(part, is_kept=True))
        logger.warning(
            "messages that the source never got are kept aside",
            topic=record.name,
            partition=index,
            diverged_to=failback.aside,
            start_offset=part.cut,
            next_offset=part.end,
        )

    async def _copy(
        self, partition: Partition, part: FailbackPartition, aside: TopicRecord, index: int
    ) -> None:
        at = Offset(part.cut)
        while at < part.end:
            entries = await partition.committed.read(at, _READ_BYTES, stored=True)
            if not entries:
                raise PartitionUnavailable(f"offset {at:,} cannot be read now")
            data = b"".join(buffer for entry in entries for buffer in _shown(entry).buffers())
            await self._store(aside, index, data)
            at = entries[-1].next_offset

    async def _store(self, aside: TopicRecord, index: int, data: bytes) -> None:
        if self._remote is None or self._partitions.placement.leads(aside, index):
            try:
                await self._restore(aside.name, index, data)
                return
            except NotLeader:
                if self._remote is None:
                    raise
        await self._remote.restore(aside.name, index, data)

    # ------------------------------------------------------------------ cutting

    async def cut(self, record: TopicRecord, index: int) -> None:
        """Let the log end where the source's may go on."""
        failback, part = _of(record, index)
        if failback.diverged:
            await self._topics.finish_restore(failback.aside)
        partition = await self._partitions.cut(record, index)
        end = partition.log.staged_offset
        if end > part.end:
            await self._topics.note_failback(record, index, None)  # it is compared again
        elif end > part.cut:
            raise PartitionUnavailable("the log is not cut yet")
        else:
            await self._topics.note_failback(record, index, replace(part, is_cut=True))


def _of(record: TopicRecord, index: int) -> tuple[Failback, FailbackPartition]:
    assert record.failback is not None
    part = record.failback.partitions[index]
    assert part is not None
    return record.failback, part


def _shown(entry: StoredBatch) -> StoredBatch:
    """The entry as a reader sees it: offsets without messages where it has none that count."""
    if not is_hidden(entry):
        return entry
    return store_batch(
        seal_gap(entry.count),
        base_offset=entry.base_offset,
        epoch=LeaderEpoch(0),
        append_time=entry.append_time,
        durable_offset=entry.base_offset,
    )


async def _cut(log: Log, common: Offset) -> Offset:
    """Where to cut a log that is the source's up to ``common``.

    A transaction that is open there was ended by each cluster in its own way. Its messages come back from
    the source, under the name that the source's marker ends. No other may be open where the log is cut: it
    would have lost the marker that ends it. So that is the last place before it with none open.
    """
    if not await _has_marker(log, common):
        return common
    opened = OpenTransactions()
    at = cut = log.stored_from
    while at < common:
        for entry in await log.read(at, _READ_BYTES, stored=True):
            at = entry.next_offset
            if at > common:
                break
            if entry.flags:
                opened.record(entry)
            if opened.stable_offset(at) == at:
                cut = at
    return cut


async def _has_marker(log: Log, at: Offset) -> bool:
    """Whether a transaction ends in what follows."""
    while at < log.next_offset:
        entries: Sequence[StoredBatch] = await log.read(at, _READ_BYTES, stored=True)
        if any(entry.flags & MARKER for entry in entries):
            return True
        at = entries[-1].next_offset
    return False
