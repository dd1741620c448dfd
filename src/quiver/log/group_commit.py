"""Group commit: many appends wait together for one write and one sync.

All that is queued while the disk is busy goes into the next commit. Disk work runs through
``run_blocking``, off the event loop, one piece at a time; a lone small append is written on the event
loop where ``run_blocking`` has an ``InlinePolicy`` that allows it. If a commit fails, the log and all appends
that wait fail with it. Waiting appends are bounded by ``queued_bytes``. One that nobody waits for may go with
the next that somebody waits for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from quiver.aio import Alarm, Signal, retrieve_exception, run_eagerly
from quiver.errors import LogFailed
from quiver.log.commit import Commit
from quiver.log.disk.disk_threads import RunBlocking, inline_policy
from quiver.log.disk.inline_policy import InlinePolicy
from quiver.log.segmented_log import SegmentedLog
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.envelope import is_hidden
from quiver.model.topic import Durability

T = TypeVar("T")

LEISURE_S = 0.02
"""How long an append that nobody waits for may wait for another."""


class Committed(msgspec.Struct, frozen=True):
    """What one commit stored."""

    messages: int
    size: int
    batches: int
    sync_seconds: float | None
    """How long the disk took; ``None`` if nothing was synced."""


OnCommit = Callable[[Committed], None]


def nobody_listens() -> None:
    """What a commit tells nobody in particular."""


class GroupCommit:
    """Used from one event loop. ``on_commit`` is called after each commit."""

    def __init__(
        self,
        log: SegmentedLog,
        clock: Clock,
        run_blocking: RunBlocking,
        on_commit: OnCommit,
    ) -> None:
        self._log = log
        self._clock = clock
        self._run_blocking = run_blocking
        self._inline = inline_policy(run_blocking)
        self._on_commit = on_commit
        self._waiting: deque[tuple[asyncio.Future[StoredBatch], StoredBatch]] = deque()
        self._urgent = 0
        """How many of these somebody waits for."""
        self._queued_bytes = 0
        self._leisure = Alarm(clock, self._commit_leisurely)
        self._leisure_ends: float | None = None
        """When the oldest of those that nobody waits for is to be committed."""
        self._disk_turn = asyncio.Lock()
        self._committer: asyncio.Task[None] | None = None
        self._is_due = False
        """Whether a commit begins as soon as everything that has come by now is queued."""
        self._syncer: asyncio.Task[None] | None = None
        self._room = Signal(clock)
        self._room_turn = asyncio.Lock()
        self.is_held = False
        """Whether nothing may be queued now."""
        self.on_end: Callable[[], None] = nobody_listens
        """Called when a commit has ended, well or not: by the leader of a replicated log."""
        self._closing = False

    # ------------------------------------------------------------------ waiting for room

    @property
    def has_room(self) -> bool:
        return self._queued_bytes < self._log.settings.queued_bytes and not self.is_held

    async def wait_for_room(self) -> None:
        """Those who wait go on in the order they came; each is to submit before it awaits again."""
        async with self._room_turn:
            while not self.has_room:
                await self._room.wait()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Appends wait for room for as long as this lasts."""
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False
            self._room.wake()

    # ------------------------------------------------------------------ committing

    def queue(self, entry: StoredBatch, *, at_leisure: bool = False) -> asyncio.Future[StoredBatch]:
        """Commit a staged entry with the next round; the future is done when it is stored.

        ``at_leisure``: with the next round that is for another entry, if one comes soon.
        """
        future: asyncio.Future[StoredBatch] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, entry))
        self._queued_bytes += entry.size()
        if not at_leisure:
            self._commit_soon()
        elif self._leisure_ends is None:
            self._leisure_ends = self._clock.monotonic() + LEISURE_S
            self._leisure.ring_by(self._leisure_ends)
        return future

    def _commit_soon(self) -> None:
        self._urgent += 1
        if self._committer is None and not self._is_due:
            if self._inline is None:
                self._committer = asyncio.create_task(self._commit_all())
            else:
                self._is_due = True
                asyncio.get_running_loop().call_soon(self._begin, self._inline)

    def _commit_leisurely(self) -> None:
        """The alarm rings, perhaps for what was committed meanwhile."""
        if self._leisure_ends is None:
            return
        if self._clock.monotonic() < self._leisure_ends:
            self._leisure.ring_by(self._leisure_ends)
        else:
            self._commit_soon()

    def _begin(self, inline: InlinePolicy) -> None:
        """Commit what is queued: here if that is allowed, else with a task."""
        self._is_due = False
        if not self._urgent:
            return  # whoever had the disk has committed it
        if (
            inline.allows(self._urgent, self._queued_bytes)
            and not self._disk_turn.locked()
            and self._log.is_write_only
        ):
            self._commit_here()
        else:
            self._committer = run_eagerly(self._commit_all(), asyncio.create_task)

    def _commit_here(self) -> None:
        commit, taken = self._take(None)
        assert commit is not None, "something waits"
        try:
            seconds = self._timed(commit)
        except Exception as error:
            self._fail_waiting(self._log.fail(error))
        else:
            self._finish(commit, taken, seconds)

    def _take(self, sync: bool | None) -> tuple[Commit | None, int]:
        """Everything that waits, and how many these are."""
        self._urgent, self._leisure_ends = 0, None
        return self._log.begin_commit(sync), len(self._waiting)

    async def _commit_all(self) -> None:
        """Commit until nobody waits. Whatever is staged while one commit runs is in the next."""
        try:
            while self._urgent:
                async with self._disk_turn:
                    if self._urgent:  # whoever had the turn before may have committed all
                        await self.commit()
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

    async def store_staged(self) -> None:
        """Commit what is staged without being queued; the caller must not be cancelled meanwhile."""
        async with self._disk_turn:
            await self.commit()

    async def wait_stored(self) -> None:
        """Return when everything that was submitted is stored; ``LogFailed`` if it is not."""
        while self._waiting:
            await self.with_disk(self.commit)

    async def commit(self, sync: bool | None = None) -> None:
        """One round with the disk, which is the caller's; tells those who wait how it went."""
        commit, taken = self._take(sync)
        if commit is None:
            return
        try:
            seconds = await self._run_blocking(lambda: self._timed(commit))
        except Exception as error:
            failure = self._log.fail(error)
            self._fail_waiting(failure)
            raise failure from error
        self._finish(commit, taken, seconds)

    def _finish(self, commit: Commit, taken: int, seconds: float) -> None:
        """The first ``taken`` of those who wait are stored."""
        if self._inline is not None:
            self._inline.took(seconds)
        self._log.finish_commit(commit)
        for _ in range(taken):
            future, entry = self._waiting.popleft()
            self._queued_bytes -= entry.size()
            if not future.cancelled():
                future.set_result(entry)
        self._room.wake()
        self._on_commit(_committed(commit, seconds))
        self.on_end()
        self.sync_later()

    def _timed(self, commit: Commit) -> float:
        """Run a commit, in whatever thread; how many seconds it took."""
        began = self._clock.monotonic()
        commit.run()
        return self._clock.monotonic() - began

    def _fail_waiting(self, failure: LogFailed) -> None:
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(type(failure)(failure.message, **failure.details))
                retrieve_exception(future)  # of a replicated log, whoever waits has another future
        self._urgent, self._queued_bytes, self._leisure_ends = 0, 0, None
        self._room.wake()
        self.on_end()

    # ------------------------------------------------------------------ syncing at intervals

    def sync_later(self) -> None:
        """Sync what was only written, after the interval of the settings, if they have one."""
        wanted = self._log.settings.durability is Durability.INTERVAL
        unsynced = self._log.failure is None and self._log.durable_offset < self._log.next_offset
        if wanted and unsynced and self._syncer is None and not self._closing:
            self._syncer = asyncio.create_task(self._sync_later())

    async def _sync_later(self) -> None:
        try:
            await self._clock.sleep(self._log.settings.sync_interval_ms / 1000)
            await self.with_disk(lambda: self.commit(sync=True))
        except LogFailed:
            pass  # the log refuses appends from here on
        finally:
            self._syncer = None
        self.sync_later()

    def stop_syncing(self) -> None:
        """The log is being closed, which syncs everything."""
        self._closing = True
        self._leisure.cancel()
        if self._syncer is not None:
            self._syncer.cancel()


def _committed(commit: Commit, seconds: float) -> Committed:
    stored = [step for step in commit.steps if isinstance(step, StoredBatch)]
    return Committed(
        messages=sum(entry.count for entry in stored if not is_hidden(entry)),
        size=sum(entry.size() for entry in stored),
        batches=len(stored),
        sync_seconds=seconds if commit.sync else None,
    )
