"""Eligible replicas: who has everything that was committed, and for how long that is known."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quiver.cluster.control.admin import with_leader
from quiver.cluster.control.controller import Controller, ControllerSettings
from quiver.cluster.control.operations import resized
from quiver.cluster.election import elected, is_led, resigned, withdrawn
from quiver.cluster.eligibility import is_counted_on, with_in_sync
from quiver.cluster.records import (
    NOBODY,
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    SessionId,
    VersionedPartition,
    decode,
    encode,
)
from quiver.cluster.replica.epochs import EpochHistory
from quiver.cluster.replica.leader import Leader, LeaderSettings
from quiver.cluster.replica.progress import LogProgress
from quiver.cluster.state import ClusterState
from quiver.errors import PartitionUnavailable
from quiver.model.ids import LeaderEpoch, Offset
from tests.unit.log.small_logs import effort

A, B, C, D = (NodeId(name) for name in "abcd")
NODES = (A, B, C)
P = PartitionId("t/0")


def alive(*nodes: NodeId) -> dict[NodeId, SessionId]:
    return {node: SessionId(ord(node)) for node in nodes}


def record(
    *in_sync: NodeId, eligible: tuple[NodeId, ...] = (), min_in_sync: int = 2, **fields: object
) -> PartitionRecord:
    base = PartitionRecord(
        replicas=(A, B, C),
        leader=in_sync[0],
        session=SessionId(ord(in_sync[0])),
        epoch=LeaderEpoch(5),
        in_sync=in_sync,
        eligible=eligible,
        min_in_sync=min_in_sync,
    )
    return msgspec.structs.replace(base, **fields)


def state(living: dict[NodeId, SessionId], one: PartitionRecord) -> ClusterState:
    return ClusterState(
        nodes={node: NodeRecord(id=node, session=session) for node, session in living.items()},
        partitions={P: VersionedPartition(one, 10)},
    )


class TestBecomingEligible:
    def test_who_leaves_a_set_that_is_then_too_small_to_commit_is_eligible(self) -> None:
        assert with_in_sync(record(A, B), (A,)).eligible == (B,)
        assert with_in_sync(record(A, B, C), (A,)).eligible == (B, C), "both at once"

    def test_who_leaves_a_set_that_can_still_commit_is_not_eligible(self) -> None:
        assert with_in_sync(record(A, B, C), (A, B)).eligible == ()

    def test_who_was_eligible_stays_so_while_the_set_is_too_small(self) -> None:
        before = record(A, B, eligible=(C,), min_in_sync=3)
        assert with_in_sync(before, (A,)).eligible == (B, C)

    def test_nobody_is_eligible_once_the_set_is_whole(self) -> None:
        assert with_in_sync(record(A, eligible=(B, C)), (A, B)).eligible == ()

    def test_a_set_of_one_that_may_commit_has_nobody_eligible_beside_it(self) -> None:
        assert with_in_sync(record(A, B, min_in_sync=1), (A,)).eligible == ()

    def test_the_leader_proposes_the_set_and_who_is_eligible_together(self) -> None:
        log = LogProgress(
            EpochHistory(), start=Offset(0), end=Offset(0), durable=Offset(0), watermark=Offset(0)
        )
        leader = Leader(A, VersionedPartition(record(A, B), 7), [log], 0.0, LeaderSettings())
        leader.suspect(B)
        proposal = leader.propose(0.0)
        assert proposal is not None
        assert (proposal.record.in_sync, proposal.record.eligible) == ((A,), (B,))

    def test_the_controller_keeps_a_dead_follower_eligible(self) -> None:
        (change,) = Controller(ControllerSettings(), 0.0).step(state(alive(A), record(A, B)), 0.0)
        assert (change.record.in_sync, change.record.eligible) == ((A,), (B,))


class TestElection:
    def test_an_eligible_one_leads_when_the_last_in_sync_is_lost(self) -> None:
        lost = withdrawn(record(A, eligible=(B, C)), A)
        (change,) = Controller(ControllerSettings(), 0.0).step(state(alive(A, B, C), lost), 0.0)
        after = change.record
        assert (after.leader, after.session, after.epoch) == (B, ord("b"), 6)
        assert (after.in_sync, after.eligible, after.lost) == ((B,), (C,), ())
        assert change.reason == "election", "nothing is lost"

    def test_an_eligible_one_leads_while_the_last_in_sync_is_away_which_is_then_eligible(
        self,
    ) -> None:
        after = elected(record(A, eligible=(B, C)), alive(B, C))
        assert after is not None
        assert (after.leader, after.in_sync, after.eligible) == (B, (B,), (A, C))

    def test_who_is_in_sync_comes_before_who_is_eligible(self) -> None:
        after = elected(record(C, eligible=(A, B)), alive(A, B, C))
        assert after is not None
        assert (after.leader, after.in_sync, after.eligible) == (C, (C,), (A, B))

    def test_who_is_leaving_the_cluster_leads_only_if_no_other_eligible_one_lives(self) -> None:
        before = record(A, eligible=(B, C))
        chosen = [elected(before, alive(*living), {B}) for living in ((B, C), (B,))]
        assert [one.leader for one in chosen if one is not None] == [C, B]

    def test_an_eligible_one_that_lost_its_data_too_is_not_elected(self) -> None:
        lost = withdrawn(withdrawn(record(A, eligible=(B, C)), A), B)
        assert elected(lost, alive(A, B)) is None
        after = elected(lost, alive(A, B, C))
        assert after is not None
        assert (after.leader, after.eligible) == (C, ())

    def test_an_operator_is_asked_when_nobody_intact_is_left(self) -> None:
        lost = record(A, eligible=(B,))
        for node in (A, B):
            lost = withdrawn(lost, node)
        assert elected(lost, alive(A, B, C)) is None
        accepted = elected(msgspec.structs.replace(lost, allow_data_loss=True), alive(B, C))
        assert accepted is not None
        assert accepted.leader == B

    def test_a_topic_that_accepts_loss_prefers_an_eligible_one(self) -> None:
        before = record(A, eligible=(C,), allow_data_loss=True)
        (change,) = Controller(ControllerSettings(), 0.0).step(state(alive(B, C), before), 0.0)
        assert (change.record.leader, change.reason) == (C, "election")

    def test_nobody_is_eligible_after_an_election_that_lost_data(self) -> None:
        before = record(A, eligible=(C,), allow_data_loss=True)
        (change,) = Controller(ControllerSettings(), 0.0).step(state(alive(B), before), 0.0)
        assert (change.record.leader, change.reason) == (B, "data loss")
        assert change.record.eligible == (), "they are cut to what the new leader has"


class TestResigning:
    def test_a_leader_alone_in_sync_hands_over_to_an_eligible_one_and_is_eligible_itself(
        self,
    ) -> None:
        after = resigned(record(A, eligible=(B,)), A, alive(A, B, C), in_sync_no_more=False)
        assert (after.leader, after.in_sync, after.eligible) == (B, (B,), (A,))

    def test_a_leader_whose_log_failed_is_eligible_if_too_few_are_left(self) -> None:
        after = resigned(record(A, B), A, alive(A, B, C), in_sync_no_more=True)
        assert (after.leader, after.in_sync, after.eligible) == (B, (B,), (A,))

    def test_with_no_successor_it_is_as_before(self) -> None:
        before = record(A, B)
        after = resigned(before, A, alive(A, C), in_sync_no_more=True)
        assert (after.leader, after.session) == (B, NOBODY)
        assert (after.in_sync, after.eligible) == ((B,), (A,))


class TestLosingData:
    def test_a_member_that_lost_its_data_is_not_eligible(self) -> None:
        after = withdrawn(record(A, B), B)
        assert (after.in_sync, after.eligible, after.lost) == ((A,), (), ())

    def test_the_others_stay_eligible(self) -> None:
        assert withdrawn(record(A, eligible=(B, C)), B).eligible == (C,)
        assert withdrawn(record(A, B, eligible=(C,), min_in_sync=3), A).eligible == (C,)

    def test_nobody_counts_on_who_is_lost_or_out_of_sync(self) -> None:
        lost = withdrawn(record(A, eligible=(B,)), A)
        assert [is_counted_on(lost, node) for node in (A, B, C)] == [False, True, False]


class TestSettings:
    def test_a_higher_min_in_sync_makes_nobody_eligible(self) -> None:
        assert resized(record(A, min_in_sync=1), 3, 2).eligible == ()
        assert resized(record(A, B), 3, 3).eligible == ()
        assert resized(record(A, eligible=(B,)), 3, 3).eligible == (B,), "it still has everything"

    def test_a_lower_min_in_sync_that_lets_the_set_commit_ends_eligibility(self) -> None:
        assert resized(record(A, eligible=(B, C)), 3, 1).eligible == ()

    def test_a_lower_min_in_sync_keeps_who_can_replace_one_that_is_lost(self) -> None:
        lost = resized(withdrawn(record(A, eligible=(B, C)), A), 3, 1)
        assert lost.eligible == (B, C), "one that is lost commits nothing"
        after = elected(lost, alive(A, B, C))
        assert after is not None
        assert (after.in_sync, after.eligible) == ((B,), ())

    def test_nobody_is_eligible_who_is_no_replica_any_more(self) -> None:
        moving = record(A, C, eligible=(B,), target=(A, C), min_in_sync=3)
        (change,) = Controller(ControllerSettings(), 0.0).step(state(alive(A, B, C), moving), 0.0)
        assert (change.reason, change.record.replicas, change.record.eligible) == (
            "moved",
            (A, C),
            (),
        )

    def test_an_operator_moves_the_lead_within_the_in_sync_set_only(self) -> None:
        with pytest.raises(PartitionUnavailable):
            with_leader(record(A, eligible=(B,)), state(alive(A, B), record(A)), None)


class TestRecord:
    def test_a_record_of_an_earlier_version_has_nobody_eligible(self) -> None:
        old = encode(record(A, eligible=(B,))).replace(b'"eligible":["b"],', b"")
        assert decode(old, PartitionRecord) == record(A)

    @pytest.mark.parametrize(("in_sync", "eligible"), [((A, B), (C,)), ((A,), (A,)), ((A,), (D,))])
    def test_a_record_that_contradicts_itself_is_refused(
        self, in_sync: tuple[NodeId, ...], eligible: tuple[NodeId, ...]
    ) -> None:
        with pytest.raises(AssertionError):
            record(*in_sync, eligible=eligible)


class EligibleReplicas(RuleBasedStateMachine):
    """A partition whose leaders may act on old records, and whose nodes end, start and lose disks.

    ``has`` counts how many of the committed messages each node has, from the first on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sessions = dict.fromkeys(NODES, 1)
        self.alive = set(NODES)
        self.has = dict.fromkeys(NODES, 0)
        self.knows = dict.fromkeys(NODES, 1)
        """The newest epoch that each node has heard of: it acknowledges nothing in an older one."""
        self.committed = 0
        first = PartitionRecord(
            replicas=NODES,
            leader=A,
            session=SessionId(1),
            epoch=LeaderEpoch(1),
            in_sync=NODES,
            min_in_sync=2,
        )
        self.records = [first]
        self.seen = {LeaderEpoch(1): 0}
        """Of each epoch, the newest record that its leader has seen."""

    @property
    def record(self) -> PartitionRecord:
        return self.records[-1]

    def living(self) -> dict[NodeId, SessionId]:
        return {node: SessionId(self.sessions[node]) for node in NODES if node in self.alive}

    def put(self, after: PartitionRecord | None) -> None:
        if after is not None:
            self.records.append(after)

    def leads(self, view: PartitionRecord) -> bool:
        """Whether the process that leads by this record, perhaps an old one, is at work."""
        same_process = self.living().get(view.leader) == view.session
        return same_process and self.knows[view.leader] <= view.epoch

    @rule()
    def learn(self) -> None:
        """The leader learns of the newest record, and begins to lead if it has not."""
        assume(self.leads(self.record))
        self.see()

    def see(self) -> None:
        self.knows[self.record.leader] = self.record.epoch
        self.seen[self.record.epoch] = len(self.records) - 1

    @rule(epochs_ago=st.integers(0, 2))
    def commit(self, epochs_ago: int) -> None:
        """A leader, perhaps a former one, commits by the newest record that it has seen."""
        epochs = sorted(self.seen)
        view = self.records[self.seen[epochs[-1 - min(epochs_ago, len(epochs) - 1)]]]
        assume(self.leads(view) and len(view.in_sync) >= view.min_in_sync)
        acknowledge = all(
            node in self.alive and self.knows[node] <= view.epoch for node in view.in_sync
        )
        assume(acknowledge)
        assert self.has[view.leader] == self.committed, "a leader has everything"
        self.committed += 1
        for node in view.in_sync:
            self.has[node] = self.committed

    @rule(node=st.sampled_from(NODES))
    def follow(self, node: NodeId) -> None:
        """A node fetches from the leader until it has what the leader has, and joins."""
        view = self.record
        assume(self.leads(view) and node in self.alive and node not in view.in_sync)
        self.knows[node] = view.epoch
        self.has[node] = self.has[view.leader]
        in_sync = tuple(one for one in view.replicas if one in {*view.in_sync, node})
        self.propose(view, in_sync)

    @rule(node=st.sampled_from(NODES))
    def fall_behind(self, node: NodeId) -> None:
        view = self.record
        assume(self.leads(view) and node in view.in_sync and node != view.leader)
        self.propose(view, tuple(one for one in view.in_sync if one != node))

    def propose(self, view: PartitionRecord, in_sync: tuple[NodeId, ...]) -> None:
        self.put(with_in_sync(view, in_sync))
        self.see()

    @rule(node=st.sampled_from(NODES))
    def end(self, node: NodeId) -> None:
        self.alive.discard(node)

    @rule(node=st.sampled_from(NODES))
    def start_again(self, node: NodeId) -> None:
        self.sessions[node] += 1
        self.alive.add(node)

    @rule(node=st.sampled_from(NODES))
    def start_without_data(self, node: NodeId) -> None:
        self.has[node] = 0
        if is_counted_on(self.record, node):
            self.put(withdrawn(self.record, node))
        self.start_again(node)

    @rule()
    def control(self) -> None:
        if is_led(self.record, self.living()):
            in_sync = tuple(node for node in self.record.in_sync if node in self.alive)
            self.put(with_in_sync(self.record, in_sync))
        else:
            self.put(elected(self.record, self.living()))

    @rule(node=st.sampled_from(NODES))
    def suspect_the_leader(self, node: NodeId) -> None:
        """One that is in sync takes the lead, while the leader may still be at work."""
        others = {
            one: session for one, session in self.living().items() if one != self.record.leader
        }
        successor = elected(self.record, others)
        if node in self.record.in_sync and successor is not None and successor.leader == node:
            self.put(successor)

    @rule(log_failed=st.booleans())
    def resign(self, log_failed: bool) -> None:
        assume(self.leads(self.record))
        leader = self.record.leader
        self.put(resigned(self.record, leader, self.living(), in_sync_no_more=log_failed))

    @rule(min_in_sync=st.integers(1, 3))
    def resize(self, min_in_sync: int) -> None:
        self.put(resized(self.record, 3, min_in_sync))

    @invariant()
    def who_may_lead_has_everything(self) -> None:
        for node in NODES:
            if is_counted_on(self.record, node):
                assert self.has[node] == self.committed, node


TestEligibleReplicas = EligibleReplicas.TestCase
TestEligibleReplicas.settings = settings(
    max_examples=300 * effort(), stateful_step_count=20, deadline=None
)
