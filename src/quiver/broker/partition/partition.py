"""One partition on its leader: the log, and the sessions of its producers.

Publishing checks a batch against its producer's session, stages it, and returns a future that is done
when the log has acknowledged it. Nothing waits in between, so batches keep their order. A repeated
batch is acknowledged when the original is, never sooner.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import structlog

from quiver import arrow_compute as pc
from quiver.aio import forward_outcome, retrieve_exception
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.snapshots import FileSnapshots, Snapshots
from quiver.broker.delivery.state_log import STATE, STATE_SETTINGS, DeliveryStateLog
from quiver.broker.partition.dedup import DedupWindow, Seen, ids_of, live_ids
from quiver.broker.partition.listener import NOBODY_LISTENS, PartitionListener
from quiver.broker.partition.producer_sessions import (
    ProducerSessions,
    ProducerSnapshot,
    StoredRange,
    decode_snapshot,
    encode_snapshot,
)
from quiver.broker.partition.split_handover import (
    IMPORTED,
    SplitHandover,
    decode_handover,
    encode_handover,
    handover_name,
    numbered_producers,
)
from quiver.errors import (
    DiskFull,
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
from quiver.model.builder import encode_record_batch
from quiver.model.clock import Clock
from quiver.model.envelope import ProducerStamp
from quiver.model.ids import NO_PRODUCER, Microseconds, Offset, ProducerId, Sequence
from quiver.model.schema import COLUMN_BIT
from quiver.model.topic import Acks

PRODUCERS = "producers"
"""The file beside the segments that holds a snapshot of producer sessions."""
_SNAPSHOT_BYTES = 64 << 20
"""After this many bytes a snapshot is due: opening reads no more of the log than this."""
_WORTH_BYTES = 256 << 10
"""A stop saves no snapshot for fewer bytes than this: opening reads them in a moment."""
_READ_BYTES = 4 << 20
_SETTLE_S = 5.0
"""How long a split waits for what was published before it."""
_SEQUENCE = COLUMN_BIT["sequence"]
_DEDUP_ID = COLUMN_BIT["dedup_id"]
UNKNOWN_OFFSET = Offset(-1)
"""Of a repeat so old that where it was stored is forgotten."""

logger = structlog.get_logger()


class StoredOnce(msgspec.Struct, frozen=True):
    """Where a publish is stored of which some messages were stored before."""

    base_offset: Offset
    """Of the first that was stored now; the others follow. Below zero if none was."""
    append_time: Microseconds
    repeats: dict[int, Seen]
    """By its place in the batch: where each message is that was stored before."""


Placed = StoredBatch | StoredRange | StoredOnce
"""Where a publish is stored; a ``StoredRange`` if it was a repeat."""


class Partition:
    """Open between ``open`` and ``close``; after a failed write, until the broker opens it again."""

    def __init__(
        self,
        folder: str,
        log: Log,
        sessions: ProducerSessions,
        window: DedupWindow,
        *,
        snapshots: Snapshots,
        open_state_log: Callable[[], Awaitable[Log]],
        clock: Clock,
        has_imported: bool = False,
    ) -> None:
        self.log = log
        self.folder = folder
        self.has_imported = has_imported
        """Whether what the partition that it was split from handed down is here."""
        self._sessions = sessions
        self.window = window
        self._clock = clock
        self._snapshots = snapshots
        self._open_state_log = open_state_log
        self._underway: dict[Offset, asyncio.Future[Placed]] = {}
        self._unsnapshotted_bytes = 0
        self._saved_to = Offset(0)
        """What was published before it is in a snapshot of the producer sessions."""
        self._snapshotting: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._snapshot_turn = asyncio.Lock()
        self._state_turn = asyncio.Lock()
        self._closed = False
        self.opened_us = clock.time_us()
        self.is_new = False
        """Whether nothing has ever been in it, so that there is no delivery state to recover."""
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
            self.is_new = False
            if self.state is None or (not self.state.is_open and self.log.failure is None):
                try:
                    if self.state is not None:
                        await self.state.close()
                    log = await self._open_state_log()
                    self.state = await DeliveryStateLog.open(
                        self.folder, self.log, log, self._snapshots, blank
                    )
                except OSError as error:
                    raise _unopened(self.folder, error) from error
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
            folder, settings=settings, first_offset=first_offset, on_commit=listener.stored
        )
        if log.recovery_cut_bytes:
            logger.warning("recovery cut a torn tail", folder=folder, bytes=log.recovery_cut_bytes)
        try:
            partition = await cls.over(
                folder,
                log,
                snapshots=FileSnapshots(folder, disk, run_blocking),
                open_state_log=lambda: open_log(
                    f"{folder}/{STATE}", settings=STATE_SETTINGS, on_commit=listener.state_stored
                ),
                clock=clock,
                dedup_window_us=dedup_window_us,
            )
            partition.is_new = log.is_new
            return partition
        except BaseException as error:
            await log.close()
            if isinstance(error, OSError):
                raise _unopened(folder, error) from error
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
        window = DedupWindow(dedup_window_us)
        imported = await snapshots.load(IMPORTED)
        handover = decode_handover(imported)
        _import_ids(window, handover)
        sessions, read_bytes = await _rebuild_sessions(log, snapshot, window)
        _import_producers(sessions, handover)
        window.expire(clock.time_us())
        partition = cls(
            folder,
            log,
            sessions,
            window,
            snapshots=snapshots,
            open_state_log=open_state_log,
            clock=clock,
            has_imported=bool(imported),
        )
        partition._unsnapshotted_bytes = read_bytes
        if data and not usable:
            # It may speak of batches that a crash lost, whose offsets others will get.
            await partition._snapshot()
        return partition

    # ------------------------------------------------------------------ publishing

    def publish(
        self,
        batch: UnstoredBatch,
        rows: pa.RecordBatch,
        acks: Acks = Acks.QUORUM,
        *,
        refusal: QuiverError | None = None,
    ) -> asyncio.Future[Placed]:
        """Store a checked batch. The offset is taken now; the future is done when it is safe.

        With a ``refusal`` it is acknowledged if it was stored before, and not stored else.
        """
        self.log.require_current()
        repeat = self._sessions.judge(batch)
        if repeat is None and refusal is not None:
            raise refusal
        if batch.columns & _DEDUP_ID and self.window.window_us:
            return self._publish_once(batch, rows, acks, is_repeat=repeat is not None)
        if repeat is not None:
            return self._acknowledge_again(repeat.stored)
        return self._stage(batch, rows, acks)[1]

    def _publish_once(
        self, batch: UnstoredBatch, rows: pa.RecordBatch, acks: Acks, *, is_repeat: bool
    ) -> asyncio.Future[Placed]:
        """Store those messages of a batch whose ids are new; ``is_repeat``: none of them is."""
        self.window.expire(self._clock.time_us())
        ids = ids_of(rows, batch.columns)
        repeated = list(range(len(ids))) if is_repeat else self.window.repeats(ids)
        if not repeated:
            entry, placed = self._stage(batch, rows, acks)
            self.window.record(ids, entry.base_offset, entry.append_time)
            return placed
        if len(repeated) == len(ids):
            if not is_repeat:
                self._sessions.skip(batch)
            return self._repeats_only(ids, must_save=batch.producer_id != NO_PRODUCER)
        left = np.delete(np.arange(len(ids)), repeated)
        new = rows.take(pa.array(left))
        # What is left counts as the end of the batch, so that the producer's next one follows it.
        sequence = Sequence(batch.sequence + len(repeated))
        stamp = ProducerStamp(batch.producer_id, batch.producer_epoch, sequence)
        entry, placed = self._stage(encode_record_batch(new, stamp=stamp), new, acks)
        self.window.record([ids[row] for row in left], entry.base_offset, entry.append_time)
        once = StoredOnce(entry.base_offset, entry.append_time, self._places(ids, repeated))
        return self._then(placed, once)

    def _repeats_only(self, ids: list[str | None], *, must_save: bool) -> asyncio.Future[Placed]:
        """Done when the originals are stored and, of a producer, that it has sent these again."""
        places = self._places(ids, range(len(ids)))
        once = StoredOnce(UNKNOWN_OFFSET, Microseconds(0), places)
        return self._then(asyncio.ensure_future(self._settled(must_save)), once)

    async def _settled(self, must_save: bool) -> None:
        await self._settle()
        if must_save:
            await asyncio.shield(self._save_soon())
        if self.log.failure is not None:
            raise unavailable(self.log.failure)

    def _save_soon(self) -> asyncio.Task[None]:
        """A snapshot that begins from now on; all who ask before it begins share it."""
        if self._saving is None:
            self._saving = asyncio.create_task(self._save())
            self._saving.add_done_callback(retrieve_exception)  # whoever asked may have gone
        return self._saving

    async def _save(self) -> None:
        async with self._snapshot_turn:
            self._saving = None
            try:
                await self._snapshot()
            except OSError as error:
                raise _unopened(self.folder, error) from error

    def _places(self, ids: list[str | None], rows: Iterable[int]) -> dict[int, Seen]:
        """Where the messages in these rows are, as far as that is still known."""
        asked = list(rows)
        found = self.window.find_all([ids[row] for row in asked])
        return {row: seen for row, seen in zip(asked, found, strict=True) if seen is not None}

    def _then(self, done: asyncio.Future[Any], once: StoredOnce) -> asyncio.Future[Placed]:
        """``once``, when it is done."""
        placed: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        done.add_done_callback(partial(forward_outcome, placed, once))
        return placed

    def _stage(
        self,
        batch: UnstoredBatch,
        rows: pa.RecordBatch,
        acks: Acks,
        append_time: Microseconds | None = None,
    ) -> tuple[StoredBatch, asyncio.Future[Placed]]:
        try:
            entry, stored = self.log.submit(batch, acks=acks, append_time=append_time)
        except (LogFailed, LogClosed) as error:
            raise unavailable(error) from error
        placed = cast(asyncio.Future[Placed], stored)
        self._underway[entry.base_offset] = placed
        placed.add_done_callback(lambda _: self._underway.pop(entry.base_offset, None))
        self._sessions.record(entry, _last_user_sequence(batch.columns, rows))
        self._unsnapshotted_bytes += entry.size()
        if self._unsnapshotted_bytes >= _SNAPSHOT_BYTES and self._snapshotting is None:
            self._snapshotting = asyncio.create_task(self._snapshot_later())
        return entry, placed

    def _acknowledge_again(self, stored: StoredRange | None) -> asyncio.Future[Placed]:
        """Done when the original is; when everything is, if which it was is forgotten."""
        again: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        place = stored or StoredRange(0, 0, UNKNOWN_OFFSET, Microseconds(0))
        last = Offset(self.log.staged_offset - 1) if stored is None else stored.base_offset
        if last < self.log.next_offset:
            again.set_result(place)
        elif original := self._underway.get(last) or self._newest_underway():
            original.add_done_callback(partial(forward_outcome, again, place))
        elif self.log.failure is not None:
            again.set_exception(unavailable(self.log.failure))
        else:
            again.set_result(place)  # whoever published it asked for no more than it has
        return again

    def _newest_underway(self) -> asyncio.Future[Placed] | None:
        """Done when everything published so far is acknowledged: that goes in order."""
        return next(reversed(self._underway.values()), None)

    async def _settle(self) -> None:
        """Wait until it is known of everything published so far whether it is stored."""
        newest = self._newest_underway()
        if newest is not None:
            await asyncio.wait([newest])

    def restore(
        self, entry: StoredBatch, batch: UnstoredBatch, rows: pa.RecordBatch
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
        if batch.columns & _DEDUP_ID and is_recent:
            ids = rows.column("dedup_id").to_pylist()
            self.window.record(ids, stored.base_offset, stored.append_time)
        return placed

    async def last_user_sequence(self, producer_id: ProducerId) -> int | None:
        """The highest value of the ``sequence`` column that is stored for a producer."""
        await self._settle()
        if self.log.failure is not None:
            raise unavailable(self.log.failure)
        return self._sessions.last_user_sequence(producer_id)

    # ------------------------------------------------------------------ splitting

    async def export_handover(self) -> Offset:
        """Write down what a partition needs that is split off here and now; the offset of the split.

        Everything before it is committed, and stays so.
        """
        offset = self.log.staged_offset
        producers = numbered_producers(self._sessions)
        ids_from, held_from = self.window.first_offset, self.window.held_from
        await self._settle()
        if self.log.failure is not None:
            raise unavailable(self.log.failure)
        if not await self.log.wait_beyond(Offset(offset - 1), _SETTLE_S):
            raise NotEnoughReplicas("the last publish is not on enough replicas yet")
        ids = decode_handover(await self._snapshots.load(IMPORTED)).ids
        async for entry, names in _ids_in(self.log, offset if ids_from is None else ids_from):
            if entry.base_offset < offset:
                ids.append((entry.append_time, [one for one in names if one is not None]))
        handover = SplitHandover(producers, live_ids(ids, held_from))
        try:
            await self._snapshots.save(handover_name(offset), lambda: encode_handover(handover))
        except OSError as error:
            raise _unopened(self.folder, error) from error
        return offset

    async def handover(self, offset: Offset) -> bytes:
        """What was written down for the partition that was split off at an offset."""
        return await self._snapshots.load(handover_name(offset))

    async def import_handover(self, data: bytes) -> None:
        """Keep what was handed down to this partition, before anything is published to it."""
        handover = decode_handover(data)
        _import_ids(self.window, handover)
        _import_producers(self._sessions, handover)
        await self._snapshots.save(IMPORTED, lambda: data)
        self.has_imported = True

    # ------------------------------------------------------------------ maintenance

    async def retain(self, limits: RetentionLimits) -> Offset:
        """Drop the oldest messages that the limits allow; the new start of the log.

        What they tell of their producers is saved first: a repeat is known also when the original
        is gone.
        """
        await asyncio.shield(self._save_soon())
        return await self.log.retain(limits.capped(self._saved_to))

    async def close(self) -> None:
        """Finish what is under way, and leave the log and the sessions for a quick start."""
        self._closed = True
        await self.close_state()
        if self._snapshotting is not None:
            await self._snapshotting
        if self._saving is not None:
            await asyncio.wait([self._saving])
        await self.log.close()
        if self.log.failure is None and self._unsnapshotted_bytes >= _WORTH_BYTES:
            await self._snapshot()

    async def close_state(self) -> None:
        """Let go of the state log, so that another may open it."""
        async with self._state_turn:
            if self.state is not None:
                await self.state.close()

    async def _snapshot_later(self) -> None:
        try:
            async with self._snapshot_turn:
                await self._snapshot()
        except (QuiverError, OSError) as error:
            logger.warning("producer snapshot failed", folder=self.folder, error=str(error))
        finally:
            self._snapshotting = None

    async def _snapshot(self) -> None:
        """Save the sessions, once everything that they speak of is stored."""
        offset = self.log.staged_offset
        data = encode_snapshot(self._sessions, offset, self.window.first_offset)
        self._unsnapshotted_bytes = 0
        await self._settle()
        if self.log.failure is None and self.log.next_offset >= offset:
            await self._snapshots.save(PRODUCERS, lambda: data)
            self._saved_to = offset


async def _rebuild_sessions(
    log: Log, snapshot: ProducerSnapshot, window: DedupWindow
) -> tuple[ProducerSessions, int]:
    """The sessions: from the snapshot, and from the entries stored since; the window from these.

    Also how many bytes were stored since.
    """
    sessions = ProducerSessions(snapshot.sessions)
    begin = (
        snapshot.offset if snapshot.ids_from is None else min(snapshot.ids_from, snapshot.offset)
    )
    offset, size = max(begin, log.stored_from), 0
    async for entry, ids in _ids_in(log, offset):
        if ids:
            window.expire(entry.append_time)
            window.record(ids, entry.base_offset, entry.append_time)
        if entry.base_offset >= snapshot.offset:
            size += entry.size()
            rows = entry.record_batch() if entry.columns & _SEQUENCE else None
            sessions.record(entry, _last_user_sequence(entry.columns, rows))
    return sessions, size


async def _ids_in(log: Log, offset: Offset) -> AsyncIterator[tuple[StoredBatch, list[str | None]]]:
    """The entries from ``offset`` on, each with the ids of its messages if it has any.

    Those of excluded messages count too, as far as they are stored: a repeat of one is a repeat.
    """
    offset = max(offset, log.stored_from)
    while offset < log.next_offset:
        for entry in await log.read(offset, _READ_BYTES, stored=True):
            has_ids = entry.columns & _DEDUP_ID
            yield entry, ids_of(entry.record_batch(), entry.columns) if has_ids else []
            offset = entry.next_offset


def _import_ids(window: DedupWindow, handover: SplitHandover) -> None:
    for time, ids in handover.ids:
        window.import_handover(ids, time)


def _import_producers(sessions: ProducerSessions, handover: SplitHandover) -> None:
    for producer, session in handover.producers.items():
        sessions.import_handover(producer, session.epoch, session.last_user_sequence)


def _last_user_sequence(columns: int, rows: pa.RecordBatch | None) -> int | None:
    if not columns & _SEQUENCE or rows is None:
        return None
    last: int | None = pc.max(rows.column("sequence")).as_py()
    return last


def _unopened(folder: str, error: OSError) -> PartitionUnavailable | DiskFull:
    reason = f"{folder} could not be opened: {error.strerror or error}"
    return unavailable(LogFailed(reason, errno=error.errno))


def unavailable(error: LogFailed | LogClosed) -> PartitionUnavailable | DiskFull:
    """What a client is told of a log that takes no appends."""
    if error.details.get("errno") in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("the node's disk is full: publishing resumes by itself when there is space")
    return PartitionUnavailable(error.message)
