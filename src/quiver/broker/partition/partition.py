"""One partition on its leader: the log, and what it says of its producers and their transactions.

Publishing checks a batch against its producer's session, stages it, and returns a future that is done
when the log has acknowledged it. Nothing waits in between, so batches keep their order. A repeated
batch is acknowledged when the original is, never sooner. Readers see ``committed``, which ends at the
first transaction that is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, cast

import pyarrow as pa
import structlog

from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.snapshots import FileSnapshots, Snapshots
from quiver.broker.delivery.state_log import STATE, STATE_SETTINGS, DeliveryStateLog
from quiver.broker.partition.committed_log import CommittedLog
from quiver.broker.partition.listener import NOBODY_LISTENS, PartitionListener
from quiver.broker.partition.producers.dedup import DedupWindow, live_ids
from quiver.broker.partition.producers.dedup_publisher import DedupPublisher
from quiver.broker.partition.producers.in_flight import (
    InFlight,
    Placed,
    unavailable,
    unopened,
)
from quiver.broker.partition.producers.open_transactions import OpenTransaction
from quiver.broker.partition.producers.snapshots import PRODUCERS, ProducerSnapshots
from quiver.broker.partition.producers.split_handover import (
    IMPORTED,
    SplitHandover,
    decode_handover,
    encode_handover,
    handover_name,
    numbered_producers,
)
from quiver.broker.partition.producers.state import (
    DEDUP_ID,
    ProducerSnapshot,
    ProducerState,
    decode_snapshot,
    ids_in,
)
from quiver.errors import (
    InvalidRequest,
    LogClosed,
    LogFailed,
    NotEnoughReplicas,
    PartitionUnavailable,
    QuiverError,
)
from quiver.log.disk.disk import Disk
from quiver.log.disk.disk_threads import RunBlocking
from quiver.log.log import Log
from quiver.log.log_context import LogContext
from quiver.log.partition_log import PartitionLog
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.envelope import seal_marker
from quiver.model.ids import EVER, Microseconds, Offset, ProducerId
from quiver.model.topic import Acks
from quiver.model.transaction import TransactionId

_SETTLE_S = 5.0
"""How long a split waits for what was published before it."""
_LISTED_MAX = 100
"""How many of its open transactions a partition names."""

logger = structlog.get_logger()


class Partition:
    """Open between ``open`` and ``close``; after a failed write, until the broker opens it again."""

    def __init__(
        self,
        folder: str,
        log: Log,
        producers: ProducerState,
        *,
        snapshots: Snapshots,
        open_state_log: Callable[[], Awaitable[Log]],
        clock: Clock,
        has_imported: bool = False,
    ) -> None:
        self.log = log
        self.committed = CommittedLog(log, producers.transactions, clock)
        """The log as readers see it."""
        self.folder = folder
        self.has_imported = has_imported
        """Whether what the partition that it was split from handed down is here."""
        self.window = producers.window
        self._producers = producers
        self._sessions = producers.sessions
        self._transactions = producers.transactions
        self.gaps = producers.gaps
        """Of a copied log, the offsets that its source had no messages for any more."""
        self._clock = clock
        self._snapshots = snapshots
        self._open_state_log = open_state_log
        self._in_flight = InFlight(log)
        self._saved = ProducerSnapshots(folder, log, producers, self._in_flight, snapshots)
        self._unique = DedupPublisher(
            producers, self._in_flight, self._saved, log=log, clock=clock, stage=self._stage
        )
        self._state_turn = asyncio.Lock()
        self._closed = False
        self.opened_us = clock.time_us()
        self.state: DeliveryStateLog | None = None
        """What subscriptions have done with the messages, once one of them is used."""

    @property
    def failure(self) -> LogFailed | None:
        return self.log.failure or (self.state.failure if self.state is not None else None)

    async def open_state(self, blank: dict[int, DeliveryMachine]) -> DeliveryStateLog:
        """The state of the subscriptions; ``blank`` are those there are, as they began."""
        async with self._state_turn:
            if self._closed:
                raise LogClosed(f"{self.folder} is closed")
            if self.state is None or (not self.state.is_open and self.log.failure is None):
                try:
                    if self.state is not None:
                        await self.state.close()
                    log = await self._open_state_log()
                    self.state = await DeliveryStateLog.open(
                        self.folder, self.committed, log, self._snapshots, blank
                    )
                except OSError as error:
                    raise unopened(self.folder, error) from error
            self.state.add(blank)
            return self.state

    @classmethod
    async def open(
        cls,
        folder: str,
        settings: LogSettings,
        *,
        disk: Disk,
        clock: Clock,
        run_blocking: RunBlocking,
        dedup_window_us: int = 0,
        first_offset: Offset = Offset(0),
        listener: PartitionListener = NOBODY_LISTENS,
        context: LogContext | None = None,
    ) -> Partition:
        """A partition that this node keeps alone."""
        open_log = partial(
            PartitionLog.open, disk=disk, clock=clock, run_blocking=run_blocking, context=context
        )
        log = await open_log(
            folder,
            settings=settings,
            first_offset=first_offset,
            on_commit=listener.stored,
            sub_folder=STATE,
        )
        if log.recovery_cut_bytes:
            logger.warning("recovery cut a torn tail", folder=folder, bytes=log.recovery_cut_bytes)
        try:
            return await cls.over(
                folder,
                log,
                snapshots=FileSnapshots(folder, disk, run_blocking),
                open_state_log=lambda: open_log(
                    f"{folder}/{STATE}", settings=STATE_SETTINGS, on_commit=listener.state_stored
                ),
                clock=clock,
                dedup_window_us=dedup_window_us,
            )
        except BaseException as error:
            await log.close()
            if isinstance(error, OSError):
                raise unopened(folder, error) from error
            raise

    @classmethod
    async def over(
        cls,
        folder: str,
        log: Log,
        *,
        snapshots: Snapshots,
        open_state_log: Callable[[], Awaitable[Log]],
        clock: Clock,
        dedup_window_us: int = 0,
    ) -> Partition:
        """A partition over logs that are open."""
        data = await snapshots.load(PRODUCERS)
        snapshot = decode_snapshot(data)
        usable = snapshot is not None and snapshot.offset <= log.next_offset
        if snapshot is None or not usable:
            snapshot = ProducerSnapshot(log.stored_from, {})
        imported = await snapshots.load(IMPORTED)
        producers, read_bytes = await ProducerState.rebuild(
            log, snapshot, DedupWindow(dedup_window_us), decode_handover(imported)
        )
        producers.window.expire(clock.time_us())
        partition = cls(
            folder,
            log,
            producers,
            snapshots=snapshots,
            open_state_log=open_state_log,
            clock=clock,
            has_imported=bool(imported),
        )
        partition._saved.stored(read_bytes)
        if data and not usable:
            # It may speak of batches that a crash lost, whose offsets others will get.
            await partition._saved.save()
        return partition

    # ------------------------------------------------------------------ publishing

    def publish(
        self,
        batch: UnstoredBatch,
        rows: pa.RecordBatch | None,
        acks: Acks = Acks.QUORUM,
        *,
        refusal: QuiverError | None = None,
    ) -> asyncio.Future[Placed]:
        """Store a checked batch. The offset is taken now; the future is done when it is safe.

        ``rows`` are needed of a batch that has more than payloads. With a ``refusal`` it is acknowledged
        if it was stored before, and not stored else. A batch of a transaction is as safe as its marker
        will be, whatever ``acks`` says.
        """
        self.log.require_current()
        if batch.flags and acks is not Acks.ALL:
            acks = Acks.QUORUM
        repeat = self._sessions.judge(batch)
        if batch.flags and refusal is None:
            refusal = self._transactions.refusal(batch)
        if repeat is None and refusal is not None:
            raise refusal
        if batch.columns & DEDUP_ID and self.window.window_us and rows is not None:
            return self._unique.publish(batch, rows, acks, is_repeat=repeat is not None)
        if repeat is not None:
            return self._in_flight.acknowledge_again(repeat.stored)
        return self._stage(batch, rows, acks)[1]

    def _stage(
        self,
        batch: UnstoredBatch,
        rows: pa.RecordBatch | None,
        acks: Acks,
        append_time: Microseconds | None = None,
        *,
        at_leisure: bool = False,
    ) -> tuple[StoredBatch, asyncio.Future[Placed]]:
        try:
            entry, stored = self.log.submit(
                batch, acks=acks, append_time=append_time, at_leisure=at_leisure
            )
        except (LogFailed, LogClosed) as error:
            raise unavailable(error) from error
        placed = cast(asyncio.Future[Placed], stored)
        self._in_flight.add(entry.base_offset, placed)
        self._producers.record(entry, rows)
        self._saved.stored(entry.size())
        return entry, placed

    def restore(
        self, entry: StoredBatch, batch: UnstoredBatch, rows: pa.RecordBatch | None
    ) -> asyncio.Future[Placed] | None:
        """Store a batch where and when the entry of a backup was; ``None`` if it is there already."""
        self.log.require_current()
        if entry.next_offset <= self.log.staged_offset:
            return None
        if entry.base_offset != self.log.staged_offset:
            raise InvalidRequest(
                f"the entry begins at offset {entry.base_offset:,}, and the next offset here is "
                f"{self.log.staged_offset:,}",
                next_offset=self.log.staged_offset,
            )
        stored, placed = self._stage(batch, rows, Acks.QUORUM, entry.append_time)
        is_recent = stored.append_time > self._clock.time_us() - self.window.window_us
        if rows is not None and batch.columns & DEDUP_ID and is_recent:
            ids = rows.column("dedup_id").to_pylist()
            self.window.record(ids, stored.base_offset, stored.append_time)
        return placed

    async def last_user_sequence(self, producer_id: ProducerId) -> int | None:
        """The highest value of the ``sequence`` column that is stored for a producer."""
        await self._in_flight.settle()
        if self.log.failure is not None:
            raise unavailable(self.log.failure)
        return self._sessions.last_user_sequence(producer_id)

    # ------------------------------------------------------------------ transactions

    async def close_transactions(self, outcomes: Mapping[TransactionId, bool]) -> None:
        """End transactions that are open here: whether each is committed. Durable on return.

        Those that are not open here, or have ended already, are left as they are. One marker ends
        all that are committed, and another all that are aborted.
        """
        ending, _ = await self._end_transactions(outcomes, at_leisure=False)
        if ending:
            await asyncio.wait(ending)
        for placed in ending:
            try:
                placed.result()
            except (LogFailed, LogClosed) as error:
                raise unavailable(error) from error

    async def show_transactions(
        self, outcomes: Mapping[TransactionId, bool]
    ) -> asyncio.Future[Any] | None:
        """End transactions whose outcome is durable elsewhere. Readers see it on return.

        What is returned, if anything, is done when it is durable here. A crash before that takes
        markers away, so a partition is told again before anybody reads it. That is certain only where
        no other node may lead it next; in any other log markers are durable before they count.
        """
        if not self.log.is_alone:
            await self.close_transactions(outcomes)
            return None
        ending, markers = await self._end_transactions(outcomes, at_leisure=True)
        if markers:
            self._transactions.show(markers, self.log.next_offset)
            self.committed.shown()
        if not ending:
            return None
        return next(iter(ending)) if len(ending) == 1 else asyncio.gather(*ending)

    async def _end_transactions(
        self, outcomes: Mapping[TransactionId, bool], *, at_leisure: bool
    ) -> tuple[set[asyncio.Future[Placed]], list[Offset]]:
        """Write markers: what is done when all that is ended is durable, and where the new ones are."""
        if not self.log.has_room:
            await self.log.wait_for_room()
        self.log.require_current()
        if self.log.failure is not None:
            raise unavailable(self.log.failure)
        ending: set[asyncio.Future[Placed]] = set()
        markers: list[Offset] = []
        opened: dict[bool, list[TransactionId]] = {}
        for transaction, is_committed in outcomes.items():
            if self._transactions.is_open(transaction):
                opened.setdefault(is_committed, []).append(transaction)
            elif (offset := self._transactions.marker_of(transaction)) is not None:
                underway = self._in_flight.at(offset)
                ending |= set() if underway is None else {underway}
        for is_committed, transactions in opened.items():
            marker = seal_marker(transactions, is_committed=is_committed)
            entry, placed = self._stage(marker, None, Acks.QUORUM, at_leisure=at_leisure)
            markers.append(entry.base_offset)
            ending.add(placed)
        return ending, markers

    @property
    def open_transactions(self) -> tuple[int, Microseconds | None]:
        """How many are open here, and when the first of them began."""
        return len(self._transactions), self._transactions.oldest_time

    @property
    def has_open_transactions(self) -> bool:
        """Whether one is open here, or its end is not stored yet: of messages, or of acknowledgements."""
        if len(self._transactions) or self.committed.next_offset < self.log.next_offset:
            return True
        return self.state is not None and bool(self.state.held_transactions(EVER))

    @property
    def first_open_transactions(self) -> list[OpenTransaction]:
        """Some of those that have messages here and no marker, in the order of their first messages."""
        return list(islice(self._transactions.opened, _LISTED_MAX))

    def open_transactions_before(self, time_us: int) -> list[TransactionId]:
        """The transactions that are open here and began before a time."""
        return self._transactions.older_than(Microseconds(time_us))

    # ------------------------------------------------------------------ splitting

    async def export_handover(self) -> Offset:
        """Write down what a partition needs that is split off here and now; the offset of the split.

        Everything before it is committed, and stays so.
        """
        offset = self.log.staged_offset
        producers = numbered_producers(self._sessions)
        ids_from, held_from = self.window.first_offset, self.window.held_from
        await self._in_flight.settle()
        if self.log.failure is not None:
            raise unavailable(self.log.failure)
        if not await self.log.wait_beyond(Offset(offset - 1), _SETTLE_S):
            raise NotEnoughReplicas("the last publish is not on enough replicas yet")
        ids = decode_handover(await self._snapshots.load(IMPORTED)).ids
        if ids_from is not None and len(self._transactions):
            await self._transactions_ended(offset)
        hidden = self._transactions.hidden
        async for entry, names in ids_in(self.log, offset if ids_from is None else ids_from):
            if entry.base_offset < offset and entry.base_offset not in hidden:
                ids.append((entry.append_time, [one for one in names if one is not None]))
        handover = SplitHandover(producers, live_ids(ids, held_from))
        try:
            await self._snapshots.save(handover_name(offset), lambda: encode_handover(handover))
        except OSError as error:
            raise unopened(self.folder, error) from error
        return offset

    async def _transactions_ended(self, offset: Offset) -> None:
        """Nobody knows which ids count before the transactions have ended that are open."""
        if not await self.committed.wait_beyond(Offset(offset - 1), _SETTLE_S):
            raise PartitionUnavailable(
                "messages of an open transaction have ids: split the partition when it has ended"
            )

    async def handover(self, offset: Offset) -> bytes:
        """What was written down for the partition that was split off at an offset."""
        return await self._snapshots.load(handover_name(offset))

    async def import_handover(self, data: bytes) -> None:
        """Keep what was handed down to this partition, before anything is published to it."""
        handover = decode_handover(data)
        for time, ids in handover.ids:
            self.window.import_handover(ids, time)
        self._producers.import_producers(handover)
        await self._snapshots.save(IMPORTED, lambda: data)
        self.has_imported = True

    # ------------------------------------------------------------------ maintenance

    async def retain(self, limits: RetentionLimits) -> Offset:
        """Drop the oldest messages that the limits allow; the new start of the log.

        What they tell of their producers is saved first: a repeat is known also when the original
        is gone.
        """
        await asyncio.shield(self._saved.save_soon())
        return await self.committed.retain(limits.capped(self._saved.saved_to))

    async def close(self) -> None:
        """Finish what is under way, and leave the log and the sessions for a quick start."""
        self._closed = True
        await self.close_state()
        await self._saved.settle()
        await self.log.close()
        if self.log.failure is None and self._saved.is_worth_it:
            await self._saved.save()

    async def close_state(self) -> None:
        """Let go of the state log, so that another may open it."""
        async with self._state_turn:
            if self.state is not None:
                await self.state.close()
