"""The delivery machine through any sequence of steps, restarts and clock jumps, against a plain model.

``QUIVER_TEST_EFFORT=20`` searches twenty times as long. A failure prints the steps to play again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace
from pyroaring import BitMap64

from quiver.broker.delivery.machine import leases as lease_table
from quiver.broker.delivery.machine import timed
from quiver.broker.delivery.machine.arrival import Arrival
from quiver.broker.delivery.machine.keys import key_order, keyed_offsets
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.records import (
    PURGED,
    AnyRecord,
    Sought,
    StateEntry,
    decode_entries,
    encode_entries,
)
from quiver.broker.delivery.machine.snapshot import decode_snapshot, encode_snapshot
from quiver.model.delivery_columns import NEVER
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import Backoff, Guarantee, Ordering, SubscriptionSettings
from quiver.model.transaction import TransactionId
from tests.unit.broker.delivery.delivery_model import Message, Model
from tests.unit.broker.delivery.machine.delivery_steps import Published, steps
from tests.unit.log.small_logs import SECOND_US, effort


class Saved(NamedTuple):
    """A snapshot as it is on disk, and how many records it has in it."""

    data: bytes
    records: int


class LiveMachine(RuleBasedStateMachine):
    def __init__(self, ordering: Ordering, guarantee: Guarantee) -> None:
        super().__init__()
        self.ordering = ordering
        self.guarantee = guarantee

    @initialize(
        start=st.integers(0, 3),
        visibility=st.sampled_from([10, 3, 1, 0]),
        max_deliveries=st.integers(0, 3),
        ageing=st.sampled_from([0, 1, 2, 5]),
        backoff=st.builds(Backoff, min=st.sampled_from([0, 1, 4]), max=st.just(5)),
    )
    def begin(self, start: int, **chosen: Any) -> None:
        self.settings = SubscriptionSettings(
            topics=["jobs"], ordering=self.ordering, guarantee=self.guarantee, **chosen
        )
        self.start = Offset(start)
        self.machine = DeliveryMachine(self.settings, self.start)
        self.model = Model(self.settings, start)
        self.now = self.latest = Microseconds(1_000 * SECOND_US)
        self.append_time = self.now
        """The log sees to it that this never goes back."""
        self.arrivals: list[Arrival] = []
        self.records: list[AnyRecord] = []
        self.saved: list[Saved] = []
        self.is_whole = True
        """The records from the very first on tell how the state came to be."""
        self.log_start = self.start
        self.stored: dict[int, Message] = {}
        """What was published and passed the filter, as it was then."""
        self.lease_ids = count(1)
        self.given: list[tuple[int, set[int]]] = []
        self.delivered: set[int] = set()
        self.first_of_key: dict[bytes, int] = {}
        self.floor = start

    @rule(step=steps)
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        """One rule for all, so that each run has something of everything."""
        name, arguments = step
        getattr(self, name)(**arguments)

    # ------------------------------------------------------------------ messages come and go

    def publish(self, batch: list[Published], columns: set[str]) -> None:
        self.append_time = max(self.append_time, self.now)
        arrival = arrival_of(batch, columns, self.model.end, self.now, self.append_time)
        for message in batch:
            stored = self.as_stored(message, columns)
            if stored is not None:
                self.stored[stored.offset] = dataclasses.replace(stored)
            self.model.publish(stored)
        self.arrivals.append(arrival)
        self.machine.state.observe(arrival)

    def as_stored(self, message: Published, columns: set[str]) -> Message | None:
        stored = Message(self.model.end, self.append_time)
        if "key" in columns:
            stored.key = message.key
        if "priority" in columns:
            stored.priority = message.priority
        if "due" in columns and message.due is not None:
            stored.due = self.now + message.due * SECOND_US
        if "expires" in columns and message.expires is not None:
            stored.expires = self.now + message.expires * SECOND_US
        return None if "passed" in columns and not message.passed else stored

    def remove(self, chosen: list[int], readable: bool) -> None:
        offsets = self.offsets(chosen)
        (self.model.drop if readable else self.model.give_up)(offsets)
        remove = self.machine.drop if readable else self.machine.give_up
        self.records += remove(BitMap64(offsets), PURGED)

    def seek(self, share: int) -> None:
        start = self.log_start + (self.model.end - self.log_start) * share // 7
        again = [dataclasses.replace(one) for place, one in self.stored.items() if place >= start]
        self.model.seek(start, again)
        self.records += self.machine.seek(Offset(start))
        self.observe_up_to(self.machine, self.model.end)
        self.delivered = {offset for offset in self.delivered if offset < start}
        self.first_of_key = {key: at for key, at in self.first_of_key.items() if at < start}
        self.floor = start

    def lose_beginning(self, share: int) -> None:
        start = self.log_start + (self.model.end - self.log_start) * share // 7
        self.log_start = Offset(start)
        self.model.skip_to(start)
        self.records += self.machine.skip_to(self.log_start)
        self.arrivals = [one for one in self.arrivals if one.next_offset > start]

    def lose_end(self, batches: int) -> None:
        self.forget_end(batches)
        self.save_what_is_left()

    def save_what_is_left(self) -> None:
        """Old records speak of messages that are lost: only the state from now on is of use."""
        self.saved = [self.snapshot()]
        self.is_whole = False

    def forget_end(self, batches: int) -> None:
        base = min((one.base_offset for one in self.arrivals[-batches:]), default=self.model.end)
        end = Offset(max(base, self.log_start))
        del self.arrivals[-batches:]
        self.model.forget_from(end)
        self.machine.state.forget_from(end)
        self.delivered = {offset for offset in self.delivered if offset < end}
        self.first_of_key = {key: at for key, at in self.first_of_key.items() if at < end}
        self.stored = {place: one for place, one in self.stored.items() if place < end}
        self.floor = min(self.floor, end)

    def store_dead_letters(self, chosen: list[int] | None) -> None:
        offsets = (
            set(self.machine.view.dead_letter_pending) if chosen is None else self.offsets(chosen)
        )
        self.model.dead_letter(offsets)
        self.records += self.machine.dead_lettered(BitMap64(offsets))

    # ------------------------------------------------------------------ consumers

    def receive(self, limit: int, consumer: str, visibility: int | None) -> None:
        lease_id = next(self.lease_ids)
        visibility_us = None if visibility is None else visibility * SECOND_US
        taken, records = self.machine.take(
            self.now, limit=limit, lease_id=lease_id, consumer=consumer, visibility_us=visibility_us
        )
        self.records += records
        seconds = self.settings.visibility_s if visibility is None else visibility
        held = {one.offset: one.deadline for one in self.model.of_state("leased")}
        expected = self.model.take(self.now, limit, lease_id, consumer, int(seconds * SECOND_US))
        offsets = set() if taken is None else set(taken.offsets)
        assert offsets == set(expected)
        if taken is not None:
            counts = {place: number for number, part in taken.deliveries.items() for place in part}
            assert taken.lease_id == lease_id
            assert set(counts) == offsets
            assert taken.deadline == self.now + seconds * SECOND_US
            self.check_delivery(offsets, counts, held)
            self.given.append((lease_id, offsets))

    def check_delivery(
        self, offsets: set[int], counts: dict[int, int], held: dict[int, int]
    ) -> None:
        """What no delivery may ever do, whatever the model says."""
        most = self.settings.max_deliveries
        for offset in sorted(offsets):
            message = self.model.messages[offset]
            assert message.expires is None or message.expires > self.now
            assert message.due is None or message.due <= self.latest
            assert offset not in held or held[offset] <= self.now
            assert not most or counts[offset] <= most
            if self.guarantee is Guarantee.AT_MOST_ONCE:
                assert offset not in self.delivered
            if message.key is not None and message.due is None and offset not in self.delivered:
                if self.ordering is not Ordering.NONE:
                    assert offset > self.first_of_key.get(message.key, -1)
                self.first_of_key[message.key] = offset
        self.delivered |= offsets

    def ack(self, lease: int, chosen: list[int] | None) -> None:
        lease_id, offsets = self.lease(lease, chosen)
        held, records = self.machine.ack(lease_id, BitMap64(offsets))
        assert set(held) == self.model.ack(lease_id, offsets)
        self.records += records

    def hold(self, lease: int, chosen: list[int] | None, transaction: int) -> None:
        lease_id, offsets = self.lease(lease, chosen)
        held, records = self.machine.hold(
            lease_id, BitMap64(offsets), TransactionId(transaction), self.now
        )
        assert set(held) == self.model.hold(lease_id, offsets, transaction)
        self.records += records

    def close(self, transaction: int, committed: bool) -> None:
        acked, records = self.machine.close(TransactionId(transaction), is_committed=committed)
        assert set(acked) == self.model.close(transaction, is_committed=committed)
        self.records += records

    def nack(
        self, lease: int, chosen: list[int] | None, delay: int | None, error: str | None
    ) -> None:
        lease_id, offsets = self.lease(lease, chosen)
        held, records = self.machine.nack(lease_id, BitMap64(offsets), self.now, delay, error)
        assert set(held) == self.model.nack(lease_id, offsets, self.now, delay, error or "")
        self.records += records

    def reject(self, lease: int, chosen: list[int] | None, error: str | None) -> None:
        lease_id, offsets = self.lease(lease, chosen)
        held, records = self.machine.reject(lease_id, BitMap64(offsets), error)
        assert set(held) == self.model.reject(lease_id, offsets, error or "")
        self.records += records

    def extend(self, lease: int, chosen: list[int] | None, seconds: int) -> None:
        lease_id, offsets = self.lease(lease, chosen)
        deadline = Microseconds(self.now + seconds * SECOND_US)
        held, records = self.machine.extend(lease_id, BitMap64(offsets), deadline)
        assert set(held) == self.model.extend(lease_id, offsets, deadline)
        self.records += records

    def requeue(self, lease: int, chosen: list[int] | None) -> None:
        lease_id, offsets = self.lease(lease, chosen)
        self.model.requeue(lease_id, offsets, self.now)
        self.records += self.machine.requeue(lease_id, BitMap64(offsets), self.now)

    def release(self, consumer: str) -> None:
        self.model.release(consumer, self.now)
        self.records += self.machine.release(consumer, self.now)

    # ------------------------------------------------------------------ consumers with a session

    def reserve(self, limit: int, consumer: str, suspect: bool) -> None:
        lease_id = next(self.lease_ids)
        taken, records = self.machine.reserve(
            self.now, limit=limit, lease_id=lease_id, consumer=consumer, may_be_suspect=suspect
        )
        self.records += records
        expected = self.model.reserve(self.now, limit, lease_id, consumer, may_be_suspect=suspect)
        offsets = set() if taken is None else set(taken.offsets)
        assert offsets == set(expected)
        if taken is not None:
            before = {place: self.model.messages[place].deliveries for place in offsets}
            counts = {place: number for number, part in taken.deliveries.items() for place in part}
            assert {place: counts.get(place, 1) - 1 for place in offsets} == before
            self.given.append((lease_id, offsets))

    def start_reserved(self, lease: int, chosen: list[int] | None, visibility: int) -> None:
        lease_id, offsets = self.lease(lease, chosen)
        visibility_us = visibility * SECOND_US
        started, records = self.machine.start(
            lease_id, BitMap64(offsets), self.now, consumer="ann", visibility_us=visibility_us
        )
        self.records += records
        for message in self.model.reserved(lease_id, offsets):
            message.consumer = "ann"
        assert set(started) == self.model.start_reserved(lease_id, offsets, self.now, visibility_us)
        for offset in started:
            if self.guarantee is Guarantee.AT_MOST_ONCE:
                assert offset not in self.delivered
        self.delivered |= set(started)

    def unreserve(self, lease: int, chosen: list[int] | None) -> None:
        lease_id, offsets = self.lease(lease, chosen)
        self.model.unreserve(lease_id, offsets)
        self.records += self.machine.unreserve(lease_id, BitMap64(offsets))

    def end_session(self, lease: int, silent: bool) -> None:
        lease_id, _ = self.lease(lease, None)
        self.model.end_session(lease_id, self.now, is_silent=silent, reason="gone")
        self.records += self.machine.end_session(
            lease_id, self.now, is_silent=silent, reason="gone"
        )

    def cut_sessions(self, seconds: int, shorten: bool) -> None:
        deadline = Microseconds(self.now + seconds * SECOND_US)
        self.model.cut_sessions(deadline, may_shorten=shorten)
        self.records += self.machine.cut_sessions(deadline, may_shorten=shorten)

    # ------------------------------------------------------------------ time

    def time_passes(self, seconds: int, micros: int) -> None:
        self.set_clock(self.now + seconds * SECOND_US + micros)

    def jump(self, seconds: int) -> None:
        """The clock is set anew, or the machine slept."""
        self.set_clock(self.now + seconds * SECOND_US)

    def tick(self, asleep: bool) -> None:
        event = self.machine.view.next_event()
        if asleep and event is not None:
            self.set_clock(max(self.now, event))
        self.do_what_is_due()

    def do_what_is_due(self) -> None:
        self.model.tick(self.now)
        self.records += self.machine.tick(self.now)
        event = self.machine.view.next_event()
        assert event is None or event > self.now, "a tick leaves nothing due"

    def set_clock(self, now: int) -> None:
        self.now = Microseconds(now)
        self.latest = max(self.latest, self.now)

    # ------------------------------------------------------------------ restarts

    def save(self) -> None:
        self.saved.append(self.snapshot())

    def restart(self, choice: int, at_once: bool, lost: int) -> None:
        """From the beginning or from a snapshot; some batches may be lost on the way."""
        candidates = [*self.saved, None] if self.is_whole else self.saved
        self.set_clock(self.latest)
        if lost:
            self.forget_end(lost)
        before = self.machine
        self.machine = self.rebuilt(candidates[choice % len(candidates)], at_once)
        self.model.restart()
        self.suspect_what_the_records_say()
        self.do_what_is_due()
        for consumer in ("ann", "bob"):
            for lease_id, offsets in before.state.reserved.of_consumer(consumer).items():
                before.unreserve(lease_id, offsets)
        before.tick(self.now)
        before.state.suspects = self.machine.state.suspects.copy()  # compared with the model
        assert facts(self.machine) == facts(before)
        if lost:
            self.save_what_is_left()

    def suspect_what_the_records_say(self) -> None:
        """That a suspect was cleared by time is in no record, so it may be one again."""
        suspects = set(self.machine.state.suspects)
        for message in self.model.unfinished:
            assert message.offset in suspects or not message.is_suspect
            assert message.was_suspect or message.offset not in suspects
            message.is_suspect = message.offset in suspects

    def rebuilt(self, saved: Saved | None, at_once: bool) -> DeliveryMachine:
        """``at_once``: all messages are observed before the records are applied, not as needed."""
        machine = DeliveryMachine(self.settings, self.start)
        records = self.records
        if saved is not None:
            snapshot = decode_snapshot(saved.data)
            assert snapshot is not None
            machine.state.restore(snapshot)
            records = records[saved.records :]
        machine.skip_to(self.log_start)
        machine.state.forget_from(Offset(self.model.end))
        for arrival in self.arrivals:
            if (
                machine.state.keys_from is not None
                and machine.state.keys_from < arrival.next_offset
            ):
                machine.state.learn(arrival)
        for record in decode_entries(encode_entries([StateEntry(7, records)]))[0].records:
            if isinstance(record, Sought):
                machine.state.apply(
                    replace(record, start=min(record.start, Offset(self.model.end)))
                )
                machine.skip_to(self.log_start)
                continue
            left = record.bitmap
            left.remove_range(self.model.end, 1 << 40)
            if left:
                self.observe_up_to(machine, self.model.end if at_once else left.max() + 1)
                machine.state.apply(replace(record, offsets=left.serialize()))
        self.observe_up_to(machine, self.model.end)
        return machine

    def observe_up_to(self, machine: DeliveryMachine, end: int) -> None:
        for arrival in self.arrivals:
            if machine.state.observed_to < min(end, arrival.next_offset):
                machine.state.observe(arrival)

    def snapshot(self) -> Saved:
        return Saved(encode_snapshot(self.machine.state.snapshot()), len(self.records))

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def agrees_with_the_model(self) -> None:
        machine, model = self.machine, self.model
        assert machine.state.observed_to == model.end
        for offset in range(self.log_start, model.end):
            message = model.messages.get(offset)
            assert machine.view.state_of(Offset(offset)) == (
                message.shown_state if message else "finished"
            )
            assert (offset in machine.state.suspects) == bool(message and message.is_suspect)
            is_reserved = message is not None and message.state == "reserved"
            assert (offset in machine.state.reserved.held) == is_reserved
            is_held = message is not None and message.state == "held"
            assert (offset in machine.state.pending_acks.members) == is_held
            assert machine.view.deliveries(Offset(offset)) == (message.deliveries if message else 0)
            assert machine.view.last_error(Offset(offset)) == (message.error if message else "")
            holder = machine.view.holder(Offset(offset))
            if message is not None and message.state == "leased":
                assert holder is not None
                assert (holder.id, holder.consumer) == (message.lease_id, message.consumer)
                assert holder.deadline == message.deadline
            else:
                assert holder is None

    @invariant()
    def open_transactions_are_known(self) -> None:
        expected = {message.transaction for message in self.model.of_state("held")}
        assert self.machine.state.held_transactions(Microseconds(1 << 62)) == expected

    @invariant()
    def counts_are_right(self) -> None:
        machine, model = self.machine, self.model
        depth = machine.view.depth
        for state in ("ready", "delayed", "leased", "dead_letter_pending", "dead"):
            messages = model.messages.values()
            assert getattr(depth, state) == sum(one.shown_state == state for one in messages)
        assert machine.view.pending_count == len(model.unfinished)
        assert machine.view.ready_count == len(model.deliverable())

    @invariant()
    def the_floor_is_right_and_never_falls(self) -> None:
        assert self.machine.view.floor == self.model.floor
        assert self.machine.view.floor >= self.floor
        self.floor = self.machine.view.floor

    @invariant()
    def nothing_is_due_before_the_next_event(self) -> None:
        event, expected = self.machine.view.next_event(), self.model.next_event()
        assert expected is None or (event is not None and event <= expected)

    # ------------------------------------------------------------------ choosing

    def offsets(self, chosen: Sequence[int]) -> set[int]:
        """Some that are below the start or above the end may be among them."""
        span = self.model.end - self.log_start + 3
        return {max(0, self.log_start - 1 + number % span) for number in chosen}

    def lease(self, number: int, chosen: list[int] | None) -> tuple[int, set[int]]:
        """A lease that was given, or none; with all it was given for, or with any offsets."""
        leases = [*self.given[-8:], (number % 2 * 1_000_000, set[int]())]
        lease_id, offsets = leases[number % len(leases)]
        return lease_id, offsets if chosen is None else self.offsets(chosen)


def arrival_of(
    batch: Sequence[Published], columns: set[str], base_offset: int, now: int, append_time: int
) -> Arrival:
    def times(spans: Sequence[int | None]) -> Any:
        return np.array(
            [NEVER if span is None else now + span * SECOND_US for span in spans], np.int64
        )

    given: dict[str, Any] = {
        "key": pa.array([message.key for message in batch], pa.binary()),
        "priority": np.array([message.priority for message in batch], np.int8),
        "due": times([message.due for message in batch]),
        "expires": times([message.expires for message in batch]),
        "passed": np.array([message.passed for message in batch]),
    }
    names = {"due": "deliver_at", "expires": "expires_at"}
    return Arrival(
        base_offset=Offset(base_offset),
        count=len(batch),
        time=Microseconds(append_time),
        **{names.get(name, name): given[name] for name in columns},
    )


def facts(machine: DeliveryMachine) -> dict[str, Any]:
    """Everything that decides what the machine does next."""
    state = machine.state.snapshot()
    return {
        "observed_to": state.observed_to,
        "start": state.start,
        "sets": (
            state.ready,
            state.under_way,
            state.expired_in_lease,
            state.dead_letter_pending,
            state.dead,
        ),
        "ready_count": machine.view.ready_count,
        "priorities": state.priorities,
        "attempts": state.attempts,
        "errors": state.errors,
        "delayed": sorted(zip(state.delayed.offsets, state.delayed.times, strict=True)),
        "expiring": sorted(zip(state.expiring.offsets, state.expiring.times, strict=True)),
        "leases": sorted(
            (one.id, one.consumer, one.granted, one.deadline, tuple(one.offsets))
            for one in state.leases
        ),
        "pending_acks": sorted(
            (one.transaction, one.lease_id, one.since, tuple(one.offsets))
            for one in state.pending_acks
        ),
    }


BOUNDS = {
    timed: {"_RUNS_MAX": 4, "_LARGE_RUNS": 1, "_DISCARDED_MAX": 2},
    key_order: {"_GHOSTS_MAX": 2, "_SKIPS_MAX": 2},
    keyed_offsets: {"_ROOM": 2},
    lease_table: {"_ENDED_MAX": 1},
}
"""Upkeep that is seldom due otherwise."""


@pytest.fixture(params=["upkeep at once", "upkeep later"])
def _maintenance(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "upkeep at once":
            for module, bounds in BOUNDS.items():
                for name, bound in bounds.items():
                    patch.setattr(module, name, bound)
        yield


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_maintenance")
@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("ordering", Ordering)
def test_every_message_is_where_the_plain_model_has_it(
    ordering: Ordering, guarantee: Guarantee
) -> None:
    run_state_machine_as_test(
        lambda: LiveMachine(ordering, guarantee),
        settings=settings(
            max_examples=6 * effort(),
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=set(Phase) - {Phase.explain},
        ),
    )
