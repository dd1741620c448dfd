"""The delivery of one subscription in one partition: a pure machine.

Commands decide. Each changes the state, by ``apply``, and returns the records that say so, for the
state log. Questions are in the view, the data and the fold in the state. Time comes in with each
call.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from pyroaring import BitMap64

from quiver.broker.delivery.machine.jitter import jittered_us
from quiver.broker.delivery.machine.offset_sets import lowest, offset_range
from quiver.broker.delivery.machine.records import (
    DROPPED,
    EXPIRED,
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
from quiver.broker.delivery.machine.state import DeliveryState
from quiver.broker.delivery.machine.view import DeliveryView
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import Guarantee, Ordering, SubscriptionSettings
from quiver.model.transaction import TransactionId

_ERROR_LENGTH_MAX = 1000
_EMPTY = BitMap64().serialize()
_LAPSED = "its lease ended before it was settled"
RESTORED_DELIVERIES_MAX = 100
"""A message that was delivered more often counts as delivered so often after a restore."""
_SUSPECT_US = 10_000_000
"""A suspect that a consumer has had for so long without ending is none any more."""


class Taken(msgspec.Struct, frozen=True):
    """What a receive was given. ``deliveries`` says how often each was delivered, this time included."""

    lease_id: int
    offsets: BitMap64
    deliveries: dict[int, BitMap64]
    deadline: Microseconds


class DeliveryMachine:
    """Messages come in with ``state.observe``; ``state`` and ``view`` stay the same objects."""

    def __init__(self, settings: SubscriptionSettings, start: Offset, name: str = "") -> None:
        self.state = DeliveryState(settings, start, name)
        self.view = DeliveryView(self.state)

    # ------------------------------------------------------------------ where it begins

    def skip_to(self, start: Offset) -> list[AnyRecord]:
        """The log begins at ``start`` now: what was before is gone, whoever has it."""
        records = self.give_up(offset_range(0, start), DROPPED)
        self.state.begin_at(start)
        return records

    def seek(self, start: Offset, *, is_purge: bool = False) -> list[AnyRecord]:
        """Begin again at ``start``: what is before is done with, and receipts are good no more."""
        return [self._done(Sought(_EMPTY, start, is_purge))]

    def restore(
        self,
        pending: BitMap64,
        end: Offset,
        deliveries: Mapping[int, BitMap64],
        now: Microseconds,
        lease_id: int,
    ) -> list[AnyRecord]:
        """Of what was observed before ``end``, only ``pending`` is left, delivered so often before.

        What was leased or rested after a failure is ready. Each delivery is recorded as one that
        failed, under a lease that nobody has.
        """
        finished = offset_range(self.state.start, end) - pending
        records = self.give_up(finished, "")
        most = min(max(deliveries, default=0), RESTORED_DELIVERIES_MAX)
        for count in range(1, most + 1):
            tried = BitMap64.union(
                BitMap64(), *(one for often, one in deliveries.items() if often >= count)
            )
            self.state.end_delays(now)
            offsets = self.state.ready.among(tried & pending)
            if not offsets:
                break
            data = offsets.serialize()
            records.append(self._done(Leased(data, lease_id, "", now, now), offsets))
            records.append(self._done(Returned(data, lease_id, now)))
        self.state.end_delays(now)
        return records

    # ------------------------------------------------------------------ time passes

    def tick(self, now: Microseconds) -> list[AnyRecord]:
        """Do what is due: messages expire, leases lapse, delays end."""
        records: list[AnyRecord] = []
        expired = self.state.take_expired(now)
        if expired:
            records += self.drop(expired, EXPIRED)
        lapsed: dict[tuple[int, bool], BitMap64] = {}
        for lease in self.state.leases.take_lapsed(now):
            lapsed.setdefault((lease.id, lease.is_session), BitMap64()).update(lease.offsets)
        for (lease_id, is_session), offsets in lapsed.items():
            records += self._return_counted(
                lease_id, offsets, now, error=_LAPSED, is_suspect=is_session
            )
        self.state.end_delays(now)
        if self.state.suspects and now >= self.state.suspects_cleared_at:
            self.state.clear_suspects(now, _SUSPECT_US)
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
        assert self.state.keys_from is None, "keys are learned first"
        records = self.tick(now)
        offsets = self._among(among, limit) if among is not None else self._next(limit, now)
        if not offsets:
            return None, records
        if visibility_us is None:
            visibility_us = round(self.state.settings.visibility_s * 1_000_000)
        deadline = Microseconds(now + visibility_us)
        data = offsets.serialize()
        leased = self._done(Leased(data, lease_id, consumer, now, deadline), offsets)
        taken = Taken(lease_id, offsets, self.state.attempts.split(offsets), deadline)
        if self.state.settings.guarantee is Guarantee.AT_MOST_ONCE:
            return taken, [*records, self._done(Finished(data, lease_id), offsets)]
        return taken, [*records, leased]

    def _among(self, among: BitMap64, limit: int) -> BitMap64:
        chosen = lowest(self.state.ready.among(among), limit)
        self.state.ready.discard(chosen)
        return chosen

    def _next(self, limit: int, now: Microseconds, *, may_be_suspect: bool = True) -> BitMap64:
        """Take out of the ready ones what is to be delivered next."""
        state = self.state
        if state.settings.ordering is Ordering.PARTITION:
            chosen = self.view.in_turn(limit)
            state.ready.discard(chosen)
        elif may_be_suspect or not state.suspects:
            chosen = state.ready.take(limit, now)
        else:
            held_back = state.ready.among(state.suspects)
            state.ready.discard(held_back)
            chosen = state.ready.take(limit, now)
            state.ready.add(held_back)
        if not state.suspects.intersect(chosen):
            return chosen
        alone = self._without_company(chosen, may_be_suspect)
        state.ready.put_back(chosen - alone, alone)
        return alone

    def _without_company(self, chosen: BitMap64, may_be_suspect: bool) -> BitMap64:
        """Of what was chosen, a suspect alone, or what has to come before it.

        So when a suspect ends its consumer again, it takes no other suspect along.
        """
        first = (chosen & self.state.suspects).min()
        if self.state.settings.ordering is Ordering.PARTITION and chosen.min() < first:
            return lowest(chosen, len(chosen), first)
        return BitMap64([first]) if may_be_suspect else BitMap64()

    # ------------------------------------------------------------------ consumers with a session

    def reserve(
        self,
        now: Microseconds,
        *,
        limit: int,
        lease_id: int,
        consumer: str,
        may_be_suspect: bool = True,
    ) -> tuple[Taken | None, list[AnyRecord]]:
        """Choose up to ``limit`` messages to push to a consumer, after what is due was done.

        They are delivered, and their lease begins, when the consumer starts them. A consumer that
        has a suspect, of whichever partition, gets no other one.
        """
        assert lease_id != NO_LEASE
        assert self.state.keys_from is None, "keys are learned first"
        records = self.tick(now)
        offsets = self._next(limit, now, may_be_suspect=may_be_suspect)
        if not offsets:
            return None, records
        self.state.reserve(lease_id, consumer, offsets)
        before = self.state.attempts.split(offsets)
        deliveries = {count + 1: part for count, part in before.items()}
        return Taken(lease_id, offsets, deliveries, Microseconds(0)), records

    def start(
        self,
        lease_id: int,
        offsets: BitMap64,
        now: Microseconds,
        *,
        consumer: str,
        visibility_us: int,
    ) -> tuple[BitMap64, list[AnyRecord]]:
        """A program gets these: each is a delivery, and is leased from now on; which they were."""
        reserved = self.state.reserved.valid(lease_id, offsets)
        if not reserved:
            return reserved, []
        data, deadline = reserved.serialize(), Microseconds(now + visibility_us)
        record = Leased(data, lease_id, consumer, now, deadline, is_session=True)
        leased = self._done(record, reserved)
        if self.state.settings.guarantee is Guarantee.AT_MOST_ONCE:
            return reserved, [self._done(Finished(data, lease_id), reserved)]
        return reserved, [leased]

    def unreserve(self, lease_id: int, offsets: BitMap64) -> list[AnyRecord]:
        """The consumer has not started these and will not: they are ready again."""
        back = self.state.reserved.valid(lease_id, offsets)
        expired = back & self.state.expired_in_lease
        records: list[AnyRecord] = []
        if expired:
            records.append(self._finished(expired, EXPIRED))
        self.state.unreserve(lease_id, back - expired)
        return records

    def end_session(
        self, lease_id: int, now: Microseconds, *, is_silent: bool, reason: str
    ) -> list[AnyRecord]:
        """The consumer is gone. What it had started counts, with the reason; the rest does not.

        Both are ready again at once. ``is_silent``: it ended without a word.
        """
        records = self.unreserve(lease_id, self.state.reserved.of(lease_id))
        for lease in self.state.leases.of(lease_id):
            records += self._return_counted(
                lease_id, lease.offsets.copy(), now, 0, reason, is_suspect=is_silent
            )
        self.state.end_delays(now)
        return records

    def cut_sessions(self, deadline: Microseconds, *, may_shorten: bool = True) -> list[AnyRecord]:
        """The node that had the sessions is gone: leases end soon, unless a consumer comes back.

        Not sooner than that: nobody could hear of the consumer meanwhile.
        """
        held: dict[int, BitMap64] = {}
        for lease in self.state.leases:
            is_longer = lease.deadline > deadline
            if lease.is_session and lease.deadline != deadline and (may_shorten or not is_longer):
                held[lease.id] = held.get(lease.id, BitMap64()) | lease.offsets
        return [
            self._done(Extended(offsets.serialize(), lease_id, deadline))
            for lease_id, offsets in held.items()
        ]

    # ------------------------------------------------------------------ settling

    def ack(self, lease_id: int, offsets: BitMap64) -> tuple[BitMap64, list[AnyRecord]]:
        """Finish messages; which of them the lease held, now or when they were finished before."""
        held = self.state.leases.valid(lease_id, offsets)
        records: list[AnyRecord] = []
        if held:
            records.append(self._done(Finished(held.serialize(), lease_id), held))
        if len(held) < len(offsets):
            held |= self.state.acked.among(lease_id, offsets)
        return held, records

    def hold(
        self, lease_id: int, offsets: BitMap64, transaction: TransactionId, now: Microseconds
    ) -> tuple[BitMap64, list[AnyRecord]]:
        """Finish messages if a transaction is committed; which the lease held, or held for it before.

        From now on they are in no consumer's hands, and wait for ``close`` alone.
        """
        held = self.state.leases.valid(lease_id, offsets)
        records: list[AnyRecord] = []
        before = self.state.pending_acks.valid(transaction, lease_id, offsets)
        if held:
            records.append(self._done(Held(held.serialize(), lease_id, transaction, now), held))
        return held | before, records

    def close(
        self, transaction: TransactionId, *, is_committed: bool
    ) -> tuple[BitMap64, list[AnyRecord]]:
        """A transaction has ended: what waited for it is finished, or ready again uncounted.

        Which messages are acknowledged by that. Nothing happens the second time.
        """
        acked, records = BitMap64(), list[AnyRecord]()
        for one in self.state.pending_acks.of(transaction):
            offsets = one.offsets.copy()
            if is_committed:
                acked |= offsets
                records.append(self._done(Finished(offsets.serialize(), one.lease_id), offsets))
                continue
            expired, rest = self._finish_expired(one.lease_id, offsets)
            records += expired
            if rest:
                back = Returned(rest.serialize(), one.lease_id, one.since, counted=False)
                records.append(self._done(back))
        return acked, records

    def nack(
        self,
        lease_id: int,
        offsets: BitMap64,
        now: Microseconds,
        delay_us: int | None = None,
        error: str | None = None,
    ) -> tuple[BitMap64, list[AnyRecord]]:
        """Give messages back to be tried again, after the back-off or the given delay."""
        held = self.state.leases.valid(lease_id, offsets)
        return held, self._return_counted(lease_id, held, now, delay_us, error)

    def reject(
        self, lease_id: int, offsets: BitMap64, error: str | None = None
    ) -> tuple[BitMap64, list[AnyRecord]]:
        """Messages that can never succeed: dead letters now, however often they were delivered."""
        held = self.state.leases.valid(lease_id, offsets)
        records, rest = self._finish_expired(lease_id, held)
        if rest:
            records.append(self._dead_letter(lease_id, rest, error))
        return held, records

    def extend(
        self, lease_id: int, offsets: BitMap64, deadline: Microseconds
    ) -> tuple[BitMap64, list[AnyRecord]]:
        """Hold messages until another deadline; one that has passed lets them lapse."""
        held = self.state.leases.valid(lease_id, offsets)
        if not held:
            return held, []
        return held, [self._done(Extended(held.serialize(), lease_id, deadline))]

    def requeue(self, lease_id: int, offsets: BitMap64, now: Microseconds) -> list[AnyRecord]:
        """Messages that no consumer saw go back at once, and do not count as tried."""
        held = self.state.leases.valid(lease_id, offsets)
        records, rest = self._finish_expired(lease_id, held)
        if rest:
            records.append(self._done(Returned(rest.serialize(), lease_id, now, counted=False)))
        return records

    def release(self, consumer: str, now: Microseconds) -> list[AnyRecord]:
        """A consumer has left: what it holds goes back at once, and does not count as tried."""
        records: list[AnyRecord] = []
        for lease_id, offsets in self.state.reserved.of_consumer(consumer).items():
            records += self.unreserve(lease_id, offsets)
        for lease in self.state.leases.of_consumer(consumer):
            records += self.requeue(lease.id, lease.offsets.copy(), now)
        return records

    def dead_lettered(self, offsets: BitMap64) -> list[AnyRecord]:
        """Record that pending dead letters are stored in the dead-letter topic."""
        stored = offsets & self.state.dead_letter_pending
        return [self._done(DeadLettered(stored.serialize()))] if stored else []

    def drop(self, offsets: BitMap64, reason: str) -> list[AnyRecord]:
        """Finish messages that nobody holds: expired, cancelled or purged."""
        dropped = self.state.ready.among(offsets)
        dropped |= offsets & self.state.delayed.members
        dropped |= offsets & self.state.waiting
        return [self._finished(dropped, reason)] if dropped else []

    def give_up(self, offsets: BitMap64, reason: str) -> list[AnyRecord]:
        """Finish messages whoever has them: they are gone, or purged."""
        records = self.drop(offsets, reason)
        if reserved := self.state.reserved.held & offsets:
            records.append(self._finished(reserved, reason))
        for lease in self.state.leases.overlapping(offsets):
            part = lease.offsets & offsets
            records.append(self._finished(part, reason, lease.id))
        for one in self.state.pending_acks.overlapping(offsets):
            records.append(self._finished(one.offsets & offsets, reason, one.lease_id))
        if dead_letter_pending := self.state.dead_letter_pending & offsets:
            records.append(self._finished(dead_letter_pending, reason))
        return records

    def _finished(self, offsets: BitMap64, reason: str, lease_id: int = NO_LEASE) -> AnyRecord:
        return self._done(Finished(offsets.serialize(), lease_id, reason))

    def _return_counted(
        self,
        lease_id: int,
        offsets: BitMap64,
        now: Microseconds,
        delay_us: int | None = None,
        error: str | None = None,
        *,
        is_suspect: bool = False,
    ) -> list[AnyRecord]:
        records, rest = self._finish_expired(lease_id, offsets)
        most = self.state.settings.max_deliveries
        for count, part in sorted(self.state.attempts.split(rest).items()):
            if most and count >= most:
                records.append(self._dead_letter(lease_id, part, error))
                continue
            rest_us = delay_us
            if rest_us is None:
                longest_us = self.state.settings.backoff.delay_us(count)
                rest_us = jittered_us(longest_us, lease_id, part.min())
            due = Microseconds(now + rest_us)
            record = Returned(part.serialize(), lease_id, due, is_suspect=is_suspect)
            records.append(self._done(record))
        return records

    def _dead_letter(self, lease_id: int, offsets: BitMap64, error: str | None) -> AnyRecord:
        reason = (error or "")[:_ERROR_LENGTH_MAX]
        return self._done(DeadLetterPending(offsets.serialize(), lease_id, reason))

    def _finish_expired(self, lease_id: int, offsets: BitMap64) -> tuple[list[AnyRecord], BitMap64]:
        """What expired in its lease is finished as it comes back; and the rest."""
        expired = offsets & self.state.expired_in_lease
        if not expired:
            return [], offsets
        return [self._finished(expired, EXPIRED, lease_id)], offsets - expired

    def _done(self, record: AnyRecord, offsets: BitMap64 | None = None) -> AnyRecord:
        self.state.apply(record, None if offsets is None else offsets.copy())
        return record
