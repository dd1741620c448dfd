"""Reading a partition: entries from an offset on, offsets by name or time, and split handovers."""

from __future__ import annotations

import msgspec

from quiver.broker.partition.follower_log import FollowerLog
from quiver.broker.partition.partitions import Partitions
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import InvalidRequest, LogClosed, PartitionUnavailable
from quiver.log.log import LogReader
from quiver.model.batch import StoredBatch
from quiver.model.envelope import is_hidden
from quiver.model.ids import Microseconds, Offset

FETCH_BYTES_MAX = 32 << 20
FETCH_WAIT_S_MAX = 30.0


class Read(msgspec.Struct, frozen=True):
    """What a fetch found, and where the partition begins and ends now."""

    entries: list[StoredBatch]
    start_offset: Offset
    next_offset: Offset
    topic_number: int
    layout: int
    read_to: Offset
    """Where to go on: what is before it and not among the entries is hidden."""


class PartitionReader:
    def __init__(self, topics: TopicCatalog, partitions: Partitions) -> None:
        self._topics = topics
        self._partitions = partitions

    async def _readable(
        self, record: TopicRecord, index: int, *, any_replica: bool, uncommitted: bool
    ) -> LogReader | FollowerLog:
        """A partition's log, or as much as a follower has of it where that will do."""
        follower = self._partitions.placement.follower(record, index) if any_replica else None
        if follower is not None:
            return follower
        partition = await self._partitions.get(record, index)
        return partition.log if uncommitted else partition.committed

    async def wait_for_data(
        self,
        topic: str,
        index: int,
        offset: int,
        wait_s: float,
        *,
        any_replica: bool = False,
        uncommitted: bool = False,
    ) -> bool:
        """Wait until the partition can be read from ``offset`` on; whether it can."""
        if offset < 0 or wait_s < 0:
            raise InvalidRequest("offset and wait must not be negative")
        log = await self._readable(
            self._topics.get(topic), index, any_replica=any_replica, uncommitted=uncommitted
        )
        if offset > log.next_offset and not isinstance(log, FollowerLog):
            return False  # an error, which ``fetch`` explains; no use to wait for it
        return await log.wait_beyond(Offset(offset), min(wait_s, FETCH_WAIT_S_MAX))

    async def fetch(
        self,
        topic: str,
        index: int,
        offset: int,
        *,
        bytes_max: int,
        any_replica: bool = False,
        uncommitted: bool = False,
    ) -> Read:
        """Entries from ``offset`` on; none if there are none yet.

        ``uncommitted``: also those of transactions that are open or were aborted.
        """
        if offset < 0 or bytes_max < 0:
            raise InvalidRequest("offset and bytes_max must not be negative")
        record = self._topics.get(topic)
        log = await self._readable(record, index, any_replica=any_replica, uncommitted=uncommitted)
        try:
            entries = await log.read(Offset(offset), min(bytes_max, FETCH_BYTES_MAX))
        except LogClosed as closed:
            self._topics.get(topic)  # it may have been deleted meanwhile
            raise PartitionUnavailable() from closed
        return Read(
            entries=[entry for entry in entries if not is_hidden(entry)],
            start_offset=log.start_offset,
            next_offset=log.next_offset,
            topic_number=record.number,
            layout=self._topics.get(topic).layout,
            read_to=entries[-1].next_offset if entries else Offset(offset),
        )

    async def find_offset(
        self,
        topic: str,
        index: int,
        at: str | None,
        time_us: int | None,
        *,
        uncommitted: bool = False,
    ) -> Offset:
        partition = await self._partitions.get(self._topics.get(topic), index)
        log: LogReader = partition.log if uncommitted else partition.committed
        if time_us is not None:
            return await log.offset_at(Microseconds(time_us))
        if at == "earliest":
            return log.start_offset
        if at == "latest":
            return log.next_offset
        raise InvalidRequest(
            f"at must be 'earliest', 'latest' or a time, not {at[:80] if at else at!r}"
        )

    async def handover(self, topic: str, index: int, offset: int) -> bytes:
        """What a partition hands down to the one that was split off at an offset."""
        partition = await self._partitions.get(self._topics.get(topic), index)
        return await partition.handover(Offset(offset))
