"""A machine that learns of messages from indexes knows what one knows that reads every body."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.broker.delivery.look_ahead import _observe
from quiver.broker.delivery.machine.arrival import IndexedArrival
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.log.segmented_log import SegmentedLog
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import SubscriptionSettings
from quiver.testing.disk import SimulatedDisk
from tests.unit.broker.delivery.small_deliveries import seconds
from tests.unit.log.small_logs import SECOND_US, SetClock, batch, open_log, scheduled

batches = st.lists(
    st.tuples(st.booleans(), st.integers(1, 6), st.integers(0, 200), st.integers(0, 900_000)),
    min_size=1,
    max_size=25,
)
"""Whether it is scheduled, how many messages, a seed, and the time until it is published."""


def log_of(wanted: list[tuple[bool, int, int, int]]) -> SegmentedLog:
    clock = SetClock()
    log = open_log(SimulatedDisk(1), clock)
    for is_scheduled, count, seed, pause in wanted:
        clock.now_us += pause
        log.append([(scheduled if is_scheduled else batch)(count=count, seed=seed)])
    return log


def by_bodies(log: SegmentedLog, machine: DeliveryMachine) -> DeliveryMachine:
    while machine.state.observed_to < log.next_offset:
        _observe(machine, log.read(machine.state.observed_to, 1000))
    return machine


def by_indexes(log: SegmentedLog, machine: DeliveryMachine) -> DeliveryMachine:
    while machine.state.observed_to < log.next_offset:
        span = log.delivery_span(machine.state.observed_to)
        machine.state.observe(IndexedArrival(span, machine.state.name))
    return machine


def deliveries(machine: DeliveryMachine, now: int) -> list[list[int]]:
    """What receives get, until there is nothing left."""
    found: list[list[int]] = []
    while True:
        taken, _ = machine.take(Microseconds(now), limit=3, lease_id=len(found) + 1)
        if taken is None:
            return found
        found.append(list(taken.offsets))


@settings(deadline=None)
@given(batches, st.integers(0, 16), st.sampled_from([0, 60]))
def test_the_same_messages_are_delivered_in_the_same_order(
    wanted: list[tuple[bool, int, int, int]], share: int, ageing: int
) -> None:
    log = log_of(wanted)
    start = Offset(log.next_offset * share // 16)
    subscription = SubscriptionSettings(topics=["jobs"], ageing=ageing)
    read = by_bodies(log, DeliveryMachine(subscription, start, "one"))
    indexed = by_indexes(log, DeliveryMachine(subscription, start, "one"))
    assert indexed.view.depth == read.view.depth
    assert indexed.state.ready.priorities == read.state.ready.priorities
    assert indexed.state.ready.offsets == read.state.ready.offsets
    for name in ("delayed", "expiring"):
        ours, theirs = (getattr(one.state, name).moments() for one in (indexed, read))
        assert dict(zip(ours.offsets.tolist(), ours.times.tolist(), strict=True)) == dict(
            zip(theirs.offsets.tolist(), theirs.times.tolist(), strict=True)
        )
    for now in (seconds(50), Microseconds(1_000 * SECOND_US)):
        assert deliveries(indexed, now) == deliveries(read, now)


@settings(deadline=None)
@given(batches, st.integers(0, 16))
def test_one_that_knows_the_first_messages_goes_on_with_indexes(
    wanted: list[tuple[bool, int, int, int]], share: int
) -> None:
    log = log_of(wanted)
    subscription = SubscriptionSettings(topics=["jobs"], ageing=0)
    read = by_bodies(log, DeliveryMachine(subscription, Offset(0), "other"))
    both = DeliveryMachine(subscription, Offset(0), "other")
    while both.state.observed_to < log.next_offset * share // 16:
        _observe(both, log.read(both.state.observed_to, 1))
    by_indexes(log, both)
    times, bases = list(both.state.published.times), list(both.state.published.bases)
    assert times == sorted(times)
    assert bases == sorted(bases)
    now = seconds(100)
    assert deliveries(both, now) == deliveries(read, now)
