"""Three real nodes and three real etcd members, with everything going wrong that can be arranged.

``make test`` makes each fault of a short list once; ``make chaos`` sets ``QUIVER_CHAOS_ROUNDS`` and
makes all of them, so often, in another order each time. A failure names the seed and the faults;
``QUIVER_CHAOS_SEED`` begins with it. After a failure the next test gets a new cluster.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Generator, Iterator

import pytest

from tests.chaos.accounting import findings
from tests.chaos.cluster import Cluster, running
from tests.chaos.faults import FAULTS, LEASE_S, SHORT, stage
from tests.chaos.replicas import copies

ROUNDS = int(os.environ.get("QUIVER_CHAOS_ROUNDS", "0"))
SEED = int(
    os.environ.get("QUIVER_CHAOS_SEED", random.SystemRandom().randrange(1 << 31) if ROUNDS else 1)
)
_DISK_BYTES = 128 << 20

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Cluster]]:
    """One cluster for all tests; another after one that is not usable any more."""

    def usable() -> Generator[Cluster, None, None]:
        while True:
            folder = tmp_path_factory.mktemp("cluster")
            settings = [f"metadata.lease_s={LEASE_S}"]
            with running(folder, disk_bytes=_DISK_BYTES, settings=settings) as cluster:
                while cluster.is_usable:
                    yield cluster

    with contextlib.closing(usable()) as clusters:
        yield clusters


@pytest.fixture
def cluster(clusters: Iterator[Cluster]) -> Cluster:
    return next(clusters)


@pytest.mark.parametrize("fault", list(FAULTS) if ROUNDS else SHORT)
@pytest.mark.parametrize("round_", range(max(1, ROUNDS)))
def test_nothing_confirmed_is_lost(cluster: Cluster, fault: str, round_: int) -> None:
    seed = SEED + round_
    with stage(cluster, seed) as on_stage:
        on_stage.make(fault)
        on_stage.workload.goes_on()
        assert findings(on_stage.finish()) == []


def test_replicas_are_the_same_after_many_faults_in_a_row(cluster: Cluster) -> None:
    rng = random.Random(SEED)
    with stage(cluster, SEED) as on_stage:
        for name in rng.sample(sorted(FAULTS), len(FAULTS) if ROUNDS else 1):
            on_stage.make(name)
        on_stage.workload.goes_on()
        seen = on_stage.finish()
        on_stage.heal()
        for node in cluster.nodes.values():
            node.stop()
        for partition, held in copies(cluster.nodes.values(), on_stage.workload.topic).items():
            assert len(held) == len(cluster.nodes)
            seen.history.copies[partition] = held
        assert findings(seen) == []
        on_stage.heal()
