"""What is known of the messages of one subscription in one partition, and how records change it.

Every message is in exactly one place: ready, waiting for its key, delayed, reserved, leased, waiting for a
transaction, dead-letter pending (on its way to the dead-letter topic), or finished, which is being in none
of the others. To the state log, and so after a restart, a reserved message is a ready one.
``apply`` is the same fold for a live change and for one read back after a restart. The view and the
machine of the same package read the parts of the state; nobody else does.
"""

from __future__ import annotations

from msgspec.structs import replace
from pyroaring import BitMap64

from quiver.broker.delivery.machine.acked import RecentAcks
from quiver.broker.delivery.machine.arrival import Arrival, IndexedArrival
from quiver.broker.delivery.machine.attempts import Attempts
from quiver.broker.delivery.machine.delivery_times import DeliveryTimes
from quiver.broker.delivery.machine.keys.key_order import KeyOrder
from quiver.broker.delivery.machine.leases import Lease, LeaseTable
from quiver.broker.delivery.machine.offset_sets import Label, offset_range
from quiver.broker.delivery.machine.pending_acks import PendingAck, PendingAcks
from quiver.broker.delivery.machine.ready import PublishTimes, ReadyQueue
from quiver.broker.delivery.machine.records import (
    NO_LEASE,
    AnyRecord,
    DeadLettered,
    DeadLetterPending,
    Extended,
    Finished,
    Held,
    Leased,
    Returned,
    Sought,
)
from quiver.broker.delivery.machine.reservations import Reservations
from quiver.broker.delivery.machine.snapshot import DeliverySnapshot
from quiver.broker.delivery.machine.timed import Moments, TimedOffsets
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import Ordering, SubscriptionSettings
from quiver.model.transaction import TransactionId

_NONE = BitMap64()


class DeliveryState:
    """Messages come in with ``observe``, in order, from ``start`` on."""

    def __init__(self, settings: SubscriptionSettings, start: Offset, name: str = "") -> None:
        self.name = name
        self.settings = settings
        self.dead = BitMap64()
        self._begin(start)

    def _begin(self, start: Offset) -> None:
        """Nothing has been observed; the first message is to be the one at ``start``."""
        settings = self.settings
        self.start = start
        self.observed_to = start
        self.keys_from: Offset | None = None
        """After a restore: from where on keys must be learned before anything else happens."""
        by_priority = settings.ordering is Ordering.NONE
        self.ready = ReadyQueue(
            settings.ageing_us if by_priority else 0,
            is_fair=by_priority and settings.fairness is not None,
        )
        self.keys = KeyOrder() if settings.ordering is Ordering.KEY else None
        self.acked = RecentAcks()
        self.times = DeliveryTimes()
        self.delayed = TimedOffsets()
        self.scheduled = TimedOffsets()
        """What was published for a later time and is not finished: retention counts from then."""
        self.expiring = TimedOffsets()
        self.expired_in_lease = BitMap64()
        self.reserved = Reservations()
        self.leases = LeaseTable()
        self.pending_acks = PendingAcks()
        self.suspects = BitMap64()
        """What a consumer had when it ended without a word. Each is delivered alone."""
        self.suspects_cleared_at = Microseconds(0)
        """When the next of them is none any more, if its consumer is still there."""
        self.attempts = Attempts()
        self.errors: dict[int, str] = {}
        self.dead_letter_pending = BitMap64()

    def reconfigure(self, settings: SubscriptionSettings) -> None:
        """Go on with other settings; ordering, guarantee and fairness stay."""
        assert settings.ordering is self.settings.ordering
        self.settings = settings
        if settings.ordering is Ordering.NONE:
            self.ready.ageing_us = settings.ageing_us

    # ------------------------------------------------------------------ what the fold needs to know

    @property
    def floor(self) -> Offset:
        """Everything below is finished."""
        sets = (
            self.delayed.members,
            self.reserved.held,
            self.leases.held,
            self.pending_acks.members,
            self.dead_letter_pending,
            self.waiting,
        )
        firsts = [offsets.min() for offsets in sets if offsets]
        ready = self.ready.first
        return Offset(min([*firsts, self.observed_to] + ([] if ready is None else [ready])))

    @property
    def waiting(self) -> BitMap64:
        """Messages that wait for others with the same key."""
        return _NONE if self.keys is None else self.keys.waiting

    def held_transactions(self, before: Microseconds) -> set[TransactionId]:
        """The transactions that messages have been waiting for since before a moment."""
        return self.pending_acks.since(before)

    @property
    def published(self) -> PublishTimes:
        """When messages were published, for as long as they are not finished."""
        return self.ready.published

    @property
    def has_more_than_ready(self) -> bool:
        """Whether there is something that a subscription that has not looked would take for ready."""
        return bool(len(self.delayed) or len(self.expiring) or self.settings.filter)

    @property
    def wants_keys(self) -> bool:
        return self.keys is not None

    # ------------------------------------------------------------------ messages come and go

    def observe(self, arrival: Arrival | IndexedArrival) -> None:
        """Take in what comes next in the partition; what began before ``start`` only in part."""
        assert arrival.base_offset <= self.observed_to < arrival.next_offset, "in order, no gaps"
        assert self.keys_from is None, "keys are learned first"
        fresh = arrival.passed_from(self.observed_to)
        self.observed_to = arrival.next_offset
        for base_offset, time in arrival.published:
            self.published.add(base_offset, Microseconds(time))
        if self.published.is_full:
            self.published.make_room(self.floor)
        if self.keys is not None:
            self.keys.learn(fresh, arrival.key, arrival.base_offset)
        elif self.settings.ordering is Ordering.NONE:
            for priority, offsets in arrival.by_priority():
                self.ready.set_priority(offsets & fresh, priority)
            if self.ready.tenants is not None:
                for tenant, offsets in arrival.by_tenant():
                    self.ready.tenants.learn(tenant, offsets & fresh)
        if (expiries := arrival.expiries(fresh)) is not None:
            self.expiring.add_each(*expiries)
        if (delays := arrival.delays(fresh)) is not None:
            self.delayed.add_each(*delays)
            self.scheduled.add_each(*delays)
            fresh -= self.delayed.members
        self._line_up(fresh, newest=True)

    def begin_at(self, start: Offset) -> None:
        """The log begins at ``start`` now; what was before is finished."""
        self.dead.remove_range(0, start)
        self.start = max(self.start, start)
        self.observed_to = max(self.observed_to, start)
        self.acked.keep_within(self.start, self.observed_to)
        if self.keys_from is not None:
            self._learn_from(max(self.keys_from, start))

    def forget_from(self, end: Offset) -> None:
        """The log ends at ``end`` after a crash: what was after it never was."""
        lost = offset_range(end, self.observed_to)
        for lease in self.leases.overlapping(lost):
            self.leases.release(lease.id, lost)
        for one in self.pending_acks.overlapping(lost):
            self.pending_acks.release(one.lease_id, lost)
        self._finish(lost)
        self.acked.keep_within(self.start, end)
        self.dead -= lost
        self.published.forget_from(end)
        self.start = min(self.start, end)
        self.observed_to = min(self.observed_to, end)
        if self.keys is not None:
            self.keys.forget_from(end)
        if self.keys_from is not None:
            self._learn_from(self.keys_from)

    # ------------------------------------------------------------------ time passes

    def take_expired(self, now: Microseconds) -> BitMap64:
        """Messages that have expired since; those that somebody has are remembered as such."""
        expired = self.expiring.take_due(now)
        if expired:
            self.expired_in_lease |= expired & self.leases.held
            self.expired_in_lease |= expired & self.reserved.held
            self.expired_in_lease |= expired & self.pending_acks.members
        return expired

    def scheduled_after(self, time: Microseconds) -> Offset | None:
        """The first unfinished message that was scheduled for later than ``time``.

        Those for earlier are forgotten: they are like any other from now on.
        """
        self.scheduled.take_due(time)
        return Offset(self.scheduled.members.min()) if self.scheduled else None

    def end_delays(self, now: Microseconds) -> None:
        """Delayed messages whose time has come could be delivered from now on."""
        self._line_up(self.delayed.take_due(now))

    def clear_suspects(self, now: Microseconds, after_us: int) -> None:
        """What a consumer has had for so long without ending is no suspect any more."""
        self.suspects_cleared_at = Microseconds(now + after_us)
        for lease in list(self.leases) if self.suspects.intersect(self.leases.held) else ():
            if self.suspects.intersect(lease.offsets):
                due = Microseconds(lease.granted + after_us)
                if due <= now:
                    self.suspects -= lease.offsets
                else:
                    self.suspects_cleared_at = min(self.suspects_cleared_at, due)

    # ------------------------------------------------------------------ over a restart

    def snapshot(self) -> DeliverySnapshot:
        """The complete state, but for the keys."""
        assert self.keys_from is None, "keys are learned first"
        return DeliverySnapshot(
            start=self.start,
            observed_to=self.observed_to,
            ready=BitMap64.union(self.ready.offsets, self.waiting, self.reserved.held),
            under_way=_NONE.copy() if self.keys is None else self.keys.taken,
            priorities=_copied(self.ready.priorities),
            published=self.published.moments(),
            delayed=self.delayed.moments(),
            scheduled=self._scheduled_and_due(),
            expiring=self.expiring.moments(),
            expired_in_lease=self.expired_in_lease.copy(),
            leases=[replace(lease, offsets=lease.offsets.copy()) for lease in self.leases],
            attempts=_copied(self.attempts.levels),
            dead_letter_pending=self.dead_letter_pending.copy(),
            errors=self.errors.copy(),
            dead=self.dead.copy(),
            acked=_copied(self.acked.by_lease),
            tenants={} if self.ready.tenants is None else _copied(self.ready.tenants.pending),
            first_delivered=self.times.first.moments(),
            last_delivered=self.times.last.moments(),
            suspects=self.suspects.copy(),
            pending_acks=[replace(one, offsets=one.offsets.copy()) for one in self.pending_acks],
        )

    def restore(self, snapshot: DeliverySnapshot) -> None:
        """Begin with this state instead; with order by key, ``learn`` has to follow."""
        assert self.observed_to == self.start, "a machine is restored before it observes"
        self.start = snapshot.start
        self.observed_to = snapshot.observed_to
        self.published.restore(snapshot.published)
        if self.settings.ordering is Ordering.NONE:
            self.ready.priorities = _copied(snapshot.priorities)
            if self.ready.tenants is not None:
                self.ready.tenants.pending = _copied(snapshot.tenants)
        self.acked.by_lease = _copied(snapshot.acked)
        self.times.restore(snapshot.first_delivered, snapshot.last_delivered)
        self.delayed.add_each(snapshot.delayed.times, snapshot.delayed.offsets)
        self.expiring.add_each(snapshot.expiring.times, snapshot.expiring.offsets)
        self.expired_in_lease = snapshot.expired_in_lease - snapshot.ready
        expired_in_reservation = snapshot.expired_in_lease & snapshot.ready
        self.expiring.add(expired_in_reservation, Microseconds(0))
        for lease in snapshot.leases:
            self.leases.grant(replace(lease, offsets=lease.offsets.copy()))
        for one in snapshot.pending_acks:
            self.pending_acks.add(replace(one, offsets=one.offsets.copy()))
        self.attempts.levels = _copied(snapshot.attempts)
        self._restore_scheduled(snapshot)
        self.dead_letter_pending = snapshot.dead_letter_pending.copy()
        self.errors = snapshot.errors.copy()
        self.dead = snapshot.dead.copy()
        self.suspects = snapshot.suspects.copy()
        if self.keys is None:
            self.ready.add(snapshot.ready)
            return
        under_way = snapshot.under_way | self.leases.held | self.dead_letter_pending
        under_way |= self.pending_acks.members
        self.keys.restore(snapshot.ready, under_way)
        self.ready.add(snapshot.ready & under_way)
        self._learn_from(self.floor)

    def _scheduled_and_due(self) -> Moments:
        """What was scheduled, but for what still waits for its time."""
        waits = self.delayed.members - self.attempts.among(self.delayed.members)
        return self.scheduled.moments().without(waits)

    def _restore_scheduled(self, snapshot: DeliverySnapshot) -> None:
        """What is delayed and was never tried waits for the time it was scheduled for."""
        tried = self.attempts.among(self.delayed.members)
        for moments in (snapshot.scheduled, snapshot.delayed.without(tried)):
            self.scheduled.add_each(moments.times, moments.offsets)

    def learn(self, arrival: Arrival) -> None:
        """Take in again the keys of a batch, in order, from ``keys_from`` until that is ``None``."""
        assert self.keys is not None
        assert self.keys_from is not None
        assert arrival.base_offset <= self.keys_from < arrival.next_offset, "in order, no gaps"
        batch = offset_range(arrival.base_offset, arrival.next_offset)
        pending = batch & self.keys.waiting
        pending |= batch & self.keys.under_way
        pending |= batch & self.delayed.members
        self.keys.learn(pending, arrival.key, arrival.base_offset)
        self._learn_from(arrival.next_offset)

    def _learn_from(self, offset: Offset) -> None:
        """Keys below are known again; once all are, the lines form."""
        assert self.keys is not None
        self.keys_from = offset if offset < self.observed_to else None
        if self.keys_from is None:
            self.ready.add(self.keys.complete())

    # ------------------------------------------------------------------ the fold

    def apply(self, record: AnyRecord, offsets: BitMap64 | None = None) -> None:
        """Change the state as the record says; messages it speaks of have been observed.

        ``offsets`` are those of the record, for this to keep, if the caller has them at hand.
        """
        if isinstance(record, Sought):
            self.dead.remove_range(record.start, max(record.start, self.observed_to))
            self._begin(record.start)
            return
        if offsets is None:
            offsets = record.bitmap
        offsets.remove_range(0, self.start)
        if offsets:
            self._change(record, offsets)

    def _change(self, record: AnyRecord, offsets: BitMap64) -> None:
        match record:
            case Leased():
                self._lease(record, offsets)
            case Finished():
                self.leases.release(record.lease_id, offsets)
                self.pending_acks.release(record.lease_id, offsets)
                self._finish(offsets)
                if record.lease_id != NO_LEASE:
                    self.acked.add(record.lease_id, offsets)
            case Extended():
                self.leases.extend(record.lease_id, offsets, record.deadline)
            case Returned():
                self._return(record, offsets)
            case Held():
                self._hold(record, offsets)
            case DeadLetterPending():
                self._become_dead_letters(record, offsets)
            case DeadLettered():
                self._finish(offsets)
                self.dead |= offsets

    def reserve(self, lease_id: int, consumer: str, offsets: BitMap64) -> None:
        """Keep ready messages for a consumer. This is no record: a restart makes them ready again."""
        self.ready.discard(offsets)
        if self.keys is not None:
            self.ready.discard(self.keys.reserve(offsets))
        self.reserved.add(lease_id, consumer, offsets)

    def unreserve(self, lease_id: int, offsets: BitMap64) -> None:
        """They are ready again, as if they had never been reserved."""
        self.reserved.release(lease_id, offsets)
        self.ready.add(offsets if self.keys is None else self.keys.let_go(offsets))

    def _lease(self, record: Leased, offsets: BitMap64) -> None:
        self._line_up(self.delayed.take_due(record.granted))
        self.reserved.release(record.lease_id, offsets)
        self._withdraw(offsets)
        if self.keys is not None:
            self.ready.discard(self.keys.hold(offsets))
        self.attempts.add_delivery(offsets)
        self.leases.grant(
            Lease(
                id=record.lease_id,
                offsets=offsets,
                consumer=record.consumer,
                granted=record.granted,
                deadline=record.deadline,
                is_session=record.is_session,
            )
        )

    def _return(self, record: Returned, offsets: BitMap64) -> None:
        if not record.counted:
            self.leases.release(record.lease_id, offsets)
            self.pending_acks.release(record.lease_id, offsets)
            self.attempts.take_back(offsets)
            self._line_up(offsets)
            return
        for granted, part in self.leases.by_grant(record.lease_id, offsets):
            self.times.returned(part & self.attempts.once, granted)
        self.leases.release(record.lease_id, offsets)
        self.delayed.add(offsets, record.due)
        if record.is_suspect:
            self.suspects |= offsets
        else:
            self.suspects -= offsets

    def _hold(self, record: Held, offsets: BitMap64) -> None:
        self.leases.release(record.lease_id, offsets)
        self.suspects -= offsets  # its consumer has come to the end of its work on them
        self.pending_acks.add(
            PendingAck(
                transaction=record.transaction,
                lease_id=record.lease_id,
                since=record.time,
                offsets=offsets,
            )
        )

    def _become_dead_letters(self, record: DeadLetterPending, offsets: BitMap64) -> None:
        for granted, part in self.leases.by_grant(record.lease_id, offsets):
            self.times.dead_letter_pending(part, part & self.attempts.once, granted)
        self.leases.release(record.lease_id, offsets)
        self.expiring.discard(offsets)
        self.suspects -= offsets
        self.dead_letter_pending |= offsets
        if record.error:
            self.errors.update(dict.fromkeys(offsets, record.error))

    def _line_up(self, offsets: BitMap64, *, newest: bool = False) -> None:
        """These could be delivered from now on; whether they are ready may depend on their keys."""
        if not offsets:
            return
        if self.keys is not None:
            offsets, overtaken = self.keys.line_up(offsets, newest=newest)
            self.ready.discard(overtaken)
        self.ready.add(offsets)

    def _withdraw(self, offsets: BitMap64) -> None:
        self.ready.discard(offsets)
        self.delayed.discard(offsets)
        self.reserved.discard(offsets)

    def _finish(self, offsets: BitMap64) -> None:
        self._withdraw(offsets)
        self.ready.forget(offsets)
        self.scheduled.discard(offsets)
        self.expiring.discard(offsets)
        self.expired_in_lease -= offsets
        self.suspects -= offsets
        self.attempts.forget(offsets)
        self.times.forget(offsets)
        if self.dead_letter_pending.intersect(offsets):
            for offset in self.dead_letter_pending & offsets:
                self.errors.pop(offset, None)
            self.dead_letter_pending -= offsets
        if self.keys is not None:
            self.ready.add(self.keys.finish(offsets))


def _copied(sets: dict[Label, BitMap64]) -> dict[Label, BitMap64]:
    return {label: offsets.copy() for label, offsets in sets.items()}
