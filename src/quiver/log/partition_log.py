"""A log on the event loop: the messages of a partition, or the state of its subscriptions.

``append`` gives a batch its offset at once, in call order, and returns when it is as durable as the
settings ask. Appends share commits (``group_commit``). Disk work runs through ``run_blocking``, off
the event loop, one piece at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quiver.aio import Signal
from quiver.errors import LogClosed, LogError, LogFailed
from quiver.log.cache.cache_budget import CacheBudget
from quiver.log.cache.recent_reads import RecentReads
from quiver.log.delivery_index import DeliverySpan
from quiver.log.disk.disk import Disk
from quiver.log.disk.disk_threads import RunBlocking, in_thread
from quiver.log.group_commit import Committed, GroupCommit, OnCommit
from quiver.log.log_context import LogContext
from quiver.log.retention import RetentionLimits
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.topic import Acks


class LogBounds:
    """Where a log begins and ends, how large it is, and whether it failed."""

    def __init__(self, log: SegmentedLog) -> None:
        self._log = log

    @property
    def start_offset(self) -> Offset:
        return self._log.start_offset

    @property
    def stored_from(self) -> Offset:
        """The first offset on disk: what is before the start is excluded, and goes with its segment."""
        return self._log.stored_from

    @property
    def next_offset(self) -> Offset:
        return self._log.next_offset

    @property
    def end_offset(self) -> Offset:
        return self._log.next_offset

    @property
    def durable_offset(self) -> Offset:
        return self._log.durable_offset

    @property
    def staged_offset(self) -> Offset:
        """The offset after everything submitted, stored or not."""
        return self._log.staged_offset

    @property
    def epoch(self) -> LeaderEpoch:
        return self._log.epoch

    @property
    def size(self) -> int:
        return self._log.size

    @property
    def failure(self) -> LogFailed | None:
        return self._log.failure


class PartitionLog(LogBounds):
    """Used from one event loop. ``close`` it, or what was not synced waits for recovery."""

    def __init__(
        self,
        log: SegmentedLog,
        clock: Clock,
        run_blocking: RunBlocking,
        on_commit: OnCommit = lambda committed: None,
        caches: CacheBudget | None = None,
    ) -> None:
        """``on_commit`` is called after each commit."""
        super().__init__(log)
        self.recovery_cut_bytes = log.recovery_cut_bytes
        """How many bytes of unacknowledged, torn writes recovery cut when the log was opened."""
        self._clock = clock
        self._run_blocking = run_blocking
        self.commits = GroupCommit(log, clock, run_blocking, self._committed)
        """The disk work of this log, one piece at a time."""
        self.growth = Signal(clock)
        """Woken whenever there is more to read, and when the log is closed."""
        self._closing = False
        self._recent = RecentReads(caches)
        self._on_commit = on_commit

    @classmethod
    async def open(
        cls,
        folder: str,
        *,
        disk: Disk,
        clock: Clock,
        settings: LogSettings,
        run_blocking: RunBlocking = in_thread,
        first_offset: Offset = Offset(0),
        on_commit: OnCommit = lambda committed: None,
        context: LogContext | None = None,
        sub_folder: str = "",
    ) -> PartitionLog:
        """Open the folder, made if it is missing, and recover what is in it.

        ``sub_folder`` is made together with a log that is new.
        """
        shared = context or LogContext()
        log = await run_blocking(
            lambda: SegmentedLog(folder, disk, clock, settings, first_offset, shared, sub_folder)
        )
        return cls(log, clock, run_blocking, on_commit, shared.caches)

    # ------------------------------------------------------------------ appending

    async def append(
        self, batch: UnstoredBatch, epoch: LeaderEpoch = LeaderEpoch(0)
    ) -> StoredBatch:
        """Store a batch; on return it is acknowledged. Waits for room when too much is queued."""
        await self.wait_for_room()
        _, stored = self.submit(batch, epoch)
        return await stored

    @property
    def has_room(self) -> bool:
        return self.commits.has_room

    async def wait_for_room(self) -> None:
        """Those who wait go on in the order they came; each is to submit before it awaits again."""
        await self.commits.wait_for_room()

    is_alone = True

    def require_current(self) -> None:
        """Nobody else appends to it: it always is."""

    def submit(
        self,
        batch: UnstoredBatch,
        epoch: LeaderEpoch = LeaderEpoch(0),
        *,
        acks: Acks = Acks.QUORUM,
        append_time: Microseconds | None = None,
        at_leisure: bool = False,
    ) -> tuple[StoredBatch, asyncio.Future[StoredBatch]]:
        """Give a batch its offset now; the future is done when it is acknowledged.

        ``at_leisure``: nobody waits for it; it may be stored with the next one.
        """
        if self._closing:
            raise LogClosed(f"{self._log.folder} is closed")
        if self.commits.is_held:
            raise LogError(f"{self._log.folder} is being truncated; wait for room and submit again")
        entry = self._log.stage(batch, epoch, append_time)
        return entry, self.commits.queue(entry, at_leisure=at_leisure)

    async def append_replica(self, entries: Sequence[StoredBatch]) -> None:
        """Store entries of another log at their own offsets, which must follow on this one's.

        Returns when all are as durable as the settings ask; ``LogError`` if one does not follow. The
        caller must not be cancelled meanwhile.
        """
        if self._closing:
            raise LogClosed(f"{self._log.folder} is closed")
        for entry in entries:
            self._log.stage_replica(entry)
        await self.commits.store_staged()

    def _committed(self, committed: Committed) -> None:
        self._on_commit(committed)
        self.growth.wake()

    # ------------------------------------------------------------------ reading

    def read_tail(self, offset: Offset, bytes_max: int) -> list[StoredBatch] | None:
        """The same as ``read`` from memory alone; ``None`` if that needs the disk."""
        return self._log.read_tail(offset, bytes_max)

    async def read(
        self,
        offset: Offset,
        bytes_max: int = 1 << 20,
        *,
        staged: bool = False,
        stored: bool = False,
        from_disk: bool = False,
    ) -> list[StoredBatch]:
        """Entries from the one that holds ``offset`` on; empty at the end of the log.

        With ``stored`` from what is excluded too, as far as it is on disk, and with ``staged`` those
        follow that are not stored yet: for whoever keeps a replica of the log.
        ``from_disk``: whatever is in memory, to see that it is there.
        """

        def read_disk() -> list[StoredBatch]:
            return self._log.read_disk(offset, bytes_max, stored=stored)

        if from_disk:
            return await self._run_blocking(read_disk)
        if staged and offset >= self._log.next_offset:
            return self._log.read_staged(offset, bytes_max)
        recent = self._recent
        entries = self._log.read_tail(offset, bytes_max, stored=stored)
        if entries is None:
            entries = recent.read(offset, bytes_max)
        if entries is None:
            entries = await self._run_blocking(read_disk)
            recent.keep(entries)
        return entries

    async def delivery_span(self, offset: Offset) -> DeliverySpan:
        """What decides the delivery of messages from ``offset`` on, to the end of a segment at most."""
        span = self._log.delivery_span_in_memory(offset)
        if span is None:
            span = await self._run_blocking(lambda: self._log.delivery_span(offset))
        return span

    async def wait_beyond(self, offset: Offset, timeout_s: float) -> bool:
        """Wait until something at or after ``offset`` can be read; whether it can."""
        if self._log.next_offset <= offset and timeout_s > 0:
            timer = asyncio.create_task(self._clock.sleep(timeout_s))
            try:
                while self._log.next_offset <= offset and not timer.done() and not self._closing:
                    await self.growth.wait_or(timer)
            finally:
                timer.cancel()
        return self._log.next_offset > offset

    async def offset_at(self, time: Microseconds) -> Offset:
        """The first offset appended at or after ``time``; the next offset if there is none yet."""
        return await self._run_blocking(lambda: self._log.offset_at(time))

    # ------------------------------------------------------------------ maintenance

    def reconfigure(self, settings: LogSettings) -> None:
        """Go on with other settings, from the next append on."""
        self._log.reconfigure(settings)
        self.commits.sync_later()

    async def checkpoint(self) -> None:
        """Sync, and leave a mark from which recovery starts."""

        async def leave_mark() -> None:
            self._log.checkpoint_due = True
            await self.commits.commit()

        await self.commits.with_disk(leave_mark)

    async def size_from(self, offset: Offset) -> int:
        """Bytes from the entry that holds ``offset`` on, and up to an index interval before it."""
        return await self._run_blocking(lambda: self._log.size_from(offset))

    async def retain(self, limits: RetentionLimits, *, dry_run: bool = False) -> Offset:
        """Drop the oldest messages that the limits allow; the new start of the log.

        A dry run drops nothing, and says where the log would begin.
        """
        if dry_run:
            return (await self._run_blocking(lambda: self._log.find_start(limits))).offset

        async def drop() -> Offset:
            start = await self._run_blocking(lambda: self._log.find_start(limits))
            if start.offset > self._log.start_offset:
                self._log.drop_before(start)
                await self.commits.commit()
                self._recent.clear()
                await self.commits.commit()  # removes the files of segments that are gone
            return self._log.start_offset

        return await self.commits.with_disk(drop)

    async def truncate(self, offset: Offset) -> Offset:
        """Drop every entry that reaches past ``offset``; the new next offset. Appends wait."""

        async def cut() -> Offset:
            with self.commits.hold():
                try:
                    await self.commits.commit()
                    self._log.forget_tail()
                    return await self._run_blocking(lambda: self._log.truncate(offset))
                finally:
                    self._recent.clear()

        return await self.commits.with_disk(cut)

    async def close(self) -> None:
        """Finish what was submitted, leave a checkpoint, and let go of the files."""
        if self._closing:
            return
        self._closing = True
        self.commits.stop_syncing()
        try:
            await self.commits.with_disk(self._close)
        finally:
            self.growth.wake()

    async def _close(self) -> None:
        try:
            if self._log.failure is None:
                await self.commits.commit()
        except LogFailed:
            pass  # those who wait have been told
        finally:
            try:
                await self._run_blocking(self._log.close)
            finally:
                self._log.forget_tail()
                self._recent.clear()
