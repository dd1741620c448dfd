"""What members of a consumer group can rely on, one behaviour at a time."""

from __future__ import annotations

import msgspec
import pytest

from quiver.broker.group.machine import GroupMachine
from quiver.broker.group.values import (
    Asked,
    Granted,
    GrantEpoch,
    GroupSettings,
    MemberId,
    MemberLeft,
    Owner,
    PartitionKey,
    Reason,
    Revoked,
    Spared,
    View,
)
from quiver.errors import InvalidSetting, Overloaded
from quiver.model.ids import Microseconds

ADA, BOB, CLEO = MemberId("ada"), MemberId("bob"), MemberId("cleo")
P0, P1, P2, P3 = (PartitionKey("orders", index) for index in range(4))
NOBODY = View({}, {})


def at(seconds: float) -> Microseconds:
    return Microseconds(round(seconds * 1_000_000))


def epoch(number: int) -> GrantEpoch:
    return GrantEpoch(number)


def group(*members: MemberId, partitions: tuple[PartitionKey, ...] = (P0, P1)) -> GroupMachine:
    """A group in which all have what is theirs: in order of joining, as all join at once."""
    machine = GroupMachine(GroupSettings())
    for member in members:
        machine.join(member, at(0))
    machine.set_partitions(partitions, at(0))
    return machine


def test_the_first_member_reads_everything_at_once() -> None:
    machine = group()
    view, _ = machine.join(ADA, at(1))
    assert view == View({P0: epoch(1), P1: epoch(2)}, {})


def test_a_partition_is_asked_for_before_it_moves() -> None:
    machine = group(ADA)
    view, changes = machine.join(BOB, at(1))
    assert view == NOBODY
    assert changes[1:] == [Asked(P1, ADA, epoch(2), at(31))]
    assert machine.owner_of(P1) == Owner(ADA, epoch(2))


def test_who_is_asked_receives_no_more_but_may_ack() -> None:
    machine = group(ADA)
    machine.join(BOB, at(1))
    assert machine.heartbeat(ADA, at(2))[0] == View({P0: epoch(1)}, {P1: epoch(2)})
    assert machine.may_receive(ADA, P0, epoch(1))
    assert not machine.may_receive(ADA, P1, epoch(2))
    assert machine.may_ack(ADA, P1, epoch(2))


def test_a_partition_that_was_given_up_is_granted_under_a_new_epoch() -> None:
    machine = group(ADA)
    machine.join(BOB, at(1))
    _, changes = machine.heartbeat(ADA, at(2), gave_up={P1: epoch(2)})
    assert changes == [Revoked(P1, ADA, epoch(2), Reason.GAVE_UP), Granted(P1, BOB, epoch(3))]
    assert machine.may_receive(BOB, P1, epoch(3))
    assert not machine.may_ack(ADA, P1, epoch(2))


def test_giving_up_is_heard_once_however_often_it_is_said() -> None:
    machine = group(ADA)
    machine.join(BOB, at(1))
    machine.heartbeat(ADA, at(2), gave_up={P1: epoch(2)})
    machine.leave(BOB, at(3))
    assert machine.owner_of(P1) == Owner(ADA, epoch(4))
    _, changes = machine.heartbeat(ADA, at(4), gave_up={P1: epoch(2)})
    assert changes == []


def test_what_nobody_asked_for_and_is_given_up_comes_back_under_a_new_epoch() -> None:
    machine = group(ADA)
    view, _ = machine.heartbeat(ADA, at(1), gave_up={P0: epoch(1)})
    assert view == View({P1: epoch(2), P0: epoch(3)}, {})


def test_who_does_not_give_up_in_time_loses_the_partition() -> None:
    machine = group(ADA)
    machine.join(BOB, at(1))
    for second in range(2, 31):
        machine.heartbeat(ADA, at(second))
        machine.heartbeat(BOB, at(second))
        assert machine.tick(at(second)) == []
    assert machine.tick(at(31)) == [
        Revoked(P1, ADA, epoch(2), Reason.TOO_LATE),
        Granted(P1, BOB, epoch(3)),
    ]
    assert machine.heartbeat(ADA, at(31))[0] == View({P0: epoch(1)}, {})


def test_another_change_gives_no_more_time_to_give_up() -> None:
    machine = group(ADA, partitions=(P0, P1, P2))
    machine.join(BOB, at(1))
    _, changes = machine.join(CLEO, at(9))
    assert changes[1:] == [Asked(P1, ADA, epoch(2), at(39))]
    for member in (ADA, BOB, CLEO):
        machine.heartbeat(member, at(30))
    assert Revoked(P2, ADA, epoch(3), Reason.TOO_LATE) in machine.tick(at(31))


def test_who_was_asked_is_spared_if_the_other_leaves_first() -> None:
    machine = group(ADA)
    machine.join(BOB, at(1))
    assert Spared(P1, ADA, epoch(2)) in machine.leave(BOB, at(2))
    assert machine.may_receive(ADA, P1, epoch(2))
    assert machine.moving_count == 0


def test_what_a_leaving_member_had_moves_at_once_and_nothing_else_does() -> None:
    machine = group(ADA, BOB, CLEO, partitions=(P0, P1, P2))
    kept = machine.owner_of(P1)
    changes = machine.leave(ADA, at(1))
    assert changes[:2] == [MemberLeft(ADA, Reason.LEFT), Revoked(P0, ADA, epoch(1), Reason.LEFT)]
    assert machine.owner_of(P0) == Owner(BOB, epoch(4))
    assert machine.owner_of(P1) == kept


def test_a_silent_member_is_taken_for_dead_after_its_session() -> None:
    machine = group(ADA, BOB)
    machine.heartbeat(BOB, at(5))
    assert machine.tick(at(9.9)) == []
    assert MemberLeft(ADA, Reason.EXPIRED) in machine.tick(at(10))
    assert machine.owner_of(P0) == Owner(BOB, epoch(3))


def test_a_heartbeat_that_comes_before_the_tick_saves_a_late_member() -> None:
    machine = group(ADA)
    assert machine.heartbeat(ADA, at(11))[0] is not None
    assert machine.tick(at(11)) == []


def test_who_is_no_member_is_told_to_join() -> None:
    machine = group(ADA)
    machine.leave(ADA, at(1))
    assert machine.heartbeat(ADA, at(2)) == (None, [])
    assert machine.leave(ADA, at(2)) == []


def test_to_join_again_changes_nothing() -> None:
    machine = group(ADA, BOB)
    assert machine.join(ADA, at(1)) == (View({P0: epoch(1)}, {}), [])


def test_what_a_member_is_not_interested_in_goes_to_others() -> None:
    machine = group(ADA, partitions=(P0, PartitionKey("visits", 0)))
    view, _ = machine.join(ADA, at(1), interests=frozenset({"visits"}))
    assert view.give_up == {P0: epoch(1)}
    machine.heartbeat(ADA, at(2), gave_up=view.give_up)
    assert machine.owner_of(P0) is None
    assert machine.join(BOB, at(3))[0].partitions == {P0: epoch(3)}


def test_a_partition_that_is_removed_is_revoked() -> None:
    machine = group(ADA)
    assert machine.set_partitions([P0], at(1)) == [Revoked(P1, ADA, epoch(2), Reason.REMOVED)]


def test_an_earlier_time_counts_as_the_latest_seen() -> None:
    machine = group(ADA)
    machine.tick(at(9))
    machine.heartbeat(ADA, at(1))
    assert machine.tick(at(18.9)) == []
    assert MemberLeft(ADA, Reason.EXPIRED) in machine.tick(at(19))


def test_a_group_takes_a_bounded_number_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiver.broker.group.machine.MEMBERS_MAX", 2)
    machine = group(ADA, BOB)
    with pytest.raises(Overloaded, match="already has 2 members, the most allowed"):
        machine.join(CLEO, at(0))
    machine.join(ADA, at(1))


@pytest.mark.parametrize("bad", ["", "with space", "x" * 201, "..", "__own"])
def test_a_member_id_is_a_name(bad: str) -> None:
    with pytest.raises(InvalidSetting):
        group().join(MemberId(bad), at(0))


@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [
        ("session_timeout_us", 3_000_000, 300_000_000),
        ("rebalance_timeout_us", 1_000_000, 3_600_000_000),
    ],
)
def test_settings_have_bounds(setting: str, least: int, most: int) -> None:
    for good in (least, most):
        msgspec.convert({setting: good}, GroupSettings)
    for bad in (least - 1, most + 1):
        with pytest.raises(InvalidSetting):
            GroupSettings(**{setting: bad})
