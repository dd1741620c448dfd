"""What an operator has done to a cluster: records that change by compare-and-swap, and refusals."""

from __future__ import annotations

import pytest

from quiver.cluster.control.admin import ClusterAdministration, described
from quiver.cluster.metadata.store import Delete, Put
from quiver.cluster.records import (
    CONTROLLER,
    DRAINING,
    ControllerRecord,
    DrainingRecord,
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    SessionId,
    decode,
    encode,
    node_key,
    partition_key,
)
from quiver.cluster.view import ClusterView
from quiver.errors import (
    InvalidRequest,
    NodeNotFound,
    PartitionNotFound,
    PartitionUnavailable,
    TopicNotFound,
)
from quiver.model.ids import LeaderEpoch
from quiver.testing.clock import ManualClock
from quiver.testing.memory_store import MemoryStore
from tests.aio import async_test

A, B, C, D = (NodeId(name) for name in "abcd")
P = PartitionId("orders@3/0")
SESSIONS = {A: SessionId(11), B: SessionId(12), C: SessionId(13), D: SessionId(14)}


class Cluster:
    """Three replicas of one partition, led by a, and a fourth node that holds nothing."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.store = MemoryStore(clock)
        self.view = ClusterView(self.store, clock)
        self.admin = ClusterAdministration(self.store, self.view)

    async def fill(self, **changes: object) -> None:
        record = PartitionRecord(
            **{
                "replicas": (A, B, C),
                "leader": A,
                "session": SESSIONS[A],
                "epoch": LeaderEpoch(4),
                "in_sync": (A, B, C),
                "min_in_sync": 2,
                **changes,
            }
        )
        await self.put(P, record)
        for node, session in SESSIONS.items():
            await self.store.commit(
                [], [Put(node_key(node), encode(NodeRecord(id=node, session=session)))]
            )
        await self.view.load()

    async def put(self, partition: PartitionId, record: PartitionRecord) -> None:
        await self.store.commit([], [Put(partition_key(partition), encode(record))])

    async def record(self) -> PartitionRecord:
        entry = await self.store.get(partition_key(P))
        assert entry is not None
        return decode(entry.value, PartitionRecord)


async def filled(**changes: object) -> Cluster:
    cluster = Cluster()
    await cluster.fill(**changes)
    return cluster


class TestMoving:
    @async_test
    async def test_a_partition_is_held_by_old_and_new_until_it_has_moved(self) -> None:
        cluster = await filled()
        await cluster.admin.move("orders", 0, ["d", "b", "c"])
        record = await cluster.record()
        assert (record.replicas, record.target) == ((A, B, C, D), (D, B, C))
        assert (record.leader, record.epoch, record.in_sync) == (A, 4, (A, B, C))

    @async_test
    async def test_the_same_nodes_in_another_order_need_no_copy(self) -> None:
        cluster = await filled()
        await cluster.admin.move("orders", 0, ["b", "a", "c"])
        record = await cluster.record()
        assert (record.replicas, record.target) == ((B, A, C), ())

    @pytest.mark.parametrize(
        ("nodes", "error", "said"),
        [
            ([], InvalidRequest, "at least one node"),
            (["a"], InvalidRequest, "fewer than the 2 replicas that must be in sync"),
            (["a", "a"], InvalidRequest, "a node is named twice"),
            (["a", "x"], NodeNotFound, "'x'"),
            (["a", "d"], InvalidRequest, "being decommissioned"),
        ],
    )
    @async_test
    async def test_nodes_that_cannot_hold_it_are_refused(
        self, nodes: list[str], error: type[Exception], said: str
    ) -> None:
        cluster = await filled()
        await cluster.store.commit([], [Put(DRAINING + "d", encode(DrainingRecord()))])
        await cluster.view.load()
        with pytest.raises(error, match=said):
            await cluster.admin.move("orders", 0, nodes)
        assert (await cluster.record()).target == ()

    @async_test
    async def test_a_forwarder_holds_nothing(self) -> None:
        cluster = await filled()
        forwarder = NodeRecord(id=D, session=SESSIONS[D], role="forwarder")
        await cluster.store.commit([], [Put(node_key(D), encode(forwarder))])
        await cluster.view.load()
        with pytest.raises(InvalidRequest, match="forwarder"):
            await cluster.admin.move("orders", 0, ["a", "d"])

    @async_test
    async def test_what_is_not_there_cannot_be_moved(self) -> None:
        cluster = await filled()
        with pytest.raises(TopicNotFound):
            await cluster.admin.move("emails", 0, ["a", "b"])
        with pytest.raises(PartitionNotFound):
            await cluster.admin.move("orders", 1, ["a", "b"])

    @async_test
    async def test_of_two_topics_of_one_name_the_later_is_meant(self) -> None:
        cluster = await filled()
        later = PartitionId("orders@12/0")
        await cluster.put(later, PartitionRecord(replicas=(A,), leader=A, in_sync=(A,)))
        await cluster.view.load()
        await cluster.admin.move("orders", 0, ["d"])
        assert (await cluster.record()).target == ()
        entry = await cluster.store.get(partition_key(later))
        assert entry is not None
        assert decode(entry.value, PartitionRecord).target == (D,)

    @async_test
    async def test_a_change_that_came_between_is_not_overwritten(self) -> None:
        """The view has not seen it: the record is read anew, and what it says is kept."""
        cluster = await filled()
        shrunk = PartitionRecord(
            replicas=(A, B, C), leader=B, session=SESSIONS[B], epoch=LeaderEpoch(5), in_sync=(B,)
        )
        await cluster.put(P, shrunk)
        await cluster.admin.move("orders", 0, ["d", "b"])
        record = await cluster.record()
        assert (record.leader, record.epoch, record.in_sync) == (B, 5, (B,))
        assert record.target == (D, B)


class TestTransferring:
    @async_test
    async def test_the_named_node_leads_under_a_new_epoch_and_stays_the_preferred_one(self) -> None:
        cluster = await filled()
        await cluster.admin.transfer("orders", 0, "c")
        record = await cluster.record()
        assert (record.leader, record.session, record.epoch) == (C, SESSIONS[C], 5)
        assert record.replicas == (C, A, B)

    @async_test
    async def test_without_a_name_the_best_of_the_others_leads(self) -> None:
        cluster = await filled()
        await cluster.admin.transfer("orders", 0, None)
        assert (await cluster.record()).leader == B

    @async_test
    async def test_a_node_that_leads_already_goes_on_in_its_epoch(self) -> None:
        cluster = await filled()
        await cluster.admin.transfer("orders", 0, "a")
        assert (await cluster.record()).epoch == 4

    @async_test
    async def test_only_those_in_sync_may_lead(self) -> None:
        cluster = await filled(in_sync=(A, B), allow_data_loss=True)
        with pytest.raises(InvalidRequest, match="in sync are a, b"):
            await cluster.admin.transfer("orders", 0, "c")
        assert (await cluster.record()).epoch == 4

    @async_test
    async def test_the_last_in_sync_keeps_the_lead_even_where_loss_is_allowed(self) -> None:
        cluster = await filled(in_sync=(A,), allow_data_loss=True)
        with pytest.raises(PartitionUnavailable):
            await cluster.admin.transfer("orders", 0, None)
        assert (await cluster.record()).leader == A


class TestDecommissioning:
    @async_test
    async def test_a_node_is_marked_and_unmarked(self) -> None:
        cluster = await filled()
        await cluster.admin.decommission("a", cancel=False)
        assert set((await cluster.view.load()).draining) == {A}
        await cluster.admin.decommission("a", cancel=True)
        assert set((await cluster.view.load()).draining) == set()

    @async_test
    async def test_nobody_is_emptied_without_room_for_what_it_holds(self) -> None:
        cluster = await filled()
        await cluster.admin.decommission("d", cancel=False)
        await cluster.view.load()
        with pytest.raises(InvalidRequest, match="3 replicas and without a there are only 2 nodes"):
            await cluster.admin.decommission("a", cancel=False)

    @async_test
    async def test_a_node_that_nobody_knows_is_refused(self) -> None:
        with pytest.raises(NodeNotFound):
            await (await filled()).admin.decommission("x", cancel=False)


class TestDescribing:
    @async_test
    async def test_nodes_and_partitions_are_told(self) -> None:
        cluster = await filled(in_sync=(A, B))
        controller_key = ControllerRecord(B, SESSIONS[B])
        await cluster.store.commit(
            [],
            [
                Put(CONTROLLER, encode(controller_key)),
                Put(DRAINING + "d", encode(DrainingRecord())),
            ],
        )
        told = described(await cluster.view.load())
        assert told.controller == "b"
        assert {one.id: (one.leads, one.holds, one.draining) for one in told.nodes} == {
            "a": (1, 1, False),
            "b": (0, 1, False),
            "c": (0, 1, False),
            "d": (0, 0, True),
        }
        (partition,) = told.partitions
        assert (partition.topic, partition.index) == ("orders", 0)
        assert (partition.leader, partition.epoch) == ("a", 4)
        assert (partition.replicas, partition.in_sync) == (["a", "b", "c"], ["a", "b"])

    @async_test
    async def test_a_node_that_is_gone_is_told_as_long_as_it_holds_something(self) -> None:
        cluster = await filled(replicas=(A, B, NodeId("gone")), in_sync=(A,))
        told = {one.id: one.alive for one in described(cluster.view.state).nodes}
        assert told == {"a": True, "b": True, "c": True, "d": True, "gone": False}

    @async_test
    async def test_a_node_that_was_emptied_is_told_until_it_is_gone(self) -> None:
        cluster = await filled()
        await cluster.admin.decommission("d", cancel=False)
        assert D in {one.id for one in described(await cluster.view.load()).nodes}
        await cluster.store.commit([], [Delete(node_key(D))])
        assert {one.id for one in described(await cluster.view.load()).nodes} == {A, B, C}
        await cluster.admin.decommission("d", cancel=False)  # again, by a program: nothing is wrong

    @async_test
    async def test_a_partition_whose_leader_died_has_none(self) -> None:
        cluster = await filled(session=SessionId(99))
        (partition,) = described(cluster.view.state).partitions
        assert partition.leader is None

    @async_test
    async def test_a_partition_tells_who_is_eligible(self) -> None:
        cluster = await filled(in_sync=(A,), eligible=(B, C))
        (partition,) = described(cluster.view.state).partitions
        assert (partition.in_sync, partition.eligible) == (["a"], ["b", "c"])
