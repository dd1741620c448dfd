"""A cluster in which nothing fails: stopping a node, draining one, losing one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from quiver.cluster.control.operations import deletion
from quiver.cluster.metadata.store import Delete, Put
from quiver.cluster.records import (
    CONTROLLER,
    DRAINING,
    NOBODY,
    ControllerRecord,
    DeletedRecord,
    DrainingRecord,
    PartitionId,
    PartitionRecord,
    VersionedPartition,
    decode,
    deleted_key,
    partition_key,
)
from quiver.testing.simulator.checker import check
from quiver.testing.simulator.loop import VirtualLoop
from quiver.testing.simulator.node import FOLDER, STATE, SimulatedNode
from quiver.testing.simulator.simulation import SETTINGS, SimulationSettings, _Simulation

T0 = PartitionId("t/0")


class Cluster(_Simulation):
    """Runs a story between the start of the clients and the end."""

    story: Callable[[Cluster], Awaitable[None]]

    async def run(self) -> None:
        sweeper = self._loop.create_task(self._sweep())
        for node in self._nodes:
            node.start()
        await self._create_partitions()
        producers = self._start_clients()
        await asyncio.sleep(2)
        await self.story(self)
        for producer in producers:
            producer.stopping = True
        await self._settle()
        await self._collect()
        sweeper.cancel()

    async def leader(self, partition: PartitionId = T0) -> SimulatedNode:
        leader = (await self.record(partition)).leader
        return next(node for node in self._nodes if node.name == leader)

    async def record(self, partition: PartitionId = T0) -> PartitionRecord:
        return await self._record(partition)

    def longest_wait(self, partition: PartitionId = T0) -> float:
        """The longest that a publish had to wait for its confirmation."""
        return max(
            send.ended - send.invoked
            for send in self.history.sends
            if send.partition == partition and send.outcome == "done"
        )


def played(
    nodes: int, story: Callable[[Cluster], Awaitable[None]], *, logs: int | None = None
) -> Cluster:
    loop = VirtualLoop()
    try:
        with structlog.testing.capture_logs():
            # A seed with as many nodes as asked for: some seeds add one or two.
            cluster = next(
                made
                for seed in range(100)
                if len((made := Cluster(seed, SimulationSettings(nodes=3), loop))._nodes) == nodes
                and logs in (None, len(made._logs))
            )
            cluster.story = story
            loop.run(cluster.run())
    finally:
        loop.close()
    assert check(cluster.history) + loop.errors == []
    return cluster


def test_a_node_that_stops_hands_over_and_publishing_hardly_waits() -> None:
    async def story(cluster: Cluster) -> None:
        before = await cluster.record()
        node = await cluster.leader()
        assert node.cluster is not None
        cluster._loop.start(node.process, node.cluster.stop())
        await asyncio.sleep(0.1)
        after = await cluster.record()
        assert after.leader != before.leader
        assert after.epoch == before.epoch + 1
        await asyncio.sleep(3)
        node.kill()
        node.start()

    assert played(3, story).longest_wait() < 0.5


def test_a_node_that_is_killed_is_replaced_at_once() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.leader()
        node.kill()
        await asyncio.sleep(0.5)
        for partition in cluster._partitions:
            record = await cluster.record(partition)
            assert record.leader != node.name
            assert node.name not in record.in_sync, "nobody waits for it"
        await asyncio.sleep(4)
        node.start()

    cluster = played(3, story)
    assert max(cluster.longest_wait(partition) for partition in cluster._partitions) < 1


def test_a_controller_that_is_killed_is_replaced_at_once() -> None:
    async def story(cluster: Cluster) -> None:
        entry = await cluster._store.get(CONTROLLER)
        assert entry is not None
        before = decode(entry.value, ControllerRecord)
        node = next(node for node in cluster._nodes if node.name == before.node)
        node.kill()
        await asyncio.sleep(0.5)
        entry = await cluster._store.get(CONTROLLER)
        assert entry is not None
        assert decode(entry.value, ControllerRecord).node != before.node
        node.start()

    played(3, story)


def test_a_node_that_is_cut_off_is_replaced_within_its_lease() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.leader()
        cluster._loop.pause(node.process)
        await asyncio.sleep(4.5)
        assert (await cluster.record()).leader != node.name
        cluster._loop.resume(node.process)

    assert played(3, story).longest_wait() < 6


def test_one_that_lives_and_refuses_connections_is_replaced_and_comes_back() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.leader()
        cluster._network.refuse(node.name)
        node.kill()
        node.start()
        await asyncio.sleep(2)
        assert (await cluster.record()).leader != node.name
        cluster._network.accept(node.name)

    played(3, story)


def test_a_node_that_is_drained_holds_nothing_in_the_end() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.leader()
        await cluster._store.commit([], [Put(DRAINING + node.name, b"")])
        for _ in range(100):
            await asyncio.sleep(0.1)
            records = [await cluster.record(partition) for partition in cluster._partitions]
            if all(node.name not in record.replicas for record in records):
                break
        assert [record for record in records if node.name in record.replicas] == []
        assert all(len(record.replicas) == 3 for record in records)
        await asyncio.sleep(1)
        assert node.cluster is not None
        assert node.cluster.replica_manager.replicas == []
        entry = await cluster._store.get(DRAINING + node.name)
        assert entry is not None
        assert decode(entry.value, DrainingRecord).done, "it is told as finished"

    assert played(4, story).longest_wait() < 1


def test_a_deleted_partition_is_dropped_by_all_who_hold_it_even_later() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.leader()
        late = next(node for node in cluster._nodes if node is not leader)
        late.kill()
        await asyncio.sleep(0.5)
        entry = await cluster._store.get(partition_key(T0))
        assert entry is not None
        versioned = VersionedPartition(decode(entry.value, PartitionRecord), entry.revision)
        expects, changes = deletion(T0, versioned)
        await cluster._store.commit(expects, changes)
        await asyncio.sleep(2)
        tombstone = await cluster._store.get(deleted_key(T0))
        assert tombstone is not None
        assert decode(tombstone.value, DeletedRecord).holders == (late.name,)
        late.start()
        await asyncio.sleep(2)
        assert await cluster._store.get(deleted_key(T0)) is None
        for node in cluster._nodes:
            assert not node.disk.exists(f"{FOLDER}/partitions/{T0}")
            assert node.cluster is not None
            assert node.cluster.replica_manager.replica(T0) is None
        cluster._partitions.remove(T0)
        for send in cluster.history.sends:
            if send.partition == T0 and send.outcome == "unknown":
                send.outcome = "failed"

    played(3, story)


def test_a_partition_that_nobody_knows_of_any_more_is_kept() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster._store.commit([], [Delete(partition_key(T0))])
        await asyncio.sleep(2)
        assert all(node.disk.exists(f"{FOLDER}/partitions/{T0}") for node in cluster._nodes)
        cluster._partitions.remove(T0)

    played(3, story)


def test_one_that_was_away_for_long_begins_anew_only_in_the_log_that_went_on_without_it() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.leader()
        away = next(node for node in cluster._nodes if node is not leader)
        away.kill()
        leader = await cluster.leader()
        assert leader.cluster is not None
        led = leader.cluster.replica_manager.replica(T0)
        assert led is not None
        ended = led.logs[STATE].log.next_offset
        for _ in range(300):
            await asyncio.sleep(0.1)
            if led.logs[STATE].log.start_offset > ended:
                break
        assert led.logs[STATE].log.start_offset > ended
        away.start()
        await asyncio.sleep(5)
        assert away.cluster is not None
        replica = away.cluster.replica_manager.replica(T0)
        assert replica is not None
        assert replica.logs[0].log.start_offset == 0
        assert replica.logs[STATE].log.start_offset > ended
        assert away.name in (await cluster.record()).in_sync

    played(3, story, logs=2)


def test_followers_drop_what_their_leader_has_dropped() -> None:
    async def story(cluster: Cluster) -> None:
        starts = [0]
        for _ in range(300):
            await asyncio.sleep(0.1)
            starts = [
                replica.logs[STATE].log.start_offset
                for node in cluster._nodes
                if node.cluster is not None
                and (replica := node.cluster.replica_manager.replica(T0)) is not None
            ]
            if min(starts) > 0:
                break
        assert min(starts) > 0, starts

    played(3, story, logs=2)


def test_a_lost_disk_is_rebuilt_from_a_peer() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.leader()
        node.lose_disk()
        await asyncio.sleep(5)
        node.start()
        await asyncio.sleep(5)
        assert node.name in (await cluster.record()).in_sync

    played(3, story)


def test_the_last_in_sync_loses_its_disk_and_one_that_left_before_leads() -> None:
    """One node is killed, another has no lease for a moment, and the third loses its disk."""

    async def story(cluster: Cluster) -> None:
        last = await cluster.leader()
        killed, paused = (node for node in cluster._nodes if node is not last)
        killed.kill()
        cluster._loop.pause(paused.process)
        await asyncio.sleep(5)
        alone = await cluster.record()
        # The other may have committed something without the one that was killed.
        assert (alone.in_sync, alone.eligible) == ((last.name,), (paused.name,))
        last.lose_disk()
        cluster._loop.resume(paused.process)
        last.start()
        await asyncio.sleep(5)
        record = await cluster.record()
        assert (record.leader, record.session != NOBODY) == (paused.name, True)
        killed.start()

    cluster = played(3, story)
    assert any(send.outcome == "done" for send in cluster.history.sends if send.invoked < 2)


def test_a_node_that_was_eligible_and_lost_its_disk_does_not_lead() -> None:
    async def story(cluster: Cluster) -> None:
        last = await cluster.leader()
        away, empty = (node for node in cluster._nodes if node is not last)
        away.kill()
        await asyncio.sleep(5)
        empty.kill()
        await asyncio.sleep(5)
        assert (await cluster.record()).eligible == (empty.name,)
        last.kill()
        empty.lose_disk()
        empty.start()
        away.start()
        await asyncio.sleep(5)
        record = await cluster.record()
        assert (record.leader, record.eligible) == (last.name, ())
        last.start()

    played(3, story)


def test_nobody_joins_by_the_word_of_a_process_that_has_ended() -> None:
    """The leader's change of the in-sync set is long on its way, and who joins loses its disk."""

    async def story(cluster: Cluster) -> None:
        leader = await cluster.leader()
        joins, other = (node for node in cluster._nodes if node is not leader)
        for node in (joins, other):
            node.kill()
            await asyncio.sleep(5)
        assert (await cluster.record()).eligible == (other.name,)
        commit, held, let_go = leader._store.commit, asyncio.Event(), asyncio.Event()

        def is_join(change: Put) -> bool:
            if change.key != partition_key(T0):
                return False
            return joins.name in decode(change.value, PartitionRecord).in_sync

        async def delayed_join(expects: Any, changes: Any) -> int:
            if any(isinstance(change, Put) and is_join(change) for change in changes):
                held.set()
                await let_go.wait()
            return await commit(expects, changes)

        leader._store.commit = delayed_join  # type: ignore[method-assign]
        joins.start()
        await held.wait()
        joins.lose_disk()
        await asyncio.sleep(5)
        cluster._network.cut(joins.name, leader.name)
        joins.start()
        await asyncio.sleep(2)
        let_go.set()
        await asyncio.sleep(0.5)
        record = await cluster.record()
        assert (record.in_sync, record.eligible) == ((leader.name,), (other.name,))
        cluster._network.mend(joins.name, leader.name)
        other.start()

    played(3, story)


def test_without_the_metadata_store_publishing_goes_on() -> None:
    async def story(cluster: Cluster) -> None:
        cluster._outage.is_on = True
        await asyncio.sleep(20)
        cluster._outage.is_on = False
        cluster._store.renew_all()

    assert played(3, story).longest_wait() < 1


def test_many_idle_partitions_cost_little_and_all_change_hands_at_once() -> None:
    class Idle(Cluster):
        async def run(self) -> None:
            sweeper = self._loop.create_task(self._sweep())
            for node in self._nodes:
                node.start()
            await self._create_partitions()
            await asyncio.sleep(15)  # the waits grow
            calls, call = 0, self._network.call

            async def counted(*args: Any) -> Any:
                nonlocal calls
                calls += 1
                return await call(*args)

            self._network.call = counted  # type: ignore[method-assign]
            await asyncio.sleep(40)
            # Logs wait for three quarters of it at least, so that they do not ask together.
            idle_wait_s = 0.75 * SETTINGS.replica_manager.replica.idle_wait_s
            followers = len(self._partitions) * 2 * len(self._logs)
            assert calls <= followers * (40 / idle_wait_s + 1)
            lost = await self.leader()
            lost.kill()
            await asyncio.sleep(0.5)
            led = {(await self.record(partition)).leader for partition in self._partitions}
            assert len(led) == 2
            assert lost.name not in led
            sweeper.cancel()

    loop = VirtualLoop()
    try:
        with structlog.testing.capture_logs():
            settings = SimulationSettings(nodes=3, partitions=30)
            made = (Idle(seed, settings, loop) for seed in range(100))
            loop.run(next(one for one in made if len(one._nodes) == 3).run())
    finally:
        loop.close()
