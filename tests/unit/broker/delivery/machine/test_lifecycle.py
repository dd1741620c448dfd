"""A long life: what is finished leaves nothing behind, whatever it was and however long it goes on."""

from __future__ import annotations

import sys
from array import array
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from quiver.broker.delivery.machine.arrival import Arrival
from quiver.broker.delivery.machine.leases import LeaseTable
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.ready import PublishTimes
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import Backoff, Ordering
from tests.unit.broker.delivery.small_deliveries import (
    SECOND,
    offsets,
    publish,
    seconds,
    subscription,
    take,
)

EMPTY_BYTES = 200_000
"""What a machine may hold on to that has nothing to do."""


def size_bytes(value: Any, seen: set[int] | None = None) -> int:
    """All that hangs on an object."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type):
        return 0
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, BitMap64):
        return len(value.serialize())
    if isinstance(value, str | bytes | int | float | array):
        return sys.getsizeof(value)
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif hasattr(value, "__struct_fields__") or hasattr(value, "__slots__"):
        names = getattr(value, "__struct_fields__", None) or value.__slots__
        parts = [getattr(value, name) for name in names]
    elif hasattr(value, "__dict__"):
        parts = list(vars(value).values())
    return sys.getsizeof(value) + sum(size_bytes(part, seen) for part in parts)


def batch_of_everything(base: int, size: int, now: int, random: np.random.Generator) -> Arrival:
    delayed = random.random(size) < 0.1
    return Arrival(
        base_offset=Offset(base),
        count=size,
        time=Microseconds(now),
        priority=random.integers(0, 10, size, np.int8),
        deliver_at=np.where(delayed, now + random.integers(0, 3 * SECOND, size), -1),
        expires_at=np.full(size, now + 3600 * SECOND),
        key=pa.array([b"%d" % key for key in random.integers(0, 5000, size)], pa.binary()),
    )


def work_off(machine: DeliveryMachine, now: Microseconds, lease_id: int) -> None:
    """Take what is ready, fail with some of it, and finish the rest."""
    taken, _ = machine.take(now, limit=10_000, lease_id=lease_id)
    if taken is not None:
        machine.nack(lease_id, BitMap64(place for place in taken.offsets if place % 50 == 0), now)
        machine.extend(lease_id, taken.offsets, Microseconds(now + 7200 * SECOND))
        machine.ack(lease_id, taken.offsets)
        machine.dead_lettered(machine.view.dead_letter_pending.copy())


@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.KEY])
def test_a_million_messages_come_and_go_and_leave_nothing_behind(ordering: Ordering) -> None:
    """One message is stuck at the floor all the while."""
    random = np.random.default_rng(11)
    machine = subscription(
        ordering=ordering, visibility="12h", max_deliveries=2, backoff=Backoff(min=1)
    )
    publish(machine, 1, key=[b"stuck"], priority=9)
    assert take(machine, 1, lease=1) == [0]
    now, largest, leases = 0, 0, count(2)
    while machine.state.observed_to < 1_000_000 or machine.view.pending_count > 1:
        now += SECOND
        if machine.state.observed_to < 1_000_000:
            machine.state.observe(batch_of_everything(machine.state.observed_to, 5000, now, random))
        machine.tick(Microseconds(now))
        while machine.view.ready_count:
            work_off(machine, Microseconds(now), next(leases))
        if now % (50 * SECOND) == 0:
            largest = max(largest, size_bytes(machine))
    assert machine.view.floor == 0
    assert largest < 4_000_000
    machine.ack(1, offsets(0))
    machine.skip_to(machine.state.observed_to)
    assert size_bytes(machine) < EMPTY_BYTES


def test_leases_that_are_settled_early_leave_no_deadline_behind() -> None:
    machine = subscription(visibility="12h")
    publish(machine, 10_001)
    take(machine, 1, lease=99_999)
    for lease in range(1, 10_001):
        taken = take(machine, 1, lease=lease)
        machine.extend(lease, offsets(*taken), seconds(50_000))
        machine.ack(lease, offsets(*taken))
    table: LeaseTable = machine.state.leases
    assert len(table._deadlines) < 200


def test_messages_that_expire_in_line_behind_a_slow_one_are_forgotten() -> None:
    machine = subscription(ordering=Ordering.KEY)
    publish(machine, 1, key=[b"a"])
    take(machine, 1)
    machine.extend(1, offsets(0), seconds(100_000))
    for now in range(100):
        publish(machine, 1000, at=now, key=[b"a"] * 1000, expires=[now + 1.0] * 1000)
        machine.tick(seconds(now + 1))
    assert machine.view.pending_count == 1
    assert size_bytes(machine) < EMPTY_BYTES
    publish(machine, 1, key=[b"a"])
    machine.ack(1, offsets(0))
    assert take(machine, 9, at=200, lease=2) == [100_001]


def test_publish_times_stay_few_and_in_order() -> None:
    times = PublishTimes()
    for place in range(100_000):
        times.add(place * 10, Microseconds(place * 1000))
        if times.is_full:
            times.make_room(floor=0)
    assert len(times.bases) < 10_000
    assert times.of(999_990) == 99_999_000
    assert list(times.times) == sorted(times.times)
    for offset in range(0, 1_000_000, 1234):
        assert times.of(offset) <= offset // 10 * 1000


def test_publish_times_below_the_floor_go_first() -> None:
    times = PublishTimes()
    while not times.is_full:
        times.add(len(times.bases) * 10, Microseconds(len(times.bases) * 1000))
    times.make_room(floor=80_000)
    assert times.of(80_005) == 8_000_000
    assert times.first_after(8_100_000) == 81_010
