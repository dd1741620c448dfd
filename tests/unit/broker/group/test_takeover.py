"""A consumer group whose coordinator changed: members come back and go on with what they own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.broker.group.machine import GroupMachine
from quiver.broker.group.values import (
    Change,
    Granted,
    GrantEpoch,
    GroupSettings,
    MemberId,
    MemberJoined,
    PartitionKey,
    Reason,
    Revoked,
    View,
)
from quiver.model.ids import Microseconds

ADA, BOB, CLEO = MemberId("ada"), MemberId("bob"), MemberId("cleo")
P0, P1 = (PartitionKey("orders", index) for index in range(2))
NOBODY = View({}, {})


def at(seconds: float) -> Microseconds:
    return Microseconds(round(seconds * 1_000_000))


def epoch(number: int) -> GrantEpoch:
    return GrantEpoch(number)


def taken_over(*, term: int = 1) -> GroupMachine:
    machine = GroupMachine(GroupSettings(), term=term, taken_over_at=at(0))
    machine.set_partitions((P0, P1), at(0))
    return machine


def test_claims_are_honoured_after_a_change_of_coordinator() -> None:
    machine = taken_over()
    assert machine.join(BOB, at(1), claims={P1: epoch(7)})[0] == View({P1: epoch(7)}, {})
    assert machine.join(ADA, at(2), claims={P0: epoch(5)})[0] == View({P0: epoch(5)}, {})
    assert machine.tick(at(5)) == []


def test_nothing_unclaimed_is_granted_before_the_grace_period_ends() -> None:
    machine = taken_over()
    assert machine.join(ADA, at(1))[0] == NOBODY
    assert machine.next_event() == at(5)
    first = 1 + (1 << 32)
    assert machine.tick(at(5)) == [
        Granted(P0, ADA, epoch(first)),
        Granted(P1, ADA, epoch(first + 1)),
    ]


def test_of_two_claims_the_newer_grant_wins() -> None:
    machine = taken_over()
    machine.join(ADA, at(1), claims={P0: epoch(5)})
    _, changes = machine.join(BOB, at(2), claims={P0: epoch(7)})
    assert changes[1:] == [
        Revoked(P0, ADA, epoch(5), Reason.OUTCLAIMED),
        Granted(P0, BOB, epoch(7)),
    ]
    assert machine.join(CLEO, at(3), claims={P0: epoch(6)})[0] == NOBODY


def test_a_claim_after_the_grace_period_is_ignored() -> None:
    machine = taken_over()
    machine.tick(at(5))
    assert machine.join(ADA, at(6), claims={P0: epoch(5)})[0].partitions[P0] > epoch(5)


def test_an_ended_grant_is_not_honoured_again() -> None:
    machine = taken_over()
    machine.join(ADA, at(1), claims={P0: epoch(5)})
    machine.set_partitions([], at(2))
    machine.set_partitions([P0], at(3))
    assert machine.join(ADA, at(4), claims={P0: epoch(5)})[0] == NOBODY


@pytest.mark.parametrize("claimed", [0, -1, (1 << 32) + 1, 1 << 70])
def test_a_claim_to_what_was_never_granted_is_ignored(claimed: int) -> None:
    machine = taken_over()
    assert machine.join(ADA, at(1), claims={P0: epoch(claimed)})[0] == NOBODY


@given(st.integers(1, 20), st.permutations([MemberId(f"m{number}") for number in range(5)]))
def test_if_all_come_back_in_the_grace_period_nothing_moves(
    partition_count: int, order: list[MemberId]
) -> None:
    partitions = [PartitionKey("orders", index) for index in range(partition_count)]
    before = GroupMachine(GroupSettings(), term=1)
    before.set_partitions(partitions, at(0))
    for member in sorted(order):
        before.join(member, at(0))
        for owner in sorted(before.members):
            before.heartbeat(owner, at(0), gave_up=before.view(owner).give_up)
    after = GroupMachine(GroupSettings(), term=2, taken_over_at=at(10))
    after.set_partitions(partitions, at(10))
    changes: list[Change] = []
    for member in order:
        changes += after.join(member, at(11), claims=before.view(member).partitions)[1]
    changes += after.tick(at(15))
    assert all(isinstance(change, MemberJoined | Granted) for change in changes)
    assert [after.owner_of(place) for place in partitions] == [
        before.owner_of(place) for place in partitions
    ]
