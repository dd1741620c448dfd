"""A group whose partitions are led by several nodes: what changes hands, and what its members keep."""

from __future__ import annotations

import asyncio

import pytest

from quiver.broker.group.coordinator import GroupCoordinator
from quiver.model.ids import Microseconds
from quiver.model.subscription import Ordering, SubscriptionSettings
from quiver.testing.clock import ManualClock

SETTINGS = SubscriptionSettings(topics=["t"], ordering=Ordering.PARTITION, session_timeout=10)
PLACES = [("t", 0), ("t", 1)]


def group(clock: ManualClock) -> tuple[GroupCoordinator, list[str]]:
    """A group that ada reads alone, of which this node leads nothing; who is released elsewhere."""
    released: list[str] = []
    membership = GroupCoordinator(
        "g", SETTINGS, clock, lambda: None, release_remote=released.append
    )
    membership.read([], PLACES)
    membership.seen("ada")
    return membership, released


def test_a_partition_that_moves_leaves_its_owner_what_it_holds_elsewhere() -> None:
    membership, released = group(ManualClock())
    membership.seen("bob")
    assert {name: len(held) for name, held in membership.members.items()} == {"ada": 1, "bob": 1}
    assert released == []


def test_what_a_silent_member_holds_elsewhere_is_released() -> None:
    clock = ManualClock()
    membership, released = group(clock)
    asyncio.run(clock.advance(11))
    membership.tick()
    assert membership.members == {}
    assert set(released) == {"ada"}


class SetClock(ManualClock):
    """A clock whose date somebody sets."""

    set_by_s = 0

    def time_us(self) -> Microseconds:
        return Microseconds(super().time_us() + self.set_by_s * 1_000_000)


@pytest.mark.parametrize("set_by_s", [-3600, 3600])
def test_a_date_that_is_set_neither_expires_nor_keeps_members(set_by_s: int) -> None:
    clock = SetClock()
    membership, _ = group(clock)
    clock.set_by_s = set_by_s
    asyncio.run(clock.advance(9))
    membership.tick()
    assert list(membership.members) == ["ada"]
    asyncio.run(clock.advance(2))
    membership.tick()
    assert membership.members == {}
