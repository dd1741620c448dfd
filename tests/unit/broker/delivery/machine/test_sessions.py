"""Consumers with a session, rule by rule: what is reserved, started, returned, and suspected."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from pyroaring import BitMap64

from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.records import AnyRecord
from quiver.broker.delivery.machine.snapshot import decode_snapshot, encode_snapshot
from quiver.model.ids import Offset
from quiver.model.subscription import Backoff, Ordering
from tests.unit.broker.delivery.small_deliveries import (
    SECOND,
    arrival,
    offsets,
    publish,
    seconds,
    subscription,
    take,
)


def reserve(
    machine: DeliveryMachine, limit: int, *, lease: int, at: float = 0, has_suspect: bool = False
) -> list[int]:
    """Which messages are pushed to a consumer."""
    taken, _ = machine.reserve(
        seconds(at), limit=limit, lease_id=lease, consumer="ann", may_be_suspect=not has_suspect
    )
    return [] if taken is None else list(taken.offsets)


def start(machine: DeliveryMachine, lease: int, started: BitMap64, at: float = 0) -> list[int]:
    """Which of the messages a program gets."""
    held, _ = machine.start(lease, started, seconds(at), consumer="ann", visibility_us=30 * SECOND)
    return list(held)


def end(machine: DeliveryMachine, lease: int, at: float = 0) -> list[AnyRecord]:
    """The consumer ends without a word."""
    return machine.end_session(lease, seconds(at), is_silent=True, reason="gone")


def suspected(count: int, others: int = 0, **settings: object) -> DeliveryMachine:
    """The first ``count`` messages were with a consumer that ended without a word."""
    machine = subscription(**settings)
    publish(machine, count)
    reserve(machine, count, lease=1)
    start(machine, 1, offsets(*range(count)))
    end(machine, 1)
    if others:
        publish(machine, others)
    return machine


# ---------------------------------------------------------------------- order


def test_an_earlier_message_of_the_key_goes_first_once_a_later_one_is_not_reserved() -> None:
    machine = subscription(ordering=Ordering.KEY)
    publish(machine, 3, key=[b"a", b"a", b"a"], delay=[5, None, None])
    assert reserve(machine, 3, lease=1) == [1]
    assert reserve(machine, 3, lease=2, at=6) == [], "one of the key is reserved"
    machine.unreserve(1, offsets(1))
    assert [take(machine, 3, at=6, lease=3)] == [[0]]
    machine.ack(3, offsets(0))
    assert take(machine, 3, at=6, lease=4) == [1]
    machine.ack(4, offsets(1))
    assert take(machine, 3, at=6, lease=5) == [2]


def test_a_message_that_was_delivered_before_still_leads_its_key_after_a_reservation() -> None:
    machine = subscription(ordering=Ordering.KEY)
    publish(machine, 2, key=[b"a", b"a"], delay=[5, None])
    take(machine, 1, lease=1)
    machine.nack(1, offsets(1), seconds(1), delay_us=0)
    assert reserve(machine, 1, lease=2, at=2) == [1]
    assert reserve(machine, 1, lease=3, at=6) == []
    machine.unreserve(2, offsets(1))
    assert reserve(machine, 2, lease=4, at=6) == [1]


def test_in_strict_order_nothing_else_is_delivered_while_something_is_reserved() -> None:
    machine = subscription(ordering=Ordering.PARTITION)
    publish(machine, 4)
    assert reserve(machine, 2, lease=1) == [0, 1]
    assert reserve(machine, 2, lease=2) == []
    assert take(machine, 2, lease=3) == []
    start(machine, 1, offsets(0))
    machine.ack(1, offsets(0))
    assert take(machine, 2, lease=4) == []
    machine.unreserve(1, offsets(1))
    assert take(machine, 2, lease=5) == [1, 2]


# ---------------------------------------------------------------------- the end


def test_what_a_session_had_is_ready_at_once_when_it_ends() -> None:
    machine = subscription(backoff=Backoff(min=60, max=60))
    publish(machine, 3)
    reserve(machine, 3, lease=1)
    start(machine, 1, offsets(0))
    end(machine, 1, at=1)
    assert machine.view.ready_count == 3
    assert machine.view.deliveries_of(offsets(0, 1, 2)) == {1: offsets(0)}


def test_a_message_that_expired_while_it_was_reserved_is_not_delivered_after_a_restart() -> None:
    machine = subscription()
    publish(machine, 1, expires=[10])
    reserve(machine, 1, lease=1)
    machine.tick(seconds(11))
    snapshot = decode_snapshot(encode_snapshot(machine.state.snapshot()))
    assert snapshot is not None
    restarted = subscription()
    restarted.state.restore(snapshot)
    assert reserve(restarted, 1, lease=2, at=12) == []
    assert restarted.view.floor == 1


def test_a_message_of_a_session_has_its_own_delivery_time() -> None:
    machine = subscription()
    publish(machine, 2)
    reserve(machine, 2, lease=1)
    start(machine, 1, offsets(0), at=1)
    start(machine, 1, offsets(1), at=7)
    machine.reject(1, offsets(1))
    assert machine.view.delivery_times(offsets(1)) == ({1: seconds(7)}, {1: seconds(7)})


def test_reserved_messages_are_gone_when_the_log_ends_before_them() -> None:
    machine = subscription()
    publish(machine, 2)
    publish(machine, 2)
    reserve(machine, 4, lease=1)
    machine.state.forget_from(Offset(2))
    assert start(machine, 1, offsets(0, 1, 2, 3)) == [0, 1]


# ---------------------------------------------------------------------- suspects


def test_a_suspect_is_delivered_alone() -> None:
    machine = suspected(2, others=2)
    assert reserve(machine, 10, lease=2) == [0]
    assert reserve(machine, 10, lease=3, has_suspect=True) == [2, 3]
    assert reserve(machine, 10, lease=4, has_suspect=True) == []
    assert reserve(machine, 10, lease=5) == [1], "a consumer that has none may have the other"


def test_of_what_is_no_suspect_the_most_urgent_comes_first() -> None:
    machine = suspected(3)
    publish(machine, 3, priority=[4, 9, 9])
    assert reserve(machine, 1, lease=2, has_suspect=True) == [4]
    assert reserve(machine, 5, lease=3, has_suspect=True) == [3, 5]


def test_a_suspect_is_cleared_by_time_with_a_live_consumer_or_by_a_nack() -> None:
    machine = suspected(3, backoff=Backoff(min=0))
    reserve(machine, 1, lease=2)
    start(machine, 2, offsets(0))
    machine.tick(seconds(9))
    assert 0 in machine.state.suspects
    machine.tick(seconds(10))
    assert 0 not in machine.state.suspects
    reserve(machine, 1, lease=3, at=11)
    start(machine, 3, offsets(1), at=11)
    machine.nack(3, offsets(1), seconds(11))
    assert list(machine.state.suspects) == [2]


def test_a_tenant_whose_message_was_put_back_for_a_suspect_keeps_its_turn() -> None:
    machine = subscription(fairness="key")
    rows = {"a": [0], "b": [1, 4], "c": [2, 5], "d": [3, 6]}
    tenants = {tenant: np.array(places) for tenant, places in rows.items()}
    machine.state.observe(replace(arrival(0, 7), tenants=tenants))
    assert reserve(machine, 4, lease=1) == [0, 1, 2, 3]
    start(machine, 1, offsets(0))
    machine.unreserve(1, offsets(1, 2, 3))
    end(machine, 1)
    assert reserve(machine, 2, lease=2) == [0], "the suspect, alone"
    assert [reserve(machine, 1, lease=lease) for lease in (3, 4, 5)] == [[1], [2], [3]]
