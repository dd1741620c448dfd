"""The state log of one partition: what each subscription has done with its messages.

One log holds the state of all subscriptions of a partition, so their acknowledgements share one sync.
Opening it reads the newest snapshot and the records since. ``commit`` returns a future that is done
when the records are as durable as the messages are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import structlog
from pyroaring import BitMap64

from quiver.aio import retrieve_exception
from quiver.broker.delivery.history import History
from quiver.broker.delivery.look_ahead import LookAhead
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.offset_sets import offset_range
from quiver.broker.delivery.machine.outcome import ACKNOWLEDGED, Outcome
from quiver.broker.delivery.machine.records import (
    DROPPED,
    NO_LEASE,
    AnyRecord,
    Finished,
    Held,
    StateEntry,
    encode_entries,
)
from quiver.broker.delivery.saved_state import decode_saved, encode_saved
from quiver.broker.delivery.slice_cache import SliceCache
from quiver.broker.delivery.snapshots import Snapshots
from quiver.broker.delivery.state_recovery import StateRecovery, learn_keys
from quiver.errors import LogClosed, LogFailed, QuiverError
from quiver.log.log import Log, LogReader
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch
from quiver.model.envelope import TRANSACTIONAL, seal_batch
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import SubscriptionSettings
from quiver.model.transaction import TransactionId

STATE_SETTINGS = LogSettings(segment_bytes=16 << 20, tail_bytes=0)
STATE = "state"
"""The sub-folder of a partition that holds its state log."""
SNAPSHOT = "snapshot"
_SNAPSHOT = f"{STATE}/{SNAPSHOT}"
_SNAPSHOT_BYTES = 4 << 20
"""After this many bytes of records a snapshot is due: opening reads no more of them than this."""
_WORTH_BYTES, _WORTH_MESSAGES = 64 << 10, 10_000
"""A stop saves no snapshot for fewer bytes of records, of fewer messages, than this."""
_READ_BYTES = 4 << 20
_HISTORY_BYTES_MAX = 32 << 20
"""Records stay for as long as the messages that they tell of, up to this much of them."""
_LEISURE_S = 0.02
"""How long records that nobody waits for may wait for others, to share their sync."""

logger = structlog.get_logger()


class _Batch:
    """Records on their way into the state log together."""

    def __init__(self) -> None:
        self.entries: list[StateEntry] = []
        self.is_due = False
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A commit that nobody waits for may fail: the log itself refuses what follows.
        self.stored.add_done_callback(retrieve_exception)


class DeliveryStateLog:
    """Open between ``open`` and ``close``. ``machines`` are by the subscription's number."""

    def __init__(self, folder: str, data: LogReader, log: Log, snapshots: Snapshots) -> None:
        self.data = data
        self._folder = folder
        self.machines: dict[int, DeliveryMachine] = {}
        self._log = log
        self._snapshots = snapshots
        self._batch: _Batch | None = None
        self._newest: asyncio.Future[None] | None = None
        """Of what was given to the log last; what was given before is durable no later."""
        self._closed: asyncio.Future[None] | None = None
        """Of the last transactions that ended: done when that is durable."""
        self._leisure: asyncio.TimerHandle | None = None
        self._unsnapshotted_bytes = 0
        self._observed_from = Offset(0)
        """What the last snapshot tells of all messages before it, of some subscription."""
        self._snapshotting: asyncio.Task[None] | None = None
        self._slices = SliceCache()
        self._lost: dict[int, int] = {}
        """By subscription: how many messages were deleted that it had not finished."""
        self._history = History(log)
        self._look_ahead = LookAhead(data, self._pass_over)
        self.is_open = True
        self._is_ahead = False
        self._is_sealed = False
        self._is_closed = False
        self.on_messages: dict[int, Callable[[], None]] = {}
        """By subscription: called when it may have something to deliver."""
        self.on_acked: dict[int, Callable[[BitMap64], None]] = {}
        """By subscription: called with what the commit of a transaction has acknowledged."""

    @property
    def failure(self) -> LogFailed | None:
        return self._log.failure

    def require_current(self) -> None:
        """A retryable error if a change could not be made durable now."""
        self._log.require_current()

    @classmethod
    async def open(
        cls,
        folder: str,
        data: LogReader,
        log: Log,
        snapshots: Snapshots,
        blank: dict[int, DeliveryMachine],
    ) -> DeliveryStateLog:
        """What the state log says. ``blank`` are the subscriptions there are, as they began."""
        state = cls(folder, data, log, snapshots)
        state.machines = blank
        try:
            await state._recover()
        except BaseException:
            await log.close()
            raise
        state._look_at_next_growth()
        return state

    # ------------------------------------------------------------------ changing the state

    def commit(
        self, subscription: int, records: list[AnyRecord], *, at_leisure: bool = False
    ) -> asyncio.Future[None]:
        """Write records to the state log, together with all that are given in this moment.

        ``at_leisure``: nobody waits for these; they go with the next that somebody waits for.
        """
        if self._batch is None:
            self._batch = _Batch()
        batch = self._batch
        batch.entries.append(StateEntry(subscription, records))
        if not at_leisure and not batch.is_due:
            batch.is_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        elif not batch.is_due and self._leisure is None:
            self._leisure = asyncio.get_running_loop().call_later(_LEISURE_S, self._flush)
        return batch.stored

    def underway(self) -> asyncio.Future[None] | None:
        """Done when everything that was committed so far is durable; ``None`` if it is already."""
        if self._batch is not None:
            self._flush()
        newest = self._newest
        return None if newest is None or _is_stored(newest) else newest

    def _flush(self) -> None:
        if self._leisure is not None:
            self._leisure.cancel()
            self._leisure = None
        batch, self._batch = self._batch, None
        if batch is None:
            return
        self._newest = batch.stored
        if self._is_sealed:
            # Whoever still works on this state knows what the log does not, or not what came later.
            batch.stored.set_exception(LogClosed(f"the delivery state in {self._folder} is closed"))
            return
        body = encode_entries(batch.entries)
        has_held = any(isinstance(one, Held) for change in batch.entries for one in change.records)
        flags = TRANSACTIONAL if has_held else 0  # an earlier Quiver refuses what it cannot read
        try:
            entry, stored = self._log.submit(seal_batch(body, 1, 0, flags=flags))
        except QuiverError as error:
            self._discard()
            batch.stored.set_exception(error)
            return
        self._history.note(batch.entries, entry.next_offset)
        stored.add_done_callback(lambda done: _pass_on(done, batch.stored))
        self._unsnapshotted_bytes += entry.size()
        if self._unsnapshotted_bytes >= _SNAPSHOT_BYTES and self._snapshotting is None:
            self._snapshotting = asyncio.create_task(self._try_to_snapshot())

    def _discard(self) -> None:
        """What the machines say now is in no log: they are of no use any more. Open the state again."""
        self.is_open = False
        self._is_ahead = self._is_sealed = True

    # ------------------------------------------------------------------ transactions

    def held_transactions(self, before: Microseconds) -> set[TransactionId]:
        """The transactions that messages have been waiting for since before a moment."""
        found = [machine.state.held_transactions(before) for machine in self.machines.values()]
        return set().union(*found)

    def close_transactions(
        self, outcomes: Mapping[TransactionId, bool], *, at_leisure: bool = False
    ) -> asyncio.Future[None] | None:
        """Whether each transaction is committed: what waits for it is finished, or ready again.

        Done when that is durable; ``None`` if it is already, or nothing was held. ``at_leisure``: nobody
        waits for it, as the partition is told again if it is lost.
        """
        if not self.is_open:
            raise LogClosed(f"the delivery state in {self._folder} is closed")
        concerned = {
            number: machine
            for number, machine in self.machines.items()
            if machine.state.pending_acks.waits_for(outcomes)
        }
        if concerned:
            self.require_current()
        for number, machine in concerned.items():
            ended = self._end(number, machine, outcomes)
            self._closed = self.commit(number, ended, at_leisure=at_leisure)
            if at_leisure:  # what is ready now is delivered by a record that follows these
                asyncio.get_running_loop().call_soon(self._notify, number)
            else:
                self._closed.add_done_callback(partial(self._notify, number))
        closed = self._closed
        return None if closed is None or _is_stored(closed) else closed

    def _end(
        self, number: int, machine: DeliveryMachine, outcomes: Mapping[TransactionId, bool]
    ) -> list[AnyRecord]:
        records: list[AnyRecord] = []
        for transaction, is_committed in outcomes.items():
            acked, ended = machine.close(transaction, is_committed=is_committed)
            records += ended
            if acked and number in self.on_acked:
                self.on_acked[number](acked)
        return records

    def _notify(self, subscription: int, _: asyncio.Future[None] | None = None) -> None:
        notify = self.on_messages.get(subscription)
        if notify is not None and self.is_open:
            notify()

    async def replace(
        self, machines: dict[int, DeliveryMachine], is_wanted: Callable[[], bool]
    ) -> None:
        """Go on with other states of some subscriptions, as a mirror has them. Durable on return.

        Only if they are still wanted when they are complete: nobody may be delivered to by then. If
        they cannot be stored, the log goes on with what it has: the state is to be opened again.
        """
        if self._snapshotting is not None:
            await self._snapshotting
        for machine in machines.values():
            await learn_keys(machine, self.data)
        if not is_wanted():
            return
        self.machines.update(machines)
        try:
            await self._snapshot(keep_history=False)
            if self._log.failure is not None:
                raise self._log.failure
        except BaseException:
            self._discard()
            raise
        if self._is_ahead:
            raise LogClosed(f"the delivery state in {self._folder} is closed")

    # ------------------------------------------------------------------ learning of messages

    def add(self, blank: dict[int, DeliveryMachine]) -> None:
        """Subscriptions that were made meanwhile join as they began."""
        for number, machine in blank.items():
            self.machines.setdefault(number, machine)

    def reconfigure(self, subscription: int, settings: SubscriptionSettings) -> None:
        """A subscription was altered."""
        machine = self.machines.get(subscription)
        if machine is not None:
            machine.state.reconfigure(settings)

    def forget(self, subscription: int) -> None:
        """A subscription was deleted."""
        self.machines.pop(subscription, None)
        self._history.forget(subscription)
        self.on_messages.pop(subscription, None)
        self.on_acked.pop(subscription, None)

    def pass_over_lost(self, subscription: int, start: Offset) -> None:
        """Go on where the data begins, or is about to. Pending messages before that are lost."""
        machine = self.machines[subscription]
        if machine.view.floor >= start:
            return
        self.lost(subscription, machine.view.pending_below(start))
        records: list[AnyRecord] = []
        if (unseen := offset_range(machine.state.observed_to, start)) and self.is_open:
            self.lost(subscription, len(unseen))
            records.append(Finished(unseen.serialize(), NO_LEASE, DROPPED))
        records += machine.skip_to(start)
        if records:
            self.commit(subscription, records)

    def lost(self, subscription: int, count: int) -> None:
        """Retention deleted messages that a subscription had not finished."""
        self._lost[subscription] = self._lost.get(subscription, 0) + count

    def take_lost(self, subscription: int) -> int:
        """How many messages a subscription has lost since this was asked."""
        return self._lost.pop(subscription, 0)

    def _look_at_next_growth(self) -> None:
        self.data.growth.next_wake().add_done_callback(self._look)

    def _look(self, _: asyncio.Future[None]) -> None:
        if self.is_open:
            self._look_at_next_growth()
            self.look_ahead()
            for notify in self.on_messages.values():
                notify()

    def look_ahead(self) -> None:
        """Tell every subscription that follows the tail of what was published; touches no disk."""
        for machine in self.machines.values():
            self._look_ahead.follow(machine)

    async def catch_up(self, machine: DeliveryMachine, wanted: int) -> None:
        """Let a subscription that is behind learn of enough messages to deliver the right ones."""
        await self._look_ahead.catch_up(machine, wanted)

    def is_behind(self, machine: DeliveryMachine) -> bool:
        """Whether there are messages that a subscription may learn of before it delivers others."""
        return self._look_ahead.is_behind(machine)

    async def catch_up_to(self, machine: DeliveryMachine, end: Offset) -> None:
        """Let a subscription learn of all messages below ``end``."""
        await self._look_ahead.catch_up_to(machine, end)

    def _pass_over(self, machine: DeliveryMachine) -> None:
        """The data begins behind what a subscription has learnt of."""
        number = next(number for number, one in self.machines.items() if one is machine)
        self.pass_over_lost(number, self.data.start_offset)

    def part_of(self, entry: StoredBatch, offsets: BitMap64) -> StoredBatch:
        """The entry, or a slice of it if these offsets are not all that it has."""
        if len(offsets) == entry.count:
            return entry
        return self._slices.of(entry, offsets, keep=len(self.machines) > 1)

    # ------------------------------------------------------------------ opening and closing

    async def _recover(self) -> None:
        """From the snapshot, then from the records since."""
        saved = decode_saved(await self._snapshots.load(_SNAPSHOT))
        recovery = StateRecovery(self.data, self._log, self._history, self._look_ahead)
        is_short = await recovery.restore(self.machines, saved)
        self._observed_from = self._observed_by(min)
        is_short |= await recovery.replay(self.machines)
        self._unsnapshotted_bytes = recovery.replayed_bytes
        if is_short:
            # Messages that a crash lost: their offsets go to others, which no old record may touch.
            await self._snapshot(keep_history=False)

    async def _try_to_snapshot(self) -> None:
        try:
            await self._snapshot()
        except (QuiverError, OSError) as error:
            logger.warning("snapshot failed", folder=self._folder, error=str(error))
        finally:
            self._snapshotting = None

    async def _snapshot(self, *, keep_history: bool = True) -> None:
        """Save the state, once every record in it is stored.

        The records before it are dropped, unless they tell what became of messages.
        """
        self._flush()
        if self._is_ahead:
            return
        offset = self._log.staged_offset
        machines = {number: machine.state.snapshot() for number, machine in self.machines.items()}
        sought = dict(self._history.sought)
        self._unsnapshotted_bytes = 0
        self._observed_from = self._observed_by(min)
        while self._log.next_offset < offset:
            if self._log.failure is not None:
                return
            await self._log.wait_beyond(Offset(offset - 1), timeout_s=60)
        await self._snapshots.save(_SNAPSHOT, partial(encode_saved, offset, machines, sought))
        needed_from = await self._snapshots.needed_from(offset)
        limits = RetentionLimits(before=needed_from)
        if keep_history:
            limits = RetentionLimits(before=await self._told_from(), bytes=_HISTORY_BYTES_MAX)
        await self._log.retain(limits.capped(needed_from))

    async def _told_from(self) -> Offset | None:
        """From where on the records may tell what became of messages that are still there."""
        first = await self.data.read(self.data.start_offset, 1)
        return await self._log.offset_at(first[0].append_time) if first else None

    async def outcome(
        self, subscription: int, offset: Offset, since: Microseconds
    ) -> Outcome | None:
        """How a message ended that was published at ``since``, if the records still tell."""
        if (underway := self.underway()) is not None:
            await asyncio.shield(underway)
        found = await self._history.outcome(subscription, offset, since)
        if found is None and offset in self.machines[subscription].state.acked:
            return Outcome(ACKNOWLEDGED)
        return found

    async def close(self) -> None:
        """Let go of the state log. May be called twice."""
        if self._is_closed:
            return
        self._is_closed, self.is_open = True, False
        self._flush()
        self._is_sealed = True
        if self._snapshotting is not None:
            await self._snapshotting
        if self._log.failure is None and self._is_worth_a_snapshot:
            await self._try_to_snapshot()
        await self._log.close()

    @property
    def _is_worth_a_snapshot(self) -> bool:
        """Whether opening would take long without one, or not know what is not ready."""
        observed = self._observed_by(max) - self._observed_from
        return (
            self._unsnapshotted_bytes >= _WORTH_BYTES
            or observed >= _WORTH_MESSAGES
            or any(machine.state.has_more_than_ready for machine in self.machines.values())
        )

    def _observed_by(self, choose: Callable[[Iterable[Offset]], Offset]) -> Offset:
        """How far the subscriptions have learnt of messages: the first of them, or the last."""
        observed = [machine.state.observed_to for machine in self.machines.values()]
        return choose(observed) if observed else self.data.next_offset


def _is_stored(stored: asyncio.Future[None]) -> bool:
    return stored.done() and stored.exception() is None


def _pass_on(done: asyncio.Future[StoredBatch], stored: asyncio.Future[None]) -> None:
    if stored.done():
        return
    error = retrieve_exception(done)
    if error is not None:
        stored.set_exception(error)
    else:
        stored.set_result(None)
