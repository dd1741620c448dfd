"""Who leads, and where replicas go: the controller's decisions, one at a time."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.cluster.control.controller import Change, Controller, ControllerSettings, new_partition
from quiver.cluster.control.operations import is_drained, pinned_to, resized
from quiver.cluster.election import elected, is_led, resigned, withdrawn
from quiver.cluster.records import (
    NOBODY,
    DrainingRecord,
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    SessionId,
    VersionedDraining,
    VersionedPartition,
    moving,
)
from quiver.cluster.state import ClusterState
from quiver.errors import InvalidRequest
from quiver.model.ids import LeaderEpoch

A, B, C, D = (NodeId(name) for name in "abcd")
P = PartitionId("t/0")
SETTINGS = ControllerSettings(transfer_interval_s=5.0, replace_after_s=60.0, moves_max=2)


def alive(*nodes: NodeId, **sessions: int) -> dict[NodeId, SessionId]:
    return {node: SessionId(sessions.get(node, ord(node))) for node in nodes}


def record(**fields: object) -> PartitionRecord:
    base = PartitionRecord(
        replicas=(A, B, C),
        leader=A,
        session=SessionId(ord("a")),
        epoch=LeaderEpoch(5),
        in_sync=(A, B, C),
        min_in_sync=2,
    )
    return msgspec.structs.replace(base, **fields)


def state(
    living: dict[NodeId, SessionId],
    *records: PartitionRecord,
    draining: Collection[NodeId] = (),
    full: Collection[NodeId] = (),
) -> ClusterState:
    return ClusterState(
        nodes={
            node: NodeRecord(id=node, session=session, disk_is_full=node in full)
            for node, session in living.items()
        },
        partitions={
            PartitionId(f"t/{index}"): VersionedPartition(one, 10 + index)
            for index, one in enumerate(records)
        },
        draining={node: VersionedDraining(DrainingRecord(), 1) for node in draining},
    )


def step(
    living: dict[NodeId, SessionId], one: PartitionRecord, *, at: float = 0.0
) -> Change | None:
    changes = Controller(SETTINGS, 0.0).step(state(living, one), at)
    return changes[0] if changes else None


class TestElection:
    def test_a_lost_leader_is_replaced_from_the_in_sync_set_in_a_new_epoch(self) -> None:
        change = step(alive(B, C), record(in_sync=(A, C)))
        assert change is not None
        assert (change.record.leader, change.record.session) == (C, ord("c"))
        assert (change.record.epoch, change.record.in_sync) == (6, (C,))
        assert (change.revision, change.reason) == (10, "election")

    def test_a_leader_whose_process_started_again_is_elected_anew(self) -> None:
        change = step(alive(A, B, C, a=999), record())
        assert change is not None
        assert (change.record.leader, change.record.session) == (A, 999)
        assert change.record.epoch == 6

    def test_nobody_outside_the_in_sync_set_is_elected(self) -> None:
        assert step(alive(B, C), record(in_sync=(A,))) is None

    def test_a_topic_that_accepts_loss_gets_whoever_lives_and_it_is_called_so(self) -> None:
        change = step(alive(B, C), record(in_sync=(A,), allow_data_loss=True))
        assert change is not None
        assert (change.record.leader, change.record.in_sync) == (B, (B,))
        assert change.reason == "data loss"

    def test_the_last_in_sync_that_lost_its_data_is_elected_where_loss_is_accepted(self) -> None:
        change = step(
            alive(A), record(in_sync=(A,), lost=(A,), session=NOBODY, allow_data_loss=True)
        )
        assert change is not None
        assert (change.record.leader, change.reason) == (A, "data loss")

    def test_a_topic_that_accepts_loss_still_prefers_the_in_sync(self) -> None:
        change = step(alive(B, C), record(in_sync=(A, C), allow_data_loss=True))
        assert change is not None
        assert (change.record.leader, change.reason) == (C, "election")

    def test_one_that_lost_its_data_does_not_lead(self) -> None:
        assert step(alive(A, B, C), record(in_sync=(A,), lost=(A,), session=NOBODY)) is None

    def test_one_that_is_leaving_leads_only_if_nobody_else_can(self) -> None:
        draining = frozenset({B})
        assert elected(record(), alive(B, C), draining).leader == C
        assert elected(record(), alive(B), draining).leader == B

    def test_a_partition_that_is_led_is_left_alone(self) -> None:
        assert step(alive(A, B, C), record()) is None

    def test_a_lost_follower_leaves_the_in_sync_set_in_the_same_epoch(self) -> None:
        change = step(alive(A, C), record())
        assert change is not None
        assert (change.record.in_sync, change.record.epoch) == ((A, C), 5)
        assert change.record.leader == A

    @given(
        st.sets(st.sampled_from([A, B, C]), min_size=1),
        st.sets(st.sampled_from([A, B, C])),
        st.sets(st.sampled_from([A, B, C])),
    )
    def test_a_clean_election_never_leaves_the_in_sync_set(
        self, in_sync: set[NodeId], living: set[NodeId], avoided: set[NodeId]
    ) -> None:
        leader = min(in_sync)
        before = record(in_sync=tuple(sorted(in_sync)), leader=leader)
        after = elected(before, alive(*sorted(living)), avoided)
        assert (after is None) == (not in_sync & living)
        if after is not None:
            assert set(after.in_sync) == in_sync & living
            assert after.leader in after.in_sync
            assert after.epoch == before.epoch + 1


class TestResigning:
    def test_a_leader_that_stops_hands_over_and_stays_in_sync(self) -> None:
        after = resigned(record(), A, alive(A, B, C), in_sync_no_more=False)
        assert (after.leader, after.session, after.epoch) == (B, ord("b"), 6)
        assert after.in_sync == (A, B, C)

    def test_a_leader_whose_log_failed_leaves_the_in_sync_set(self) -> None:
        after = resigned(record(), A, alive(A, B, C), in_sync_no_more=True)
        assert (after.leader, after.in_sync) == (B, (B, C))

    def test_with_no_successor_nobody_leads_until_one_is_elected(self) -> None:
        after = resigned(record(in_sync=(A,)), A, alive(A, B, C), in_sync_no_more=True)
        assert (after.leader, after.session, after.in_sync) == (A, NOBODY, (A,))
        assert not is_led(after, alive(A, B, C))

    def test_resigning_never_elects_outside_the_in_sync_set(self) -> None:
        before = record(in_sync=(A,), allow_data_loss=True)
        assert resigned(before, A, alive(A, B), in_sync_no_more=False).session == NOBODY


class TestWithdrawing:
    def test_a_follower_that_lost_its_data_is_in_sync_no_more(self) -> None:
        after = withdrawn(record(), B)
        assert (after.in_sync, after.leader, after.session) == ((A, C), A, ord("a"))

    def test_a_leader_that_lost_its_data_leads_no_more(self) -> None:
        after = withdrawn(record(), A)
        assert (after.in_sync, after.session) == ((B, C), NOBODY)

    def test_the_last_in_sync_that_lost_its_data_is_marked(self) -> None:
        after = withdrawn(record(in_sync=(A,)), A)
        assert (after.lost, after.session) == ((A,), NOBODY)
        assert elected(after, alive(A, B, C)) is None

    def test_an_election_that_accepts_loss_takes_the_mark_away(self) -> None:
        after = withdrawn(record(in_sync=(A,), allow_data_loss=True), A)
        chosen = elected(after, alive(B, C))
        assert chosen is not None
        assert (chosen.leader, chosen.lost) == (B, ())

    def test_an_election_that_accepts_loss_prefers_who_has_some_data(self) -> None:
        after = withdrawn(record(in_sync=(A,), allow_data_loss=True), A)
        leaders = [elected(after, alive(*living)) for living in ((A, B, C), (A,))]
        assert [one.leader for one in leaders if one is not None] == [B, A]


class TestRebalancing:
    def test_the_lead_goes_back_to_the_first_replica_when_all_are_in_sync(self) -> None:
        led_by_b = record(leader=B, session=SessionId(ord("b")))
        assert step(alive(A, B, C), led_by_b, at=1.0) is None
        change = step(alive(A, B, C), led_by_b, at=5.0)
        assert change is not None
        assert (change.record.leader, change.record.epoch) == (A, 6)
        assert change.reason == "rebalance"

    def test_it_does_not_while_a_replica_is_out_of_sync(self) -> None:
        led_by_b = record(leader=B, session=SessionId(ord("b")), in_sync=(A, B))
        assert step(alive(A, B, C), led_by_b, at=5.0) is None

    def test_few_at_a_time_and_not_all_the_time(self) -> None:
        led_by_b = record(leader=B, session=SessionId(ord("b")), pinned=True)
        controller = Controller(ControllerSettings(transfers_max=2, transfer_interval_s=5.0), 0.0)
        living = state(alive(A, B, C), *[led_by_b] * 5)
        assert len(controller.step(living, 5.0)) == 2
        assert controller.step(living, 6.0) == []
        assert len(controller.step(living, 10.0)) == 2


class _Counted(dict[PartitionId, VersionedPartition]):
    looked = 0

    def items(self):  # type: ignore[no-untyped-def]
        self.looked += 1
        return super().items()


class TestFullDisks:
    def test_a_leader_without_space_gives_its_lead_away_and_gets_it_back_later(self) -> None:
        controller = Controller(SETTINGS, 0.0)
        one, at = record(), SETTINGS.transfer_interval_s
        (change,) = controller.step(state(alive(A, B, C), one, full={A}), at)
        assert (change.record.leader, change.record.epoch) == (B, 6)
        assert change.reason == "rebalance"
        assert controller.step(state(alive(A, B, C), change.record, full={A}), 2 * at) == []
        (back,) = controller.step(state(alive(A, B, C), change.record), 3 * at)
        assert back.record.leader == A

    def test_where_nobody_has_space_the_lead_stays(self) -> None:
        controller = Controller(SETTINGS, 0.0)
        full = {A, B, C}
        at = SETTINGS.transfer_interval_s
        assert controller.step(state(alive(A, B, C), record(), full=full), at) == []

    def test_one_without_space_is_elected_only_if_nobody_else_can(self) -> None:
        led_by_c = record(leader=C, session=SessionId(ord("c")))
        for living, leader in ((alive(A, B), B), (alive(A), A)):
            (change,) = Controller(SETTINGS, 0.0).step(state(living, led_by_c, full={A}), 0.0)
            assert change.record.leader == leader


class TestMoving:
    def moving(self, one: PartitionRecord, living: dict[NodeId, SessionId]) -> PartitionRecord:
        change = step(living, one)
        assert change is not None
        return change.record

    def test_a_node_that_is_drained_gives_its_replicas_to_another(self) -> None:
        living = alive(A, B, C, D)
        changes = Controller(SETTINGS, 0.0).step(
            state(living, record(), draining=frozenset({A})), 0.0
        )
        (change,) = changes
        assert set(change.record.target) == {B, C, D}
        assert set(change.record.replicas) == {A, B, C, D}
        assert (change.record.leader, change.record.epoch) == (A, 5)

    def test_a_move_ends_when_all_of_its_target_is_in_sync(self) -> None:
        one = record(replicas=(A, B, C, D), target=(B, C, D), in_sync=(A, B, C))
        living = alive(A, B, C, D)
        assert step(living, one) is None
        after = self.moving(msgspec.structs.replace(one, in_sync=(A, B, C, D)), living)
        assert (after.replicas, after.in_sync, after.target) == ((B, C, D), (B, C, D), ())
        assert (after.leader, after.epoch) == (B, 6)

    def test_a_leader_that_stays_keeps_its_epoch(self) -> None:
        one = record(replicas=(A, B, C, D), target=(A, B, D), in_sync=(A, B, C, D))
        after = self.moving(one, alive(A, B, C, D))
        assert (after.leader, after.epoch, after.replicas) == (A, 5, (A, B, D))

    def test_a_node_that_is_away_for_a_while_keeps_its_replicas(self) -> None:
        controller = Controller(SETTINGS, 0.0)
        controller.step(state(alive(A, B, C, D), record()), 0.0)
        without_c = record(in_sync=(A, B))
        assert controller.step(state(alive(A, B, D), without_c), 59.0) == []
        (change,) = controller.step(state(alive(A, B, D), without_c), 61.0)
        assert set(change.record.target) == {A, B, D}

    def test_a_new_controller_waits_for_those_it_has_not_seen(self) -> None:
        controller = Controller(SETTINGS, 0.0)
        without_c = record(in_sync=(A, B))
        assert controller.step(state(alive(A, B, D), without_c), 1.0) == []
        (change,) = controller.step(state(alive(A, B, D), without_c), 61.0)
        assert set(change.record.target) == {A, B, D}

    def test_without_another_node_a_drained_one_keeps_what_it_has(self) -> None:
        draining = frozenset({A})
        changes = Controller(SETTINGS, 0.0).step(
            state(alive(A, B, C), record(), draining=draining), 0.0
        )
        assert changes == []

    def test_few_partitions_move_at_a_time(self) -> None:
        living = alive(A, B, C, D)
        one = record(target=(A, B, D), replicas=(A, B, C, D))
        draining = frozenset({C})
        changes = Controller(SETTINGS, 0.0).step(
            state(living, one, *[record()] * 5, draining=draining), 0.0
        )
        assert len(changes) == 1, "two at a time, and one is under way"

    def test_more_replicas_are_added_where_there_is_room(self) -> None:
        change = step(alive(A, B, C, D), record(replicas=(A, B), in_sync=(A, B), wanted=3))
        assert change is not None
        assert len(change.record.target) == len(change.record.replicas) == 3
        assert change.record.in_sync == (A, B)

    def test_fewer_replicas_are_left_once_those_are_in_sync(self) -> None:
        living = alive(A, B, C)
        change = step(living, record(wanted=2))
        assert change is not None
        assert len(change.record.target) == 2
        after = step(living, change.record)
        assert after is not None
        assert set(after.record.replicas) == set(change.record.target) == set(after.record.in_sync)

    def test_where_there_are_too_few_nodes_nothing_is_taken_away(self) -> None:
        controller = Controller(SETTINGS, 0.0)
        living = state(alive(A, B, C), record(wanted=5))
        assert controller.step(living, 0.0) == []

    def test_an_operators_move_is_pinned_and_left_alone(self) -> None:
        moved = pinned_to(record(), (D, B))
        assert (moved.target, moved.replicas) == ((D, B), (A, B, C, D))
        assert (moved.pinned, moved.wanted) == (True, 2)
        living = alive(A, B, C, D)
        there = self.moving(msgspec.structs.replace(moved, in_sync=(A, B, C, D)), living)
        assert (there.replicas, there.leader) == ((D, B), D)
        others = [record(replicas=(D, B), leader=D, in_sync=(D, B), session=SessionId(ord("d")))]
        controller = Controller(SETTINGS, 0.0)
        changes = controller.step(state(living, there, *others * 3), 0.0)
        assert changes, "the others are evened out"
        assert PartitionId("t/0") not in [change.partition for change in changes]

    def test_what_is_pinned_moves_when_its_node_is_drained(self) -> None:
        living = alive(A, B, C, D)
        controller = Controller(SETTINGS, 0.0)
        (change,) = controller.step(state(living, record(pinned=True), draining={B}), 0.0)
        assert set(change.record.target) == {A, C, D}

    def test_a_move_to_a_node_that_is_gone_for_good_is_planned_anew(self) -> None:
        controller = Controller(SETTINGS, 0.0)
        one = record(replicas=(A, B, C, D), target=(A, B, D), in_sync=(A, B, C))
        controller.step(state(alive(A, B, C, D), one), 0.0)
        assert controller.step(state(alive(A, B, C), one), 59.0) == []
        (change,) = controller.step(state(alive(A, B, C), one), 61.0)
        assert set(change.record.target) == {A, B, C}

    @pytest.mark.parametrize("target", [(), (A, A), (A,)])
    def test_a_move_that_makes_no_sense_is_refused(self, target: tuple[NodeId, ...]) -> None:
        with pytest.raises(InvalidRequest):
            pinned_to(record(), target)

    @pytest.mark.parametrize(("wanted", "min_in_sync"), [(0, 0), (2, 3), (3, 0)])
    def test_a_size_that_makes_no_sense_is_refused(self, wanted: int, min_in_sync: int) -> None:
        with pytest.raises(InvalidRequest):
            resized(record(), wanted, min_in_sync)

    def test_leads_are_spread_over_the_replicas(self) -> None:
        changes = Controller(SETTINGS, 0.0).step(state(alive(A, B, C), *[record()] * 3), 0.0)
        assert changes
        assert {change.record.replicas[0] for change in changes} <= {B, C}
        assert all(change.record.leader == A for change in changes), "transfers come later"

    def test_nothing_is_looked_at_again_while_nothing_changes(self) -> None:
        controller = Controller(SETTINGS, 0.0)
        partitions = _Counted({P: VersionedPartition(record(), 10)})
        calm = msgspec.structs.replace(state(alive(A, B, C)), partitions=partitions)
        assert controller.step(calm, 5.0) == []
        looked = partitions.looked
        assert controller.step(calm, 6.0) == []
        assert partitions.looked == looked
        other = msgspec.structs.replace(calm, nodes=state(alive(B, C)).nodes)
        (change,) = controller.step(other, 7.0)
        assert change.reason == "election"

    def test_a_drained_node_is_one_that_nobody_counts_on(self) -> None:
        living = alive(A, B, C, D)
        assert is_drained(state(living, record()), D)
        assert not is_drained(state(living, record()), C)
        assert not is_drained(state(living, moving(record(), (A, B, D))), D)


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    made = new_partition((A, B, C), alive(B, C), min_in_sync=2)
    assert made is not None
    assert (made.leader, made.epoch, made.in_sync, made.replicas) == (B, 1, (B, C), (A, B, C))
    assert new_partition((A,), alive(B)) is None
