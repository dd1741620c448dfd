"""A log that this node leads, as its partition sees it: acknowledged means committed.

It lives as long as the node leads in one epoch. Requests that are not committed by then fail with
``LeaderChanged``; the next leader decides whether they are stored.
"""

from __future__ import annotations

import asyncio

from quiver.aio import Signal
from quiver.cluster.replica.leader_driver import LeaderDriver
from quiver.cluster.replica.replica import Replica
from quiver.errors import CorruptLog, LogFailed, NotEnoughReplicas
from quiver.log.delivery_index import DeliverySpan
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds, Offset
from quiver.model.topic import Acks


class LeaderLog:
    """The log with this ``index`` of a partition that the node has begun to lead."""

    def __init__(self, replica: Replica, leading: LeaderDriver, index: int, clock: Clock) -> None:
        self._replica = replica
        self._leading = leading
        self._log = replica.logs[index].log
        self._index = index
        self._clock = clock
        self.growth = Signal(clock)
        """Woken whenever more is committed."""
        self._news = Signal(clock)
        """Woken then, and also when this node leads no more."""
        self._seen = leading.watermark(index)
        leading.on_watermark[index] = self._look
        leading.on_end.append(self._news.wake)

    def _look(self) -> None:
        self._news.wake()
        watermark = self.next_offset
        if watermark > self._seen:
            self._seen = watermark
            self.growth.wake()

    # ------------------------------------------------------------------ what is there

    is_alone = False

    @property
    def start_offset(self) -> Offset:
        return self._log.start_offset

    @property
    def stored_from(self) -> Offset:
        return self._log.stored_from

    @property
    def next_offset(self) -> Offset:
        return self._leading.watermark(self._index)

    @property
    def end_offset(self) -> Offset:
        return self.next_offset

    @property
    def staged_offset(self) -> Offset:
        return self._log.staged_offset

    @property
    def size(self) -> int:
        return self._log.size

    @property
    def failure(self) -> LogFailed | None:
        if self._leading.is_over:
            return LogFailed("this node is no longer the leader of the partition")
        return self._log.failure

    async def wait_recovered(self, timeout_s: float) -> None:
        """Wait until all that earlier leaders may have confirmed is committed under this one."""
        deadline = self._clock.monotonic() + timeout_s
        while not self._leading.is_recovered(self._index):
            self._leading.require_proven()
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                raise NotEnoughReplicas("the replicas of this partition are not in sync yet")
            await self._news.wait(left_s)

    async def wait_settled(self, timeout_s: float) -> None:
        """Wait until everything that was submitted is committed."""
        if not await self.wait_beyond(Offset(self.staged_offset - 1), timeout_s):
            raise NotEnoughReplicas("the last change is not on enough replicas yet")

    # ------------------------------------------------------------------ appending

    @property
    def has_room(self) -> bool:
        return self._log.has_room

    async def wait_for_room(self) -> None:
        await self._log.wait_for_room()

    def require_current(self) -> None:
        """``NotLeader`` or ``NotEnoughReplicas`` if nothing could be confirmed now."""
        self._leading.require_writable()

    def submit(
        self,
        batch: UnstoredBatch,
        *,
        acks: Acks = Acks.QUORUM,
        append_time: Microseconds | None = None,
        at_leisure: bool = False,
    ) -> tuple[StoredBatch, asyncio.Future[StoredBatch]]:
        record = self._leading.machine.record
        in_sync_min = len(record.replicas) if acks is Acks.ALL else 0
        entry, stored, committed = self._leading.publish(
            batch, self._index, in_sync_min, append_time
        )
        if acks in (Acks.NONE, Acks.LEADER):
            return entry, stored
        return entry, committed

    # ------------------------------------------------------------------ reading

    def read_tail(self, offset: Offset, bytes_max: int) -> list[StoredBatch] | None:
        if offset >= self.next_offset:
            return []
        entries = self._log.read_tail(offset, bytes_max)
        return None if entries is None else self._committed(entries)

    async def read(
        self, offset: Offset, bytes_max: int = 1 << 20, *, stored: bool = False
    ) -> list[StoredBatch]:
        """Committed entries from the one that holds ``offset`` on; empty if there are none yet."""
        self._leading.require_proven()
        if self.next_offset <= offset <= self._log.staged_offset:
            return []
        if not self._leading.is_recovered(self._index) and offset >= self.next_offset:
            return []  # an earlier leader may have confirmed more than is known here yet
        try:
            return self._committed(await self._log.read(offset, bytes_max, stored=stored))
        except CorruptLog as error:
            self._replica.met_damage(error)
            raise

    async def delivery_span(self, offset: Offset) -> DeliverySpan:
        """What decides the delivery of committed messages from ``offset`` on."""
        self._leading.require_proven()
        try:
            span = await self._log.delivery_span(offset)
        except CorruptLog as error:
            self._replica.met_damage(error)
            raise
        return span.before(max(offset, self.next_offset))

    def _committed(self, entries: list[StoredBatch]) -> list[StoredBatch]:
        watermark, count = self.next_offset, len(entries)
        while count and entries[count - 1].next_offset > watermark:
            count -= 1
        return entries if count == len(entries) else entries[:count]

    async def wait_beyond(self, offset: Offset, timeout_s: float) -> bool:
        deadline = self._clock.monotonic() + timeout_s
        while self.next_offset <= offset and not self._leading.is_over:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                break
            await self._news.wait(left_s)
        return self.next_offset > offset

    async def offset_at(self, time: Microseconds) -> Offset:
        return min(self.next_offset, await self._log.offset_at(time))

    # ------------------------------------------------------------------ maintenance

    def reconfigure(self, settings: LogSettings) -> None:
        """Whoever holds a replica gives it other settings, whether it leads or not."""

    async def size_from(self, offset: Offset) -> int:
        return await self._log.size_from(offset)

    async def retain(self, limits: RetentionLimits, *, dry_run: bool = False) -> Offset:
        """Drop what the limits allow, and never what is not committed."""
        if dry_run:
            return await self._log.retain(limits.capped(self.next_offset), dry_run=True)
        return await self._leading.retain(limits, self._index)

    async def close(self) -> None:
        """Let go of it; the replica keeps the log."""
        self._leading.on_watermark[self._index] = _nothing
        self._news.wake()


def _nothing() -> None: ...
