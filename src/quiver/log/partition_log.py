"""A log on the event loop: many writers wait together for one sync.

``append`` gives a batch its offset at once, in call order, and returns when it is as durable as the
settings ask. All that arrive while the disk is busy are written and synced together by the next
commit (group commit). Disk work runs through ``run_blocking``, off the loop, one piece at a time;
waiting appends are bounded by ``queued_bytes``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from quiver.aio import Signal, retrieve_exception
from quiver.errors import LogClosed, LogError, LogFailed
from quiver.log.commit import Commit
from quiver.log.disk import Disk
from quiver.log.recent_reads import RecentReads
from quiver.log.retention import RetentionLimits
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.topic import Acks, Durability

T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs a blocking call off the event loop and gives its result."""

    async def __call__(self, call: Callable[[], T], /) -> T: ...


async def in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


class PartitionLog:
    """Used from one event loop. ``close`` it, or what was not synced waits for recovery."""

    def __init__(self, log: SegmentedLog, clock: Clock, run_blocking: RunBlocking) -> None:
        self._log = log
        self._clock = clock
        self._run_blocking = run_blocking
        self._waiting: deque[tuple[asyncio.Future[StoredBatch], StoredBatch]] = deque()
        self._queued_bytes = 0
        self._disk_turn = asyncio.Lock()
        self._committer: asyncio.Task[None] | None = None
        self._syncer: asyncio.Task[None] | None = None
        self._room = Signal(clock)
        self._room_turn = asyncio.Lock()
        self._growth = Signal(clock)
        self._cutting = False
        self._closing = False
        self._recent = RecentReads()
        self.on_growth: Callable[[], None] = lambda: None
        """Called whenever there is more to read."""
        self.on_stored: Callable[[int, int, int], None] = lambda _messages, _bytes, _batches: None
        """Called with how much was stored, after each commit that stored something."""
        self.on_sync: Callable[[float], None] = lambda _: None
        """Called with how many seconds the disk took, after each commit that was synced."""

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
    ) -> PartitionLog:
        """Open the folder, made if it is missing, and recover what is in it."""
        log = await run_blocking(lambda: SegmentedLog(folder, disk, clock, settings, first_offset))
        return cls(log, clock, run_blocking)

    # ------------------------------------------------------------------ what is there

    @property
    def start_offset(self) -> Offset:
        return self._log.start_offset

    @property
    def next_offset(self) -> Offset:
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

    @property
    def recovery_cut_bytes(self) -> int:
        """How many bytes of unacknowledged, torn writes recovery cut when the log was opened."""
        return self._log.recovery_cut_bytes

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
        return self._queued_bytes < self._log.settings.queued_bytes and not self._cutting

    async def wait_for_room(self) -> None:
        """Those who wait go on in the order they came; each is to submit before it awaits again."""
        async with self._room_turn:
            while not self.has_room:
                await self._room.wait()

    def require_current(self) -> None:
        """Nobody else appends to it: it always is."""

    def submit(
        self,
        batch: UnstoredBatch,
        epoch: LeaderEpoch = LeaderEpoch(0),
        *,
        acks: Acks = Acks.QUORUM,
    ) -> tuple[StoredBatch, asyncio.Future[StoredBatch]]:
        """Give a batch its offset now; the future is done when it is acknowledged."""
        if self._closing:
            raise LogClosed(f"{self._log.folder} is closed")
        if self._cutting:
            raise LogError(f"{self._log.folder} is being truncated; wait for room and submit again")
        entry = self._log.stage(batch, epoch)
        return entry, self._queue(entry)

    async def append_replica(self, entries: Sequence[StoredBatch]) -> None:
        """Store entries of another log at their own offsets, which must follow on this one's.

        Returns when all are as durable as the settings ask; ``LogError`` if one does not follow.
        """
        if self._closing:
            raise LogClosed(f"{self._log.folder} is closed")
        stored = [self._queue(self._log.stage_replica(entry)) for entry in entries]
        await asyncio.gather(*stored)

    def _queue(self, entry: StoredBatch) -> asyncio.Future[StoredBatch]:
        future: asyncio.Future[StoredBatch] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, entry))
        self._queued_bytes += entry.size()
        self._start_committer()
        return future

    def _start_committer(self) -> None:
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit_all())

    async def _commit_all(self) -> None:
        """Commit until nothing waits. Whatever is staged while one commit runs is in the next."""
        try:
            while self._waiting:
                async with self._disk_turn:
                    if self._waiting:  # whoever had the turn before may have committed all
                        await self._commit()
        except LogFailed:
            pass  # those who wait have been told
        finally:
            self._committer = None

    async def with_disk(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do ``work`` in its turn at the log's folder; to the end, even if the caller is cancelled."""

        async def turn() -> T:
            async with self._disk_turn:
                return await work()

        task = asyncio.create_task(turn())
        task.add_done_callback(retrieve_exception)
        return await asyncio.shield(task)

    async def _commit(self, sync: bool | None = None) -> None:
        """One round with the disk, which is ours; tells those who wait how it went."""
        commit = self._log.begin_commit(sync)
        taken = len(self._waiting)
        if commit is None:
            return
        try:
            seconds = await self._run_blocking(lambda: self._timed(commit))
        except Exception as error:
            failure = self._log.fail(error)
            self._fail_waiting(failure)
            raise failure from error
        self._log.finish_commit(commit)
        if commit.sync:
            self.on_sync(seconds)
        messages = size = 0
        for _ in range(taken):
            future, entry = self._waiting.popleft()
            messages += entry.count
            size += entry.size()
            if not future.cancelled():
                future.set_result(entry)
        if taken:
            self._queued_bytes -= size
            self.on_stored(messages, size, taken)
        self._room.wake()
        self._growth.wake()
        self.on_growth()
        if self._log.durable_offset < self._log.next_offset:
            self._start_syncer()

    def _timed(self, commit: Commit) -> float:
        """Run a commit, in whatever thread; how many seconds it took."""
        began = self._clock.monotonic()
        commit.run()
        return self._clock.monotonic() - began

    def _fail_waiting(self, failure: LogFailed | LogClosed) -> None:
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(type(failure)(failure.message, **failure.details))
        self._queued_bytes = 0
        self._room.wake()
        self._growth.wake()

    def _start_syncer(self) -> None:
        wanted = self._log.settings.durability is Durability.INTERVAL
        if wanted and self._syncer is None and not self._closing:
            self._syncer = asyncio.create_task(self._sync_later())

    async def _sync_later(self) -> None:
        try:
            await self._clock.sleep(self._log.settings.sync_interval_ms / 1000)
            await self.with_disk(lambda: self._commit(sync=True))
        except LogFailed:
            pass  # the log refuses appends from here on
        finally:
            self._syncer = None
        if self._log.failure is None and self._log.durable_offset < self._log.next_offset:
            self._start_syncer()

    # ------------------------------------------------------------------ reading

    def read_tail(self, offset: Offset, bytes_max: int) -> list[StoredBatch] | None:
        """The same as ``read`` from memory alone; ``None`` if that needs the disk."""
        return self._log.read_tail(offset, bytes_max)

    async def read(self, offset: Offset, bytes_max: int = 1 << 20) -> list[StoredBatch]:
        """Entries from the one that holds ``offset`` on; empty at the end of the log."""
        recent = self._recent
        entries = self._log.read_tail(offset, bytes_max)
        if entries is None:
            entries = recent.read(offset, bytes_max)
        if entries is None:
            entries = await self._run_blocking(lambda: self._log.read_disk(offset, bytes_max))
            recent.keep(entries)
        return entries

    async def read_stored(self, offset: Offset, bytes_max: int = 1 << 20) -> list[StoredBatch]:
        """The same from the disk, whatever is in memory: to see that it is there."""
        return await self._run_blocking(lambda: self._log.read_disk(offset, bytes_max))

    async def wait_beyond(self, offset: Offset, timeout_s: float) -> bool:
        """Wait until something at or after ``offset`` can be read; whether it can."""
        if self._log.next_offset <= offset and timeout_s > 0:
            timer = asyncio.create_task(self._clock.sleep(timeout_s))
            try:
                while self._log.next_offset <= offset and not timer.done() and not self._closing:
                    await self._growth.wait_or(timer)
            finally:
                timer.cancel()
        return self._log.next_offset > offset

    async def offset_at(self, time: Microseconds) -> Offset:
        """The first offset appended at or after ``time``; the next offset if there is none yet."""
        return await self._run_blocking(lambda: self._log.offset_at(time))

    # ------------------------------------------------------------------ maintenance

    def reconfigure(self, settings: LogSettings) -> None:
        """Go on with other settings, from the next append on."""
        self._log.settings = settings
        self._start_syncer()

    async def wait_stored(self) -> None:
        """Return when everything that was submitted is stored; ``LogFailed`` if it is not."""
        while self._waiting:
            await self.with_disk(self._commit)

    async def checkpoint(self) -> None:
        """Sync, and leave a mark from which recovery starts."""

        async def leave_mark() -> None:
            self._log.request_checkpoint()
            await self._commit()

        await self.with_disk(leave_mark)

    async def retain(self, limits: RetentionLimits) -> Offset:
        """Drop the oldest segments that the limits allow; the new start of the log."""

        async def drop() -> Offset:
            await self._run_blocking(self._log.read_times)
            self._log.retain(limits)
            self._recent = RecentReads()
            await self._commit()
            self._log.retain(limits)  # the newest segment, which the first round closed
            await self._commit()
            return self._log.start_offset

        return await self.with_disk(drop)

    async def truncate(self, offset: Offset) -> Offset:
        """Drop every entry that reaches past ``offset``; the new next offset. Appends wait."""

        async def cut() -> Offset:
            self._cutting = True
            try:
                await self._commit()
                return await self._run_blocking(lambda: self._log.truncate(offset))
            finally:
                self._recent = RecentReads()
                self._cutting = False
                self._room.wake()

        return await self.with_disk(cut)

    async def close(self) -> None:
        """Finish what was submitted, leave a checkpoint, and let go of the files."""
        if self._closing:
            return
        self._closing = True
        if self._syncer is not None:
            self._syncer.cancel()
        try:
            await self.with_disk(self._close)
        finally:
            self._growth.wake()

    async def _close(self) -> None:
        try:
            if self._log.failure is None:
                await self._commit()
        except LogFailed:
            pass  # those who wait have been told
        finally:
            await self._run_blocking(self._log.close)
