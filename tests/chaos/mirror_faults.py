"""Everything that goes wrong between two clusters of which one copies the other, one function for each.

A fault breaks something while messages are published and copied. Healing is the stage's, and the same after
every fault.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import quiver
from quiver.errors import QuiverError
from tests.chaos.cluster import Cluster, hosts_of
from tests.chaos.faults import heal
from tests.chaos.machine import Machine
from tests.chaos.network import Network
from tests.chaos.workload import Workload, prepare, subscription_of
from tests.integration.mirror.nodes import Entry, entries
from tests.serving import eventually

TOPIC, GROUP, MIRROR = "orders", "orders-group", "eu"
PARTITIONS = 2
_LEASE_S = 3


class MirrorStage:
    """Two clusters in which all is well, a mirror from one to the other, and a workload on the first."""

    def __init__(self, source: Cluster, target: Cluster, seed: int) -> None:
        self.source = source
        self.target = target
        self.seed = seed
        self.rng = random.Random(seed)
        self.faults: list[str] = []
        """Those that were made, the newest last."""
        self.workload = Workload(source.url, topic=TOPIC, partitions=PARTITIONS, group=GROUP)

    @property
    def network(self) -> Network:
        return self.source.network

    def make(self, *faults: str) -> None:
        """Some of ``FAULTS`` at once, for a moment; then everything is healed."""
        self.faults.append(" and ".join(faults))
        for fault in faults:
            FAULTS[fault](self)
        time.sleep(self.rng.uniform(0.2, 2.0))
        for cluster in (self.source, self.target):
            heal(cluster)

    def leader(self, cluster: Cluster) -> Machine:
        """The node that leads a partition of the topic, as far as somebody knows; else any."""
        index = self.rng.randrange(PARTITIONS)
        try:
            with quiver.Client(cluster.url, timeout="5s") as client:
                placed = client.describe_cluster().partitions
        except QuiverError:
            placed = []
        leaders = [one.leader for one in placed if (one.topic, one.index) == (TOPIC, index)]
        name = next((one for one in leaders if one is not None), None)
        return cluster.nodes[name or self.rng.choice(sorted(cluster.nodes))]

    def catches_up(self) -> None:
        """Wait until the copy has what its source has now, and see that it has nothing else."""
        before = [entries(self.source.url, TOPIC, index) for index in range(PARTITIONS)]
        ends = [_end(one) for one in before]

        def is_copied() -> bool:
            with quiver.Client(self.target.url, timeout="5s") as client:
                copied = client.describe_topic(TOPIC).partitions
            return all((one.next_offset or 0) >= end for one, end in zip(copied, ends, strict=True))

        eventually(_tolerant(is_copied), "the copy has caught up")
        for index, expected in enumerate(before):
            copied = entries(self.target.url, TOPIC, index)
            require_same(copied[: len(expected)], expected, f"{TOPIC}/{index}")

    def promote(self) -> None:
        """Make the copy the topic that is published to, while the workload goes on."""
        with quiver.Client(self.target.url, timeout="60s") as client:
            promoted = {one.name: one for one in client.promote_topics(TOPIC, timeout="40s")}
        assert promoted[TOPIC].is_complete, promoted[TOPIC]
        self.workload.move_to(self.target.url)


def require_same(copied: list[Entry], expected: list[Entry], what: str) -> None:
    """Both have the same entries, byte by byte but for what a leader stamps."""
    for ours, theirs in zip(copied, expected, strict=False):
        assert ours == theirs, f"{what} differs at offset {theirs[0]:,}: {ours!r}, {theirs!r}"
    assert len(copied) == len(expected), f"{what}: {len(copied):,} of {len(expected):,} entries"


def _end(stored: list[Entry]) -> int:
    return stored[-1][0] + stored[-1][1] if stored else 0


def _tolerant(condition: Callable[[], bool]) -> Callable[[], bool]:
    """Whoever does not answer yet will."""

    def is_so() -> bool:
        try:
            return condition()
        except QuiverError:
            return False

    return is_so


@contextmanager
def mirror_stage(folder: Path, seed: int) -> Iterator[MirrorStage]:
    """What fails on it names the seed and the faults."""
    network = Network([*hosts_of("eu", etcd_members=1), *hosts_of("us", etcd_members=1)])
    clusters: list[Cluster] = []
    try:
        for name in ("eu", "us"):
            settings = [f"metadata.lease_s={_LEASE_S}"]
            one = Cluster(folder, name=name, network=network, etcd_members=1, settings=settings)
            clusters.append(one)
            one.start()
        source, target = clusters
        _mirror(source, target)
        stage = MirrorStage(source, target, seed)
        with stage.workload:
            try:
                yield stage
            except BaseException as error:
                error.add_note(f"QUIVER_CHAOS_SEED={seed}, faults: {'; '.join(stage.faults)}")
                raise
    finally:
        for cluster in clusters:
            cluster.close()
        network.close()


def _mirror(source: Cluster, target: Cluster) -> None:
    prepare(source.url, topic=TOPIC, partitions=PARTITIONS)
    with quiver.Client(source.url, timeout="30s") as there:
        there.create_subscription(
            GROUP,
            [TOPIC],
            start="earliest",
            ordering="partition",
            guarantee="exactly-once",
            visibility="5s",
            max_deliveries=1000,
        )
    with quiver.Client(target.url, timeout="30s") as here:
        here.create_mirror(MIRROR, source.url, f"{TOPIC}*", with_subscriptions=True)
        wanted = {GROUP, subscription_of(TOPIC)}
        eventually(
            lambda: wanted <= {one.name for one in here.list_subscriptions()},
            "the topic and its subscriptions are copied",
        )


# ---------------------------------------------------------------------- processes


def source_leader_killed(stage: MirrorStage) -> None:
    stage.leader(stage.source).kill()


def target_leader_killed(stage: MirrorStage) -> None:
    stage.leader(stage.target).kill()


def two_source_nodes_killed(stage: MirrorStage) -> None:
    _kill_some(stage, stage.source, 2)


def two_target_nodes_killed(stage: MirrorStage) -> None:
    _kill_some(stage, stage.target, 2)


def all_source_nodes_killed(stage: MirrorStage) -> None:
    _kill_some(stage, stage.source, 3)


def all_target_nodes_killed(stage: MirrorStage) -> None:
    _kill_some(stage, stage.target, 3)


def _kill_some(stage: MirrorStage, cluster: Cluster, count: int) -> None:
    for name in stage.rng.sample(sorted(cluster.nodes), count):
        cluster.nodes[name].kill()


def source_leader_paused_past_its_lease(stage: MirrorStage) -> None:
    _pause(stage.leader(stage.source))


def target_leader_paused_past_its_lease(stage: MirrorStage) -> None:
    _pause(stage.leader(stage.target))


def _pause(node: Machine) -> None:
    if node.is_running:
        node.pause()
        time.sleep(_LEASE_S + 1)


def source_etcd_stopped(stage: MirrorStage) -> None:
    _stop_etcd(stage.source)


def target_etcd_stopped(stage: MirrorStage) -> None:
    _stop_etcd(stage.target)


def _stop_etcd(cluster: Cluster) -> None:
    for member in cluster.etcd.values():
        member.stop()


# ---------------------------------------------------------------------- links


def clusters_cut_off(stage: MirrorStage) -> None:
    for one, other in itertools.product(stage.source.nodes, stage.target.nodes):
        stage.network.cut(one, other)


def answers_are_lost(stage: MirrorStage) -> None:
    """What the source sends does not arrive; what it is asked does."""
    for one, other in itertools.product(stage.source.nodes, stage.target.nodes):
        stage.network.cut(one, other, one_way=True)


def leaders_cut_off_from_each_other(stage: MirrorStage) -> None:
    stage.network.cut(stage.leader(stage.source).name, stage.leader(stage.target).name)


def source_leader_isolated(stage: MirrorStage) -> None:
    """From its own cluster. The copy may still ask it, and must believe only what is committed."""
    _isolate(stage, stage.source)


def target_leader_isolated(stage: MirrorStage) -> None:
    """From its own cluster. It still reads the source, and must confirm nothing."""
    _isolate(stage, stage.target)


def _isolate(stage: MirrorStage, cluster: Cluster) -> None:
    leader = stage.leader(cluster).name
    own = [one for one in (*cluster.nodes, *cluster.etcd) if one != leader]
    stage.network.isolate(leader, *own)
    time.sleep(_LEASE_S + 1)


FAULTS: dict[str, Callable[[MirrorStage], None]] = {
    fault.__name__: fault
    for fault in (
        source_leader_killed,
        target_leader_killed,
        two_source_nodes_killed,
        two_target_nodes_killed,
        all_source_nodes_killed,
        all_target_nodes_killed,
        source_leader_paused_past_its_lease,
        target_leader_paused_past_its_lease,
        source_etcd_stopped,
        target_etcd_stopped,
        clusters_cut_off,
        answers_are_lost,
        leaders_cut_off_from_each_other,
        source_leader_isolated,
        target_leader_isolated,
    )
}
SHORT = (("source_leader_killed", "clusters_cut_off"), ("target_leader_killed",))
"""What ``make test`` has time for."""
