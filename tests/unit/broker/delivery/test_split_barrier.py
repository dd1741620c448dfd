"""A partition that was split off is held back until its parent is passed, wherever that is led."""

from __future__ import annotations

from quiver.broker.delivery.split_barrier import SplitBarrier
from quiver.errors import NotLeader
from quiver.testing.clock import ManualClock
from tests.aio import async_test


class Parent:
    """What is known of it here, and what the node says that leads it."""

    def __init__(self) -> None:
        self.here: bool | None = None
        self.there: bool | Exception = False
        self.asked = self.opened = 0
        self.clock = ManualClock()
        self.barrier = SplitBarrier(lambda: self.here, self._ask, self._open, self.clock)

    async def _ask(self) -> bool:
        self.asked += 1
        if isinstance(self.there, Exception):
            raise self.there
        return self.there

    def _open(self) -> None:
        self.opened += 1


@async_test
async def test_a_parent_of_this_node_is_looked_at_each_time_and_nobody_is_asked() -> None:
    parent = Parent()
    parent.here = False
    assert not parent.barrier.is_open()
    parent.here = True
    assert parent.barrier.is_open()
    parent.here = False  # its floor has passed the place: it need not be looked at again
    assert parent.barrier.is_open()
    assert parent.asked == 0


@async_test
async def test_a_subscription_that_begins_anew_waits_again() -> None:
    parent = Parent()
    parent.here = True
    assert parent.barrier.is_open()
    parent.here = False
    parent.barrier.close()
    assert not parent.barrier.is_open()


@async_test
async def test_another_node_is_asked_until_it_says_yes() -> None:
    parent = Parent()
    assert not parent.barrier.is_open()
    await parent.clock.advance(0.35)
    assert (parent.asked, parent.opened) == (4, 0)
    parent.there = NotLeader("it moves")
    await parent.clock.advance(0.2)
    parent.there = True
    await parent.clock.advance(0.1)
    assert parent.opened == 1
    assert parent.barrier.is_open()
    asked = parent.asked
    await parent.clock.advance(5)
    assert parent.asked == asked


@async_test
async def test_when_nobody_wants_to_know_any_more_nobody_is_asked() -> None:
    parent = Parent()
    assert not parent.barrier.is_open()
    await parent.clock.advance(15)
    asked = parent.asked
    assert 90 <= asked <= 110
    await parent.clock.advance(60)
    assert parent.asked == asked
    assert not parent.barrier.is_open()
    await parent.clock.advance(0.5)
    assert parent.asked > asked
    await parent.barrier.stop()
    assert parent.clock.sleepers == 0
