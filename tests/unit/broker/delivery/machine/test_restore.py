"""A subscription as a backup has it: what is pending, and how often it was delivered."""

from __future__ import annotations

import pytest

from quiver.broker.delivery.machine.machine import RESTORED_DELIVERIES_MAX
from quiver.model.ids import Offset
from quiver.model.subscription import Ordering
from tests.unit.broker.delivery.small_deliveries import offsets, publish, seconds, subscription


@pytest.mark.parametrize("ordering", Ordering)
def test_only_what_is_pending_is_left_and_its_deliveries_count(ordering: Ordering) -> None:
    machine, again = subscription(ordering=ordering), subscription(ordering=ordering)
    for one in (machine, again):
        publish(one, 6)
    records = machine.restore(
        offsets(1, 3), Offset(5), {1: offsets(1), 3: offsets(3)}, seconds(0), 9
    )
    for record in records:
        again.state.apply(record)
    again.state.end_delays(seconds(0))
    for one in (machine, again):
        assert list(one.view.in_state("ready")) == [1, 3, 5]
        assert {n: list(part) for n, part in one.state.attempts.levels.items() if part} == {
            1: [1],
            3: [3],
        }


def test_a_message_that_was_delivered_too_often_to_count_is_left() -> None:
    machine = subscription()
    publish(machine, 1)
    machine.restore(offsets(0), Offset(1), {10**6: offsets(0)}, seconds(0), 9)
    assert machine.state.attempts.of(0) == RESTORED_DELIVERIES_MAX


def test_nothing_is_finished_that_came_after_the_backup_looked() -> None:
    machine = subscription()
    publish(machine, 3)
    machine.restore(offsets(), Offset(1), {}, seconds(0), 9)
    assert list(machine.view.in_state("ready")) == [1, 2]
