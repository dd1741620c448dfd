"""The driver of a leader: accepts publishes, answers fetches, and changes the in-sync set.

A publish is confirmed when the watermark has passed it. When the node stops leading, waiting publishes
fail with an error that says they may or may not be stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from quiver.aio import Alarm, Signal, retrieve_exception
from quiver.cluster.metadata.store import Expect, MetadataStore, Put
from quiver.cluster.records import (
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    SessionId,
    VersionedPartition,
    decode,
    encode,
    node_key,
    partition_key,
)
from quiver.cluster.replica.leader import Leader, Proposal, Serve
from quiver.cluster.replica.messages import Entries, Fetch, FetchReply, NotLeading
from quiver.cluster.replica.parked_fetches import ParkedFetches
from quiver.cluster.replica.progress import LogProgress
from quiver.cluster.replica.replica_log import ReplicaLog
from quiver.cluster.replica.settings import ReplicaSettings
from quiver.errors import (
    LeaderChanged,
    LogFailed,
    MetadataConflict,
    MetadataError,
    NotEnoughReplicas,
    NotLeader,
)
from quiver.log.group_commit import nobody_listens
from quiver.log.retention import RetentionLimits
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds, Offset

logger = structlog.get_logger()

_AGREE_S = 2.0
"""How long a new start of a log waits for the replicas in sync."""

Committed = asyncio.Future[Any]


class AppendResult(NamedTuple):
    """A batch that has its offset. It is safe here once ``stored``, and for good once ``committed``.

    Both futures have the entry as their result.
    """

    entry: StoredBatch
    stored: asyncio.Future[StoredBatch]
    committed: asyncio.Future[StoredBatch]


class _Waiting(NamedTuple):
    """Somebody who waits until everything before ``end`` is committed."""

    end: Offset
    committed: Committed
    result: StoredBatch | None


def progress_of(held: ReplicaLog) -> LogProgress:
    log = held.log
    return LogProgress(
        held.history,
        start=log.start_offset,
        end=log.next_offset,
        durable=held.safe_offset,
        watermark=held.watermark,
        stored_from=log.stored_from,
    )


class LeaderDriver:
    """Leads one partition in one epoch: ``run`` returns when that is over."""

    def __init__(
        self,
        partition: PartitionId,
        node: NodeId,
        versioned: VersionedPartition,
        logs: Sequence[ReplicaLog],
        *,
        store: MetadataStore,
        clock: Clock,
        settings: ReplicaSettings,
        proven_until: Callable[[], float],
    ) -> None:
        self.machine = Leader(
            node,
            versioned,
            [progress_of(held) for held in logs],
            clock.monotonic(),
            settings.leader,
        )
        self._partition = partition
        self._logs = logs
        self._store = store
        self._clock = clock
        self._settings = settings
        self._proven_until = proven_until
        self._loop = asyncio.get_running_loop()
        self._waiting: list[deque[_Waiting]] = [deque() for _ in logs]
        self._parked = ParkedFetches(self.machine, clock, settings)
        self._attention = Signal(clock)
        self._agreed = Signal(clock)
        """Woken when a start may have been agreed on, and when this node leads no more."""
        self._over = False
        self.on_watermark: list[Callable[[], None]] = [_nothing for _ in logs]
        """Of each log: called when more of it is committed."""
        self.on_end: list[Callable[[], None]] = []
        """Called when this node leads no more: for whoever waits for more to be committed."""
        self._at_rest = False
        self._unrest = Alarm(clock, self._end_rest)
        for log, held in enumerate(logs):
            held.log.commits.on_end = partial(self._on_commit, log)

    # ------------------------------------------------------------------ what the cluster says

    def on_state(
        self, versioned: VersionedPartition | None, sessions: Mapping[NodeId, SessionId]
    ) -> None:
        if versioned is None:
            self.machine.deposed = True
        else:
            self.machine.on_record(versioned)
        self.machine.on_sessions(sessions)
        self._parked.answer_forgotten()
        self._look()
        self._attention.wake()

    def on_doubt(self) -> None:
        """The lease is not being renewed: fetches that wait are judged by that."""
        self.machine.lease_until = self._proven_until()
        self._parked.doubt()

    def on_suspect(self, node: NodeId) -> None:
        """That node seems to be gone: nobody is to wait for it."""
        self.machine.suspect(node)
        self._attention.wake()

    @property
    def is_over(self) -> bool:
        return self._over or self.machine.deposed

    def is_recovered(self, log: int) -> bool:
        """Whether everything that an earlier leader may have confirmed is committed here."""
        return self.machine.logs[log].recovered

    def is_agreed(self, end: Offset, log: int) -> bool:
        """Whether nobody who may lead after this node has more of a log than up to ``end``."""
        return self.machine.is_agreed(end, log)

    # ------------------------------------------------------------------ publishing and reading

    def publish(
        self,
        batch: UnstoredBatch,
        log: int = 0,
        in_sync_min: int = 0,
        append_time: Microseconds | None = None,
    ) -> AppendResult:
        """Give a batch its offset; ``NotEnoughReplicas`` if it could not be confirmed now."""
        self.require_writable(in_sync_min)
        try:
            entry, stored = self._logs[log].log.submit(
                batch, self.machine.epoch, append_time=append_time
            )
        except LogFailed:
            self._give_up()  # it failed while nothing was being published
            raise
        end = entry.next_offset
        self._offer(end, log)
        return AppendResult(entry, stored, self.when_committed(end, log, entry))

    def _offer(self, end: Offset, log: int) -> None:
        """Let followers have what is staged now: they sync it while this node does."""
        self.machine.logs[log].end = end
        self._parked.look(log)

    def require_writable(self, in_sync_min: int = 0) -> None:
        """``NotEnoughReplicas`` unless as many are in sync as the partition and the caller ask for."""
        self.require_proven()
        record = self.machine.record
        needed = max(in_sync_min, record.min_in_sync)
        if len(record.in_sync) < needed:
            raise NotEnoughReplicas(
                f"{len(record.in_sync)} of {len(record.replicas)} replicas are in sync and "
                f"publishing needs {needed}: it resumes by itself when they are back"
            )

    def when_committed(
        self, end: Offset, log: int = 0, result: StoredBatch | None = None
    ) -> Committed:
        """Done, with ``result``, when everything before ``end`` is committed."""
        committed: Committed = self._loop.create_future()
        if end <= self.machine.logs[log].watermark:
            committed.set_result(result)
            return committed
        waiting = self._waiting[log]
        place = len(waiting)
        while place and waiting[place - 1].end > end:
            place -= 1
        waiting.insert(place, _Waiting(end, committed, result))
        return committed

    def require_proven(self) -> None:
        """``NotLeader`` unless this node knows that it leads."""
        self.machine.lease_until = self._proven_until()
        if self.is_over or not self.machine.is_proven(self._clock.monotonic()):
            raise NotLeader(f"this node may no longer be the leader of {self._partition}")

    def watermark(self, log: int = 0) -> Offset:
        """How far readers may read."""
        return self.machine.logs[log].watermark

    def _on_commit(self, log: int) -> None:
        """A commit of a log has ended: what it stored may be committed now, all at once."""
        held = self._logs[log]
        if held.log.failure is not None:
            self._give_up()
        elif held.safe_offset > self.machine.logs[log].durable:
            self._look_at(log)

    def _give_up(self) -> None:
        """A log of this node cannot be written any more: it leads no more."""
        self._over = True
        self._parked.answer_all()
        self._attention.wake()

    def _look(self) -> None:
        """See how far all logs have come, and tell whoever waits for it."""
        for log in range(len(self._logs)):
            self._look_at(log)
        if self.is_over:
            self._parked.answer_all()

    def _look_at(self, log: int) -> None:
        """See how far one log has come, and tell whoever waits for it."""
        held, progress = self._logs[log], self.machine.logs[log]
        progress.start = max(progress.start, held.log.start_offset)
        progress.stored_from = held.log.stored_from
        progress.end = held.log.staged_offset
        progress.durable = held.safe_offset
        self.machine.lease_until = self._proven_until()
        if self.machine.advance_log(log, self._clock.monotonic()):
            held.watermark = max(held.watermark, progress.watermark)
            self._confirm(self._waiting[log], progress.watermark)
            self.on_watermark[log]()
            self._agreed.wake()
        elif self.machine.awaits_lease(log):
            self._look_again()
        self._parked.look(log)

    def _confirm(self, waiting: deque[_Waiting], watermark: Offset) -> None:
        while waiting and waiting[0].end <= watermark:
            _, committed, result = waiting.popleft()
            if not committed.done():
                committed.set_result(result)

    # ------------------------------------------------------------------ retention

    async def retain(self, limits: RetentionLimits, log: int = 0) -> Offset:
        """Drop the oldest messages that the limits allow, of what is committed; where the log begins.

        The logs of all replicas in sync begin there first: no failover brings back what is excluded.
        If they do not in time, nothing goes here, and the next call tries again.
        """
        held = self._logs[log]
        start = await held.log.retain(limits.capped(self.watermark(log)), dry_run=True)
        if start > held.log.start_offset and await self._agree_on(start, log):
            await held.retain(RetentionLimits(before=start).capped(start))
        return held.log.start_offset

    async def _agree_on(self, start: Offset, log: int) -> bool:
        """Whether the logs of all replicas in sync begin at ``start`` within a bounded time."""
        progress = self.machine.logs[log]
        progress.start = max(progress.start, start)
        self._look_at(log)
        deadline = self._clock.monotonic() + _AGREE_S
        while progress.agreed_start < start:
            left_s = deadline - self._clock.monotonic()
            if self.is_over or left_s <= 0:
                return False
            await self._agreed.wait(left_s)
        return not self.is_over

    # ------------------------------------------------------------------ fetches

    async def on_fetch(self, fetch: Fetch) -> FetchReply:
        verdict = self.machine.on_fetch(fetch, self._clock.monotonic())
        if not isinstance(verdict, Serve):
            return verdict
        self._look_at(fetch.log)
        if fetch.node not in self.machine.record.in_sync:
            self._attention.wake()  # perhaps it has caught up
        if not (self.is_over or self._parked.has_entries(fetch)):
            await self._park(fetch)
        log = self._logs[fetch.log].log
        entries = await log.read(fetch.offset, self._settings.fetch_bytes, staged=True, stored=True)
        if self.is_over:
            return NotLeading(epoch=self.machine.epoch)
        data = b"".join(buffer for entry in entries for buffer in entry.buffers())
        return Entries(
            epoch=self.machine.epoch,
            watermark=self.machine.logs[fetch.log].watermark,
            data=data,
            start=self.machine.logs[fetch.log].start,
        )

    async def _park(self, fetch: Fetch) -> None:
        try:
            await self._parked.wait(fetch)
        finally:
            self._look_again()  # most followers ask again at once

    def _look_again(self) -> None:
        """Time may change something that nothing could when this began to rest."""
        if self._at_rest:
            self._unrest.ring_by(self._clock.monotonic() + self._settings.tick_s)

    def _end_rest(self) -> None:
        if self._at_rest and self.machine.is_restless():
            self._attention.wake()

    # ------------------------------------------------------------------ the in-sync set

    async def run(self) -> None:
        """Look after the in-sync set until this node leads no more."""
        try:
            while not self.is_over:
                self._look()
                proposal = self.machine.propose(self._clock.monotonic())
                if proposal is not None:
                    await self._propose(proposal)
                else:
                    self._at_rest = not self.machine.is_restless()
                    await self._attention.wait(None if self._at_rest else self._settings.tick_s)
                    self._at_rest = False
        finally:
            self._end()

    async def _propose(self, proposal: Proposal) -> None:
        """Make the change or learn that it cannot be made; nothing else is proposed before."""
        while self.machine.pending is proposal and not self.is_over:
            try:
                self._learn(await self.swap(proposal))
            except MetadataError as error:
                logger.warning(
                    "the in-sync set cannot be changed now",
                    partition=self._partition,
                    error=error.message,
                )
                await self._clock.sleep(self._settings.tick_s)

    async def swap(self, proposal: Proposal) -> VersionedPartition | None:
        """What the record is after the attempt."""
        key = partition_key(self._partition)
        try:
            expects = [Expect(key, proposal.revision), *await self._registrations(proposal)]
            revision = await self._store.commit(expects, [Put(key, encode(proposal.record))])
        except MetadataConflict:
            entry = await self._store.get(key)
            if entry is None:
                return None
            return VersionedPartition(decode(entry.value, PartitionRecord), entry.revision)
        return VersionedPartition(proposal.record, revision)

    async def _registrations(self, proposal: Proposal) -> list[Expect]:
        """That those who join are registered as they were when they caught up."""
        expects = []
        for node, session in proposal.joined:
            entry = await self._store.get(node_key(node))
            if entry is None or decode(entry.value, NodeRecord).session != session:
                self.machine.abandon(proposal, node)
                raise MetadataConflict(f"the process of {node} that has caught up has ended")
            expects.append(Expect(entry.key, entry.revision))
        return expects

    def _learn(self, versioned: VersionedPartition | None) -> None:
        if versioned is None:
            self.machine.deposed = True
        else:
            self.machine.on_record(versioned)
            self._parked.answer_forgotten()

    def _end(self) -> None:
        self._over = True
        for held in self._logs:
            held.log.commits.on_end = nobody_listens
        for waiting in self._waiting:
            while waiting:
                committed = waiting.popleft().committed
                if not committed.done():
                    committed.set_exception(LeaderChanged())
                    retrieve_exception(committed)  # nobody need wait for it
        self._parked.answer_all()
        self._agreed.wake()
        self._unrest.cancel()
        for wake in self.on_end:
            wake()


def _nothing() -> None:
    """Nobody wants to know."""
