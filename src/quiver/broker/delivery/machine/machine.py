"""The delivery state of one subscription in one partition: a pure machine.

Every message it knows is in exactly one place: ready, waiting for its key, delayed, leased,
dead-letter pending (on its way to the dead-letter topic), or finished, which is being in none of the
others. Calls that change the state return the records that say so, for the state log; ``apply`` is
the same fold for a live change and for one read back after a restart. Time comes in with each call.
"""

from __future__ import annotations

from itertools import islice

import msgspec
from msgspec.structs import replace
from pyroaring import BitMap64

from quiver.broker.delivery.machine.acked import RecentAcks
from quiver.broker.delivery.machine.arrival import Arrival
from quiver.broker.delivery.machine.attempts import Attempts
from quiver.broker.delivery.machine.delivery_times import DeliveryTimes
from quiver.broker.delivery.machine.key_order import KeyOrder
from quiver.broker.delivery.machine.leases import Lease, LeaseTable
from quiver.broker.delivery.machine.offset_sets import Label, lowest, offset_range
from quiver.broker.delivery.machine.ready import PublishTimes, ReadyQueue
from quiver.broker.delivery.machine.records import (
    NO_LEASE,
    AnyRecord,
    DeadLettered,
    DeadLetterPending,
    Extended,
    Finished,
    Leased,
    Returned,
    Sought,
)
from quiver.broker.delivery.machine.snapshot import DeliverySnapshot
from quiver.broker.delivery.machine.timed import TimedOffsets
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import Guarantee, Ordering, SubscriptionSettings

_ERROR_LENGTH_MAX = 1000
_LEASES_LOOKED_AT = 1000
_NONE = BitMap64()
_EMPTY = BitMap64().serialize()


class Taken(msgspec.Struct, frozen=True):
    """What a receive was given. ``deliveries`` says how often each was delivered, this time included."""

    lease_id: int
    offsets: BitMap64
    deliveries: dict[int, BitMap64]
    deadline: Microseconds


class Depth(msgspec.Struct, frozen=True):
    ready: int
    delayed: int
    leased: int
    dead_letter_pending: int
    dead: int


class DeliveryMachine:
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
        self._ready = ReadyQueue(
            settings.ageing_us if by_priority else 0,
            is_fair=by_priority and settings.fairness is not None,
        )
        self._keys = KeyOrder() if settings.ordering is Ordering.KEY else None
        self._acked = RecentAcks()
        self._times = DeliveryTimes()
        self._delayed = TimedOffsets()
        self._expiring = TimedOffsets()
        self._expired_in_lease = BitMap64()
        self._leases = LeaseTable()
        self._attempts = Attempts()
        self._errors: dict[int, str] = {}
        self.dead_letter_pending = BitMap64()

    def reconfigure(self, settings: SubscriptionSettings) -> None:
        """Go on with other settings; ordering, guarantee and fairness stay."""
        assert settings.ordering is self.settings.ordering
        self.settings = settings
        if settings.ordering is Ordering.NONE:
            self._ready.ageing_us = settings.ageing_us

    # ------------------------------------------------------------------ what is there

    @property
    def floor(self) -> Offset:
        """Everything below is finished."""
        sets = (self._delayed.members, self._leases.held, self.dead_letter_pending, self._waiting)
        firsts = [offsets.min() for offsets in sets if offsets]
        ready = self._ready.first
        return Offset(min([*firsts, self.observed_to] + ([] if ready is None else [ready])))

    def has_passed(self, offset: Offset) -> bool:
        """Whether everything below is finished, but for what waits for the time it was scheduled
        for: that is in nobody's way."""
        retried = self._attempts.among(self._delayed.members)
        sets = (retried, self._leases.held, self.dead_letter_pending, self._waiting)
        firsts = [offsets.min() for offsets in sets if offsets]
        ready = self._ready.first
        return min([*firsts, self.observed_to] + ([] if ready is None else [ready])) >= offset

    @property
    def depth(self) -> Depth:
        return Depth(
            ready=len(self._ready) + len(self._waiting),
            delayed=len(self._delayed),
            leased=len(self._leases.held),
            dead_letter_pending=len(self.dead_letter_pending),
            dead=len(self.dead),
        )

    @property
    def pending_count(self) -> int:
        """How many messages are known and not finished."""
        depth = self.depth
        return depth.ready + depth.delayed + depth.leased + depth.dead_letter_pending

    @property
    def published(self) -> PublishTimes:
        """When messages were published, for as long as they are not finished."""
        return self._ready.published

    @property
    def oldest_time(self) -> Microseconds | None:
        """When the oldest message was published that is known, not finished, and not still waiting
        for the time for which it was scheduled."""
        retried = self._attempts.among(self._delayed.members)
        sets = (retried, self._leases.held, self.dead_letter_pending, self._waiting)
        firsts = [offsets.min() for offsets in sets if offsets]
        ready = self._ready.first
        oldest = min([*firsts] + ([] if ready is None else [ready]), default=None)
        if oldest is None or not self.published.times:
            return None
        return Microseconds(self.published.of(oldest))

    def pending_below(self, end: Offset) -> int:
        """How many messages before ``end`` are known and not finished."""
        sets = (
            self._ready.offsets,
            self._waiting,
            self._delayed.members,
            self._leases.held,
            self.dead_letter_pending,
        )
        return sum(offsets.range_cardinality(0, end) for offsets in sets)

    @property
    def ready_count(self) -> int:
        """How many messages a ``take`` could have right now."""
        if self.settings.ordering is not Ordering.PARTITION:
            return len(self._ready)
        return len(self._in_turn(len(self._ready)))

    @property
    def waiting_count(self) -> int:
        """How many messages could be delivered if others were not before them."""
        return len(self._ready) + len(self._waiting) - self.ready_count

    @property
    def wants_keys(self) -> bool:
        return self._keys is not None

    def next_event(self) -> Microseconds | None:
        """When ``tick`` has something to do next."""
        times = (self._delayed.next_due, self._expiring.next_due, self._leases.next_deadline)
        return min((time for time in times if time is not None), default=None)

    def state_of(self, offset: Offset) -> str:
        """Where a message stands: ready, delayed, leased, dead_letter_pending, dead or finished."""
        if offset in self._delayed.members:
            return "delayed"
        if offset in self._leases.held:
            return "leased"
        if offset in self.dead_letter_pending:
            return "dead_letter_pending"
        if offset in self.dead:
            return "dead"
        if offset in self._waiting or offset in self._ready or offset >= self.observed_to:
            return "ready"
        return "finished"

    def in_state(self, state: str) -> BitMap64:
        """The messages that are ready (be it that they wait for others), delayed or leased."""
        if state == "ready":
            return self._ready.offsets | self._waiting
        return (self._delayed.members if state == "delayed" else self._leases.held).copy()

    def holder(self, offset: Offset) -> Lease | None:
        return self._leases.holder(offset)

    def held(self, lease_id: int, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that the lease holds."""
        return self._leases.valid(lease_id, offsets)

    @property
    def consumers(self) -> set[str]:
        """Who holds messages, as far as a look at so many leases shows."""
        return {lease.consumer for lease in islice(self._leases, _LEASES_LOOKED_AT)}

    def has_leases(self, consumer: str) -> bool:
        return any(True for _ in self._leases.of_consumer(consumer))

    def due_of(self, offset: Offset) -> Microseconds | None:
        """When a delayed message may be delivered."""
        return self._delayed.time_of(offset)

    def delivery_times(self, offsets: BitMap64) -> tuple[dict[int, int], dict[int, int]]:
        """When pending dead letters were delivered for the first and for the last time."""
        return self._times.first_of(offsets), self._times.last_of(offsets)

    def deliveries(self, offset: Offset) -> int:
        return self._attempts.of(offset)

    def deliveries_of(self, offsets: BitMap64) -> dict[int, BitMap64]:
        """Those of the offsets that were delivered, by how often."""
        return self._attempts.split(offsets)

    def last_error(self, offset: Offset) -> str:
        """The last error of a pending dead letter, if its consumer gave one."""
        return self._errors.get(offset, "")

    @property
    def _waiting(self) -> BitMap64:
        return _NONE if self._keys is None else self._keys.waiting

    # ------------------------------------------------------------------ messages come and go

    def observe(self, arrival: Arrival) -> None:
        """Take in the next batch of the partition; one that began before ``start`` only in part."""
        assert arrival.base_offset <= self.observed_to < arrival.next_offset, "in order, no gaps"
        assert self.keys_from is None, "keys are learned first"
        fresh = arrival.passed_from(self.observed_to)
        self.observed_to = arrival.next_offset
        self.published.add(arrival.base_offset, arrival.time)
        if self.published.is_full:
            self.published.make_room(self.floor)
        if self._keys is not None:
            self._keys.learn(fresh, arrival.key, arrival.base_offset)
        elif self.settings.ordering is Ordering.NONE:
            for priority, offsets in arrival.by_priority():
                self._ready.set_priority(offsets & fresh, priority)
            if self._ready.tenants is not None:
                for tenant, offsets in arrival.by_tenant():
                    self._ready.tenants.learn(tenant, offsets & fresh)
        if arrival.expires_at is not None:
            self._expiring.add_each(*arrival.timed(arrival.expires_at, fresh))
        if arrival.deliver_at is not None:
            self._delayed.add_each(*arrival.timed(arrival.deliver_at, fresh))
            fresh -= self._delayed.members
        self._line_up(fresh, newest=True)

    def skip_to(self, start: Offset) -> list[AnyRecord]:
        """The log begins at ``start`` now: what was before is gone, whoever has it."""
        records = self.give_up(offset_range(0, start))
        self.dead.remove_range(0, start)
        self.start = max(self.start, start)
        self.observed_to = max(self.observed_to, start)
        self._acked.keep_within(self.start, self.observed_to)
        if self.keys_from is not None:
            self._learn_from(max(self.keys_from, start))
        return records

    def forget_from(self, end: Offset) -> None:
        """The log ends at ``end`` after a crash: what was after it never was."""
        lost = offset_range(end, self.observed_to)
        for lease in self._leases.overlapping(lost):
            self._leases.release(lease.id, lost)
        self._finish(lost)
        self._acked.keep_within(self.start, end)
        self.dead -= lost
        self.published.forget_from(end)
        self.start = min(self.start, end)
        self.observed_to = min(self.observed_to, end)
        if self._keys is not None:
            self._keys.forget_from(end)
        if self.keys_from is not None:
            self._learn_from(self.keys_from)

    def seek(self, start: Offset) -> list[AnyRecord]:
        """Begin again at ``start``: what is before is done with, and receipts are good no more."""
        return [self._done(Sought(_EMPTY, start))]

    # ------------------------------------------------------------------ over a restart

    def snapshot(self) -> DeliverySnapshot:
        """The complete state, but for the keys."""
        assert self.keys_from is None, "keys are learned first"
        return DeliverySnapshot(
            start=self.start,
            observed_to=self.observed_to,
            ready=self._ready.offsets | self._waiting,
            under_way=_NONE.copy() if self._keys is None else self._keys.under_way.copy(),
            priorities=_copied(self._ready.priorities),
            published=self.published.moments(),
            delayed=self._delayed.moments(),
            expiring=self._expiring.moments(),
            expired_in_lease=self._expired_in_lease.copy(),
            leases=[replace(lease, offsets=lease.offsets.copy()) for lease in self._leases],
            attempts=_copied(self._attempts.levels),
            dead_letter_pending=self.dead_letter_pending.copy(),
            errors=self._errors.copy(),
            dead=self.dead.copy(),
            acked=_copied(self._acked.by_lease),
            tenants={} if self._ready.tenants is None else _copied(self._ready.tenants.pending),
            first_delivered=self._times.first.moments(),
            last_delivered=self._times.last.moments(),
        )

    def restore(self, snapshot: DeliverySnapshot) -> None:
        """Begin with this state instead; with order by key, ``learn`` has to follow."""
        assert self.observed_to == self.start, "a machine is restored before it observes"
        self.start = snapshot.start
        self.observed_to = snapshot.observed_to
        self.published.restore(snapshot.published)
        if self.settings.ordering is Ordering.NONE:
            self._ready.priorities = _copied(snapshot.priorities)
            if self._ready.tenants is not None:
                self._ready.tenants.pending = _copied(snapshot.tenants)
        self._acked.by_lease = _copied(snapshot.acked)
        self._times.restore(snapshot.first_delivered, snapshot.last_delivered)
        self._delayed.add_each(snapshot.delayed.times, snapshot.delayed.offsets)
        self._expiring.add_each(snapshot.expiring.times, snapshot.expiring.offsets)
        self._expired_in_lease = snapshot.expired_in_lease.copy()
        for lease in snapshot.leases:
            self._leases.grant(replace(lease, offsets=lease.offsets.copy()))
        self._attempts.levels = _copied(snapshot.attempts)
        self.dead_letter_pending = snapshot.dead_letter_pending.copy()
        self._errors = snapshot.errors.copy()
        self.dead = snapshot.dead.copy()
        if self._keys is None:
            self._ready.add(snapshot.ready)
            return
        under_way = snapshot.under_way | self._leases.held | self.dead_letter_pending
        self._keys.restore(snapshot.ready, under_way)
        self._ready.add(snapshot.ready & under_way)
        self._learn_from(self.floor)

    def learn(self, arrival: Arrival) -> None:
        """Take in again the keys of a batch, in order, from ``keys_from`` until that is ``None``."""
        assert self._keys is not None
        assert self.keys_from is not None
        assert arrival.base_offset <= self.keys_from < arrival.next_offset, "in order, no gaps"
        batch = offset_range(arrival.base_offset, arrival.next_offset)
        pending = batch & self._keys.waiting
        pending |= batch & self._keys.under_way
        pending |= batch & self._delayed.members
        self._keys.learn(pending, arrival.key, arrival.base_offset)
        self._learn_from(arrival.next_offset)

    def _learn_from(self, offset: Offset) -> None:
        """Keys below are known again; once all are, the lines form."""
        assert self._keys is not None
        self.keys_from = offset if offset < self.observed_to else None
        if self.keys_from is None:
            self._ready.add(self._keys.complete())

    # ------------------------------------------------------------------ time passes

    def tick(self, now: Microseconds) -> list[AnyRecord]:
        """Do what is due: messages expire, leases lapse, delays end."""
        records: list[AnyRecord] = []
        expired = self._expiring.take_due(now)
        if expired:
            self._expired_in_lease |= expired & self._leases.held
            records += self.drop(expired)
        for lease in self._leases.take_lapsed(now):
            records += self._return_counted(lease.id, lease.offsets.copy(), now)
        self._line_up(self._delayed.take_due(now))
        return records

    # ------------------------------------------------------------------ consumers

    def take(
        self,
        now: Microseconds,
        *,
        limit: int,
        lease_id: int,
        consumer: str = "",
        visibility_us: int | None = None,
        among: BitMap64 | None = None,
    ) -> tuple[Taken | None, list[AnyRecord]]:
        """Hand out up to ``limit`` messages under a new lease, after what is due was done.

        ``among``: only of these, whatever their priority.
        """
        assert lease_id != NO_LEASE
        assert self.keys_from is None, "keys are learned first"
        records = self.tick(now)
        offsets = self._next(limit, now, among)
        if not offsets:
            return None, records
        if visibility_us is None:
            visibility_us = round(self.settings.visibility_s * 1_000_000)
        deadline = Microseconds(now + visibility_us)
        data = offsets.serialize()
        leased = self._done(Leased(data, lease_id, consumer, now, deadline), offsets)
        taken = Taken(lease_id, offsets, self._attempts.split(offsets), deadline)
        if self.settings.guarantee is Guarantee.AT_MOST_ONCE:
            return taken, [*records, self._done(Finished(data, lease_id), offsets)]
        return taken, [*records, leased]

    def _next(self, limit: int, now: Microseconds, among: BitMap64 | None) -> BitMap64:
        """Take out of the ready ones what is to be delivered next."""
        if among is not None:
            chosen = lowest(self._ready.among(among), limit)
            self._ready.discard(chosen)
            return chosen
        if self.settings.ordering is not Ordering.PARTITION:
            return self._ready.take(limit, now)
        chosen = self._in_turn(limit)
        self._ready.discard(chosen)
        return chosen

    def _in_turn(self, limit: int) -> BitMap64:
        """In strict order: what comes next once nothing is under way, but for what is retried."""
        if self._leases.held or self.dead_letter_pending:
            return BitMap64()
        retried = self._attempts.among(self._delayed.members)
        return lowest(self._ready.offsets, limit, retried.min() if retried else None)

    def ack(self, lease_id: int, offsets: BitMap64) -> tuple[BitMap64, list[AnyRecord]]:
        """Finish messages; which of them the lease held, now or when they were finished before."""
        held = self._leases.valid(lease_id, offsets)
        records: list[AnyRecord] = []
        if held:
            records.append(self._done(Finished(held.serialize(), lease_id), held))
        if len(held) < len(offsets):
            held |= self._acked.among(lease_id, offsets)
        return held, records

    def nack(
        self,
        lease_id: int,
        offsets: BitMap64,
        now: Microseconds,
        delay_us: int | None = None,
        error: str | None = None,
    ) -> tuple[BitMap64, list[AnyRecord]]:
        """Give messages back to be tried again, after the back-off or the given delay."""
        held = self._leases.valid(lease_id, offsets)
        return held, self._return_counted(lease_id, held, now, delay_us, error)

    def extend(
        self, lease_id: int, offsets: BitMap64, deadline: Microseconds
    ) -> tuple[BitMap64, list[AnyRecord]]:
        """Hold messages until another deadline; one that has passed lets them lapse."""
        held = self._leases.valid(lease_id, offsets)
        if not held:
            return held, []
        return held, [self._done(Extended(held.serialize(), lease_id, deadline))]

    def requeue(self, lease_id: int, offsets: BitMap64, now: Microseconds) -> list[AnyRecord]:
        """Messages that no consumer saw go back at once, and do not count as tried."""
        held = self._leases.valid(lease_id, offsets)
        records, rest = self._finish_expired(lease_id, held)
        if rest:
            records.append(self._done(Returned(rest.serialize(), lease_id, now, counted=False)))
        return records

    def release(self, consumer: str, now: Microseconds) -> list[AnyRecord]:
        """A consumer has left: what it holds goes back at once, and does not count as tried."""
        records: list[AnyRecord] = []
        for lease in self._leases.of_consumer(consumer):
            records += self.requeue(lease.id, lease.offsets.copy(), now)
        return records

    def dead_lettered(self, offsets: BitMap64) -> list[AnyRecord]:
        """Record that pending dead letters are stored in the dead-letter topic."""
        stored = offsets & self.dead_letter_pending
        return [self._done(DeadLettered(stored.serialize()))] if stored else []

    def drop(self, offsets: BitMap64) -> list[AnyRecord]:
        """Finish messages that nobody holds: expired, cancelled or purged."""
        dropped = self._ready.among(offsets)
        dropped |= offsets & self._delayed.members
        dropped |= offsets & self._waiting
        return [self._done(Finished(dropped.serialize()))] if dropped else []

    def give_up(self, offsets: BitMap64) -> list[AnyRecord]:
        """Finish messages that can no longer be read, whoever has them."""
        records = self.drop(offsets)
        for lease in self._leases.overlapping(offsets):
            part = lease.offsets & offsets
            records.append(self._done(Finished(part.serialize(), lease.id)))
        dead_letter_pending = self.dead_letter_pending & offsets
        if dead_letter_pending:
            records.append(self._done(Finished(dead_letter_pending.serialize())))
        return records

    def _return_counted(
        self,
        lease_id: int,
        offsets: BitMap64,
        now: Microseconds,
        delay_us: int | None = None,
        error: str | None = None,
    ) -> list[AnyRecord]:
        records, rest = self._finish_expired(lease_id, offsets)
        most = self.settings.max_deliveries
        for count, part in sorted(self._attempts.split(rest).items()):
            if most and count >= most:
                reason = (error or "")[:_ERROR_LENGTH_MAX]
                records.append(self._done(DeadLetterPending(part.serialize(), lease_id, reason)))
                continue
            rest_us = self.settings.backoff.delay_us(count) if delay_us is None else delay_us
            due = Microseconds(now + rest_us)
            records.append(self._done(Returned(part.serialize(), lease_id, due)))
        return records

    def _finish_expired(self, lease_id: int, offsets: BitMap64) -> tuple[list[AnyRecord], BitMap64]:
        """What expired in its lease is finished as it comes back; and the rest."""
        expired = offsets & self._expired_in_lease
        if not expired:
            return [], offsets
        return [self._done(Finished(expired.serialize(), lease_id))], offsets - expired

    # ------------------------------------------------------------------ the fold

    def _done(self, record: AnyRecord, offsets: BitMap64 | None = None) -> AnyRecord:
        self.apply(record, None if offsets is None else offsets.copy())
        return record

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
                self._leases.release(record.lease_id, offsets)
                self._finish(offsets)
                if record.lease_id != NO_LEASE:
                    self._acked.add(record.lease_id, offsets)
            case Extended():
                self._leases.extend(record.lease_id, offsets, record.deadline)
            case Returned():
                granted = self._leases.granted(record.lease_id)
                self._leases.release(record.lease_id, offsets)
                if record.counted:
                    self._times.returned(offsets & self._attempts.once, granted)
                    self._delayed.add(offsets, record.due)
                else:
                    self._attempts.take_back(offsets)
                    self._line_up(offsets)
            case DeadLetterPending():
                granted = self._leases.granted(record.lease_id)
                self._leases.release(record.lease_id, offsets)
                self._times.dead_letter_pending(offsets, offsets & self._attempts.once, granted)
                self._expiring.discard(offsets)
                self.dead_letter_pending |= offsets
                if record.error:
                    self._errors.update(dict.fromkeys(offsets, record.error))
            case DeadLettered():
                self._finish(offsets)
                self.dead |= offsets

    def _lease(self, record: Leased, offsets: BitMap64) -> None:
        self._line_up(self._delayed.take_due(record.granted))
        self._withdraw(offsets)
        if self._keys is not None:
            self._ready.discard(self._keys.hold(offsets))
        self._attempts.add_delivery(offsets)
        self._leases.grant(
            Lease(
                id=record.lease_id,
                offsets=offsets,
                consumer=record.consumer,
                granted=record.granted,
                deadline=record.deadline,
            )
        )

    def _line_up(self, offsets: BitMap64, *, newest: bool = False) -> None:
        """These could be delivered from now on; whether they are ready may depend on their keys."""
        if not offsets:
            return
        if self._keys is not None:
            offsets, overtaken = self._keys.line_up(offsets, newest=newest)
            self._ready.discard(overtaken)
        self._ready.add(offsets)

    def _withdraw(self, offsets: BitMap64) -> None:
        self._ready.discard(offsets)
        self._delayed.discard(offsets)

    def _finish(self, offsets: BitMap64) -> None:
        self._withdraw(offsets)
        self._ready.forget(offsets)
        self._expiring.discard(offsets)
        self._expired_in_lease -= offsets
        self._attempts.forget(offsets)
        self._times.forget(offsets)
        if self.dead_letter_pending.intersect(offsets):
            for offset in self.dead_letter_pending & offsets:
                self._errors.pop(offset, None)
            self.dead_letter_pending -= offsets
        if self._keys is not None:
            self._ready.add(self._keys.finish(offsets))


def _copied(sets: dict[Label, BitMap64]) -> dict[Label, BitMap64]:
    return {label: offsets.copy() for label, offsets in sets.items()}
