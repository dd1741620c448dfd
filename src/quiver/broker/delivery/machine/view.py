"""Questions about the messages of one subscription in one partition. Nothing changes here.

Each question reads the state as it is at that moment. A set that is returned belongs to the caller,
but for ``dead_letter_pending``, which is the state's own.
"""

from __future__ import annotations

from itertools import islice

import msgspec
from pyroaring import BitMap64

from quiver.broker.delivery.machine.leases import Lease
from quiver.broker.delivery.machine.offset_sets import lowest
from quiver.broker.delivery.machine.ready import PublishTimes
from quiver.broker.delivery.machine.state import DeliveryState
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import Ordering

_LEASES_LOOKED_AT = 1000


class Depth(msgspec.Struct, frozen=True):
    ready: int
    delayed: int
    leased: int
    dead_letter_pending: int
    dead: int


class DeliveryView:
    """Read-only. The state answers with what it holds; the view with what follows from that."""

    def __init__(self, state: DeliveryState) -> None:
        self._state = state

    # ------------------------------------------------------------------ how far delivery has come

    @property
    def observed_to(self) -> Offset:
        """The offset of the first message that is not known yet."""
        return self._state.observed_to

    @property
    def floor(self) -> Offset:
        """Everything below is finished."""
        return self._state.floor

    def has_passed(self, offset: Offset) -> bool:
        """Whether everything below is finished, but for what waits for the time it was scheduled
        for: that is in nobody's way."""
        first = self._first_unfinished
        return self._state.observed_to >= offset and (first is None or first >= offset)

    @property
    def oldest_time(self) -> Microseconds | None:
        """When the oldest message was published that is known, not finished, and not still waiting
        for the time for which it was scheduled."""
        oldest, published = self._first_unfinished, self._state.published
        if oldest is None or not published.times:
            return None
        return Microseconds(published.of(oldest))

    @property
    def oldest_unscheduled_time(self) -> Microseconds | None:
        """The same of messages that were not scheduled, or whose time is long past."""
        state = self._state
        if not state.scheduled:
            return self.oldest_time
        sets = (*self._unfinished, state.ready.offsets)
        left = [offsets - state.scheduled.members for offsets in sets]
        oldest = min((offsets.min() for offsets in left if offsets), default=None)
        if oldest is None or not state.published.times:
            return None
        return Microseconds(state.published.of(oldest))

    @property
    def _unfinished(self) -> tuple[BitMap64, ...]:
        """What is not finished, nor waits for the time it was scheduled for, but for what is ready."""
        state = self._state
        return (
            state.attempts.among(state.delayed.members),
            state.reserved.held,
            state.leases.held,
            state.pending_acks.members,
            state.dead_letter_pending,
            state.waiting,
        )

    @property
    def _first_unfinished(self) -> int | None:
        """The first message that is not finished, nor waits for the time it was scheduled for."""
        firsts = [offsets.min() for offsets in self._unfinished if offsets]
        if (ready := self._state.ready.first) is not None:
            firsts.append(ready)
        return min(firsts, default=None)

    def next_event(self) -> Microseconds | None:
        """When ``tick`` has something to do next."""
        state = self._state
        times = (
            state.delayed.next_due,
            state.expiring.next_due,
            state.leases.next_deadline,
            state.suspects_cleared_at if state.suspects.intersect(state.leases.held) else None,
        )
        return min((time for time in times if time is not None), default=None)

    @property
    def next_delayed(self) -> Microseconds | None:
        """When the next delay ends."""
        return self._state.delayed.next_due

    # ------------------------------------------------------------------ how many messages there are

    @property
    def depth(self) -> Depth:
        state = self._state
        return Depth(
            ready=len(state.ready) + len(state.waiting) + len(state.reserved.held),
            delayed=len(state.delayed),
            leased=len(state.leases.held) + len(state.pending_acks.members),
            dead_letter_pending=len(state.dead_letter_pending),
            dead=len(state.dead),
        )

    @property
    def pending_count(self) -> int:
        """How many messages are known and not finished."""
        depth = self.depth
        return depth.ready + depth.delayed + depth.leased + depth.dead_letter_pending

    def pending_below(self, end: Offset) -> int:
        """How many messages before ``end`` are known and not finished."""
        state = self._state
        sets = (
            state.ready.offsets,
            state.waiting,
            state.delayed.members,
            state.reserved.held,
            state.leases.held,
            state.pending_acks.members,
            state.dead_letter_pending,
        )
        return sum(offsets.range_cardinality(0, end) for offsets in sets)

    @property
    def ready_count(self) -> int:
        """How many messages a ``take`` could have right now."""
        state = self._state
        if state.settings.ordering is Ordering.PARTITION:
            return len(self.in_turn(len(state.ready)))
        return len(state.ready)

    @property
    def waiting_count(self) -> int:
        """How many messages could be delivered if others were not before them."""
        return len(self._state.ready) + len(self._state.waiting) - self.ready_count

    # ------------------------------------------------------------------ which messages

    def in_turn(self, limit: int) -> BitMap64:
        """In strict order: what comes next once nothing is under way, but for what is retried."""
        state = self._state
        out = (state.reserved.held, state.leases.held, state.pending_acks.members)
        if any(out) or state.dead_letter_pending:
            return BitMap64()
        retried = state.attempts.among(state.delayed.members)
        return lowest(state.ready.offsets, limit, retried.min() if retried else None)

    def in_state(self, state: str) -> BitMap64:
        """The messages that are ready (be it that they wait for others), delayed or leased.

        What was pushed to a consumer is ready until a program has it. What waits for a transaction
        is leased, to nobody.
        """
        if state == "ready":
            ready = self._state.ready.offsets
            return BitMap64.union(ready, self._state.waiting, self._state.reserved.held)
        if state == "delayed":
            return self._state.delayed.members.copy()
        return self._state.leases.held | self._state.pending_acks.members

    @property
    def dead_letter_pending(self) -> BitMap64:
        """Messages on their way to the dead-letter topic."""
        return self._state.dead_letter_pending

    @property
    def published(self) -> PublishTimes:
        """When messages were published, for as long as they are not finished."""
        return self._state.published

    def deliveries_of(self, offsets: BitMap64) -> dict[int, BitMap64]:
        """Those of the offsets that were delivered, by how often."""
        return self._state.attempts.split(offsets)

    def delivery_times(self, offsets: BitMap64) -> tuple[dict[int, int], dict[int, int]]:
        """When pending dead letters were delivered for the first and for the last time."""
        return self._state.times.first_of(offsets), self._state.times.last_of(offsets)

    # ------------------------------------------------------------------ leases

    def held(self, lease_id: int, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that the lease holds."""
        return self._state.leases.valid(lease_id, offsets)

    @property
    def consumers(self) -> set[str]:
        """Who holds messages, as far as a look at so many leases shows."""
        return {lease.consumer for lease in islice(self._state.leases, _LEASES_LOOKED_AT)}

    # ------------------------------------------------------------------ one message

    def state_of(self, offset: Offset) -> str:
        """Where a message stands: ready, delayed, leased, dead_letter_pending, dead or finished.

        A finished one may have been acknowledged, or not: the records of the state log tell.
        """
        state = self._state
        if offset in state.delayed.members:
            return "delayed"
        if offset in state.leases.held or offset in state.pending_acks.members:
            return "leased"
        if offset in state.dead_letter_pending:
            return "dead_letter_pending"
        if offset in state.dead:
            return "dead"
        if (
            offset in state.waiting
            or offset in state.ready
            or offset in state.reserved.held
            or offset >= state.observed_to
        ):
            return "ready"
        return "finished"

    def holder(self, offset: Offset) -> Lease | None:
        return self._state.leases.holder(offset)

    def due_of(self, offset: Offset) -> Microseconds | None:
        """When a delayed message may be delivered."""
        return self._state.delayed.time_of(offset)

    def deliveries(self, offset: Offset) -> int:
        return self._state.attempts.of(offset)

    def last_error(self, offset: Offset) -> str:
        """The last error of a pending dead letter, if its consumer gave one."""
        return self._state.errors.get(offset, "")
