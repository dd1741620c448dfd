"""Everything that goes wrong in a cluster of real processes, one function for each.

A fault breaks something while a workload runs and, where the cluster can go on without it, waits
until it does. Healing is the stage's, and the same after every fault.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import quiver
from quiver.errors import QuiverError
from quiver.protocol import ClusterInfo, PartitionPlacement
from tests.chaos.cluster import Cluster
from tests.chaos.machine import Machine
from tests.chaos.workload import Seen, Workload, prepare
from tests.serving import eventually

LEASE_S = 3
_topics = itertools.count(1)


class Stage:
    """A cluster in which all is well, and a workload on a topic of its own."""

    def __init__(self, cluster: Cluster, workload: Workload, rng: random.Random) -> None:
        self.cluster = cluster
        self.workload = workload
        self.rng = rng
        self.faults: list[str] = []
        """Those that were made, the newest last."""

    def make(self, fault: str) -> None:
        """One of ``FAULTS``; afterwards everything is healed."""
        self.faults.append(fault)
        FAULTS[fault](self)
        self.heal()

    def leader(self) -> Machine:
        """The node that leads the topic's first partition, once somebody does."""
        found: list[str] = []

        def is_led() -> bool:
            found[:] = [
                one.leader
                for one in _placements(self.cluster, self.workload.topic)
                if one.index == 0 and one.leader is not None
            ]
            return bool(found)

        eventually(is_led, "somebody leads")
        return self.cluster.nodes[found[0]]

    def followers(self) -> list[Machine]:
        leader = self.leader()
        return [node for node in self.cluster.nodes.values() if node is not leader]

    def in_sync(self, node: str) -> bool:
        """Whether the node has all of each partition that it holds."""
        placed = _placements(self.cluster, self.workload.topic)
        return all(node in one.in_sync for one in placed if node in one.replicas)

    def settle(self) -> None:
        """Wait until those lead who should: no leader is about to change."""

        def is_settled() -> bool:
            placed = _placements(self.cluster, self.workload.topic)
            return bool(placed) and all(one.leader == one.replicas[0] for one in placed)

        eventually(is_settled, "each partition is led by its first replica")

    def heal(self) -> None:
        """Whatever was broken works again, and every replica has caught up."""
        heal(self.cluster)

    def finish(self) -> Seen:
        return self.workload.finish()


@contextmanager
def stage(cluster: Cluster, seed: int) -> Iterator[Stage]:
    """What fails on it names the seed and the faults, and nobody uses the cluster after that."""
    faults: list[str] = []
    try:
        heal(cluster)
        topic = f"orders-{next(_topics)}"
        prepare(cluster.url, topic=topic)
        with Workload(cluster.url, topic=topic) as workload:
            on_stage = Stage(cluster, workload, random.Random(seed))
            faults = on_stage.faults
            yield on_stage
    except BaseException as error:
        cluster.is_usable = False
        error.add_note(f"QUIVER_CHAOS_SEED={seed}, faults: {', '.join(faults) or 'none yet'}")
        raise


def heal(cluster: Cluster) -> None:
    """All of it, also of earlier topics: a replica that is alone in sync must not be lost next."""
    cluster.network.heal_all()
    for member in cluster.etcd.values():
        if not member.is_running:
            member.start()
    for node in cluster.nodes.values():
        node.resume()
        node.remove_ballast()
        if not node.is_running:
            node.start(wait=False)
    for node in cluster.nodes.values():
        node.wait_ready()
    try:
        eventually(lambda: not _lacking(cluster), "every replica is in sync")
    except AssertionError as error:
        error.add_note("\n".join(_lacking(cluster)[:20]))
        raise


def _lacking(cluster: Cluster) -> list[str]:
    """What keeps the cluster from being whole."""
    try:
        with quiver.Client(cluster.url, timeout="5s") as client:
            seen = client.describe_cluster()
    except QuiverError as error:
        return [str(error)]
    gone = set(cluster.nodes) - alive_in(seen)
    return [f"{node} is not alive" for node in sorted(gone)] + [
        f"{one.topic}/{one.index}: leader {one.leader}, in sync {one.in_sync}, "
        f"eligible {one.eligible}, replicas {one.replicas}"
        for one in seen.partitions
        if one.leader is None or set(one.in_sync) != set(one.replicas)
    ]


def _seen_by_others(node: Machine, cluster: Cluster) -> bool:
    """Whether the other nodes see its lease; it may not know itself that it has ended."""
    others = [one.native for one in cluster.nodes.values() if one is not node]
    url = f"quiver://{','.join(others)}"
    with contextlib.suppress(QuiverError), quiver.Client(url, timeout="5s") as client:
        return node.name in alive_in(client.describe_cluster())
    return True


def alive_in(cluster: ClusterInfo) -> set[str]:
    return {node.id for node in cluster.nodes if node.alive}


def _placements(cluster: Cluster, topic: str) -> list[PartitionPlacement]:
    with contextlib.suppress(QuiverError), quiver.Client(cluster.url, timeout="5s") as client:
        return [one for one in client.describe_cluster().partitions if one.topic == topic]
    return []


# ---------------------------------------------------------------------- processes


def leader_killed(stage: Stage) -> None:
    stage.leader().kill()
    stage.workload.goes_on()


def follower_killed(stage: Stage) -> None:
    stage.rng.choice(stage.followers()).kill()
    stage.workload.goes_on()


def leader_paused_past_its_lease(stage: Stage) -> None:
    leader = stage.leader()
    leader.pause()
    stage.workload.goes_on()
    leader.resume()
    stage.workload.goes_on()


def all_restarted_one_by_one(stage: Stage) -> None:
    for node in stage.cluster.nodes.values():
        assert node.stop() == 0
        stage.workload.goes_on()
        stage.heal()


def two_nodes_killed(stage: Stage) -> None:
    """Nothing durable can be published with one node, and nothing is lost by that."""
    for node in (stage.leader(), stage.followers()[0]):
        node.kill()
    time.sleep(1)


# ---------------------------------------------------------------------- links


def leader_isolated(stage: Stage) -> None:
    stage.cluster.network.isolate(stage.leader().name)
    stage.workload.goes_on()


def leader_cut_off_from_etcd(stage: Stage) -> None:
    """It can prove no epoch once its lease has ended; its followers reach etcd and go on."""
    leader = stage.leader()
    stage.cluster.network.isolate(leader.name, *stage.cluster.etcd)
    eventually(lambda: not _seen_by_others(leader, stage.cluster), "the leader's lease has ended")
    stage.workload.goes_on()


def leader_cut_off_from_its_followers(stage: Stage) -> None:
    followers = [node.name for node in stage.followers()]
    stage.cluster.network.isolate(stage.leader().name, *followers)
    time.sleep(1)


def follower_cut_off_one_way(stage: Stage) -> None:
    leader, follower = stage.leader(), stage.followers()[0]
    stage.cluster.network.cut(leader.name, follower.name, one_way=True)
    stage.workload.goes_on()


# ---------------------------------------------------------------------- etcd


def etcd_leader_killed(stage: Stage) -> None:
    stage.cluster.etcd[stage.cluster.etcd_leader()].stop()
    stage.workload.goes_on()


def etcd_out_of_reach_for_less_than_a_lease(stage: Stage) -> None:
    """Elections stop, publishing does not."""
    stage.settle()
    for node, member in itertools.product(stage.cluster.nodes, stage.cluster.etcd):
        stage.cluster.network.cut(node, member)
    stage.workload.goes_on(count=1, within_s=LEASE_S)


# ---------------------------------------------------------------------- disks


def leader_loses_power(stage: Stage) -> None:
    stage.leader().cut_power()
    stage.workload.goes_on()


def all_lose_power(stage: Stage) -> None:
    stage.cluster.cut_power()


def follower_has_a_full_disk(stage: Stage) -> None:
    """What it cannot store it does not confirm; the others go on without it."""
    stage.settle()
    leaders = {one.leader for one in _placements(stage.cluster, stage.workload.topic)}
    follower = next(node for name, node in stage.cluster.nodes.items() if name not in leaders)
    follower.fill_disk()
    eventually(lambda: not stage.in_sync(follower.name), "a replica without room is not in sync")
    stage.workload.goes_on()


def leader_has_a_full_disk(stage: Stage) -> None:
    """It refuses what it cannot store, and another leads."""
    stage.settle()
    leader = stage.leader()
    leader.fill_disk()
    eventually(lambda: stage.leader() is not leader, "a leader without room gives its lead away")
    stage.workload.goes_on()


def _exchange_disk(node: Machine, stage: Stage) -> None:
    """Kill a node, and let it come back with an empty disk once its lease has ended."""
    node.kill()
    node.lose_data()
    eventually(lambda: not _seen_by_others(node, stage.cluster), "the node's lease has ended")
    node.start()


def a_data_folder_is_lost(stage: Stage) -> None:
    """A node comes back with an empty disk, once the others have seen it go."""
    _exchange_disk(stage.rng.choice(list(stage.cluster.nodes.values())), stage)
    stage.workload.goes_on()


def bits_are_flipped_in_one_replica(stage: Stage) -> None:
    node = stage.rng.choice(list(stage.cluster.nodes.values()))
    node.kill()
    node.flip_bits(stage.rng, 3)
    node.start()
    stage.workload.goes_on()


def the_last_in_sync_loses_its_data(stage: Stage) -> None:
    """Two nodes are killed, and the third comes back with an empty disk: one of the two has it all.

    Unless its copy is damaged, too, and nobody has noticed yet. Nothing can be done about both.
    """
    for node in stage.cluster.nodes.values():
        if node.has_flipped_bits:
            _exchange_disk(node, stage)
    stage.heal()
    last, others = stage.leader(), stage.followers()
    for node in others:
        node.kill()
    eventually(lambda: _is_alone_everywhere(last), "all others have left the in-sync sets")
    last.kill()
    last.lose_data()
    stage.rng.choice(others).start()
    eventually(lambda: not _seen_by_others(last, stage.cluster), "the node's lease has ended")


def _is_alone_everywhere(node: Machine) -> bool:
    url = f"quiver://{node.native}"
    with contextlib.suppress(QuiverError), quiver.Client(url, timeout="5s") as client:
        placed = client.describe_cluster().partitions
        return all(one.in_sync == [node.name] and one.eligible for one in placed)
    return False


FAULTS: dict[str, Callable[[Stage], None]] = {
    fault.__name__: fault
    for fault in (
        leader_killed,
        follower_killed,
        leader_paused_past_its_lease,
        all_restarted_one_by_one,
        two_nodes_killed,
        leader_isolated,
        leader_cut_off_from_etcd,
        leader_cut_off_from_its_followers,
        follower_cut_off_one_way,
        etcd_leader_killed,
        etcd_out_of_reach_for_less_than_a_lease,
        leader_loses_power,
        all_lose_power,
        follower_has_a_full_disk,
        leader_has_a_full_disk,
        a_data_folder_is_lost,
        bits_are_flipped_in_one_replica,
        the_last_in_sync_loses_its_data,
    )
}
SHORT = (
    "leader_killed",
    "leader_paused_past_its_lease",
    "leader_isolated",
    "leader_cut_off_from_etcd",
    "etcd_leader_killed",
    "follower_has_a_full_disk",
    "a_data_folder_is_lost",
    "bits_are_flipped_in_one_replica",
)
"""Those that ``make test`` has time for; ``make chaos`` makes them all, again and again."""
