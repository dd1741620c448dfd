"""Snapshots: what is read is what was written, or nothing."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from quiver.broker.delivery.machine.arrival import Arrival
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.offset_sets import offset_set
from quiver.broker.delivery.machine.records import EXPIRED, PURGED, Finished
from quiver.broker.delivery.machine.snapshot import (
    DeliverySnapshot,
    decode_snapshot,
    encode_snapshot,
)
from quiver.broker.delivery.machine.timed import Moments
from quiver.errors import UnsupportedFormat
from quiver.model.delivery_columns import NEVER
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import Ordering
from tests.unit.broker.delivery.machine.test_machine import facts
from tests.unit.broker.delivery.small_deliveries import (
    arrival,
    offsets,
    publish,
    seconds,
    subscription,
    take,
)


def busy_machine() -> DeliveryMachine:
    """With something of everything."""
    machine = subscription(max_deliveries=2)
    publish(machine, 4, priority=[1, 9, 4, 4], delay=[10, None, None, None])
    publish(machine, 4, at=1, expires=[5, 1000, None, None])
    take(machine, 6)
    machine.nack(1, offsets(1), seconds(0), 0)
    machine.ack(1, offsets(2))
    machine.extend(1, offsets(3), seconds(99))
    take(machine, 1, at=2, lease=2)
    machine.nack(2, offsets(1), seconds(2), error="no such customer")
    machine.tick(seconds(6))
    return machine


def reopened(machine: DeliveryMachine) -> DeliveryMachine:
    snapshot = decode_snapshot(encode_snapshot(machine.state.snapshot()))
    assert snapshot is not None
    again = DeliveryMachine(machine.state.settings, Offset(0))
    again.state.restore(snapshot)
    return again


def test_a_machine_is_the_same_after_it_was_saved_and_restored() -> None:
    machine = busy_machine()
    again = reopened(machine)
    assert facts(again) == facts(machine)
    assert again.view.last_error(Offset(1)) == "no such customer"
    for now in range(6, 120):
        assert again.tick(seconds(now)) == machine.tick(seconds(now))
    assert take(again, 9, at=120, lease=9) == take(machine, 9, at=120, lease=9)


def test_a_snapshot_does_not_change_with_its_machine() -> None:
    machine = busy_machine()
    snapshot = machine.state.snapshot()
    before = encode_snapshot(snapshot)
    machine.give_up(BitMap64(range(8)), PURGED)
    assert encode_snapshot(snapshot) == before


def test_any_damage_is_noticed() -> None:
    data = encode_snapshot(busy_machine().state.snapshot())
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        assert decode_snapshot(bytes(damaged)) is None
    for length in range(len(data)):
        assert decode_snapshot(data[:length]) is None


def test_a_sound_file_of_another_kind_is_no_snapshot() -> None:
    content = b"QVRC" + struct.pack("<I", 1) + b"\x80"
    assert decode_snapshot(content + struct.pack("<I", crc32c(content))) is None


def test_a_snapshot_of_a_later_version_says_so() -> None:
    content = b"QVRS" + struct.pack("<I", 3) + b"\x80"
    with pytest.raises(UnsupportedFormat, match="format version 3"):
        decode_snapshot(content + struct.pack("<I", crc32c(content)))


@given(st.dictionaries(st.integers(0, 1 << 60), st.integers(-(1 << 61), 1 << 61)))
def test_times_come_back_as_they_were(times: dict[int, int]) -> None:
    machine = subscription()
    given = Moments(np.array(list(times.values()), np.int64), np.array(list(times), np.int64))
    empty = machine.state.snapshot()
    fields = {name: getattr(empty, name) for name in DeliverySnapshot.__struct_fields__}
    found = decode_snapshot(encode_snapshot(DeliverySnapshot(**{**fields, "delayed": given})))
    assert found is not None
    moments = zip(found.delayed.offsets.tolist(), found.delayed.times.tolist(), strict=True)
    assert dict(moments) == times


def test_with_order_by_key_nothing_is_delivered_before_all_keys_are_learned() -> None:
    machine = subscription(ordering=Ordering.KEY)
    batches = [arrival(0, 2, key=[b"a", b"b"]), arrival(2, 2, key=[b"a", None])]
    for batch in batches:
        machine.state.observe(batch)
    take(machine, 1)
    again = reopened(machine)
    assert again.state.keys_from == 0
    assert again.view.depth == machine.view.depth
    again.state.learn(batches[0])
    assert again.state.keys_from == 2
    with pytest.raises(AssertionError, match="keys are learned first"):
        take(again, 9, lease=2)
    again.state.learn(batches[1])
    assert again.state.keys_from is None
    assert facts(again) == facts(machine)
    assert take(again, 9, lease=2) == [1, 3]


def test_keys_are_learned_from_the_first_pending_message_on() -> None:
    machine = subscription(ordering=Ordering.KEY)
    batches = [arrival(base, 2, key=[b"a", b"b"]) for base in (0, 2, 4)]
    for batch in batches:
        machine.state.observe(batch)
    machine.drop(BitMap64(range(3)), EXPIRED)
    again = reopened(machine)
    assert again.state.keys_from == 3
    for batch in batches[1:]:
        again.state.learn(batch)
    assert take(again, 9) == [3, 4]


def test_a_log_that_loses_its_beginning_while_keys_are_learned_does_no_harm() -> None:
    machine = subscription(ordering=Ordering.KEY)
    batches = [arrival(base, 3, key=[b"a", b"b", b"a"]) for base in (0, 3, 6)]
    for batch in batches:
        machine.state.observe(batch)
    take(machine, 1)
    again = reopened(machine)
    again.state.learn(batches[0])
    again.skip_to(Offset(4))
    assert again.state.keys_from == 4
    for batch in batches[1:]:
        again.state.learn(batch)
    assert take(again, 9, lease=2) == [4, 5]
    again.ack(2, offsets(4, 5))
    assert take(again, 9, lease=3) == [6, 7]


@pytest.mark.parametrize("end", [6, 3])
def test_a_log_that_lost_its_end_is_learned_up_to_there(end: int) -> None:
    machine = subscription(ordering=Ordering.KEY)
    batches = [arrival(base, 3, key=[b"a", b"b", b"a"]) for base in (0, 3, 6)]
    for batch in batches:
        machine.state.observe(batch)
    take(machine, 1)
    again = reopened(machine)
    again.state.learn(batches[0])
    again.state.forget_from(Offset(end))
    for batch in batches[1 : end // 3]:
        again.state.learn(batch)
    assert again.state.keys_from is None
    assert again.view.pending_count == end
    assert take(again, 9, lease=2) == [1]
    again.state.observe(arrival(end, 1, key=[b"c"]))
    assert take(again, 9, lease=3) == [end]


def test_priorities_do_not_count_for_a_subscription_that_is_ordered_by_key_now() -> None:
    unordered = subscription()
    batch = arrival(0, 2, key=[b"a", b"b"], priority=[1, 9])
    unordered.state.observe(batch)
    ordered = subscription(ordering=Ordering.KEY)
    ordered.state.restore(unordered.state.snapshot())
    ordered.state.learn(batch)
    assert take(ordered, 1) == [0]


def test_with_order_by_key_and_nothing_pending_there_is_nothing_to_learn() -> None:
    machine = subscription(ordering=Ordering.KEY)
    publish(machine, 1, key=[b"a"])
    take(machine, 1)
    machine.ack(1, offsets(0))
    assert reopened(machine).state.keys_from is None


def test_a_million_pending_messages_are_a_small_snapshot() -> None:
    count = 1_000_000
    random = np.random.default_rng(7)
    due = seconds(10) + random.integers(0, seconds(3600), count)
    machine = subscription()
    for base in range(0, count, 100_000):
        rows = slice(base, base + 100_000)
        machine.state.observe(
            Arrival(
                base_offset=Offset(base),
                count=100_000,
                time=Microseconds(base),
                priority=random.integers(0, 10, 100_000, np.int8),
                deliver_at=np.where(random.random(100_000) < 0.5, due[rows], NEVER),
            )
        )
    acked = offset_set(np.flatnonzero(random.random(count) < 0.1))
    machine.state.apply(Finished(acked.serialize()))
    data = encode_snapshot(machine.state.snapshot())
    assert len(data) < 4_000_000
    assert encode_snapshot(reopened(machine).state.snapshot()) == data
