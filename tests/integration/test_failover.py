"""Nodes of a cluster end, in every way a process can: others go on, and every message is accounted for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.accounting import findings
from tests.chaos.workload import Seen, Workload, prepare
from tests.integration.three_nodes import NAMES, ThreeNodes, three_nodes

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    with three_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture
def topic(cluster: ThreeNodes, request: pytest.FixtureRequest) -> str:
    """A topic and a subscription for this test."""
    name = request.node.name
    prepare(cluster.url, topic=name)
    return name


def failed(seen: Seen) -> list[str]:
    return [send.value for send in seen.history.sends if send.outcome != "done"]


def test_a_leader_that_is_killed_loses_nothing(cluster: ThreeNodes, topic: str) -> None:
    with Workload(cluster.url, topic=topic) as workload:
        leader = cluster.leader(topic)
        cluster.kill(leader)
        workload.goes_on()
        cluster.start(leader)
        cluster.wait_whole()
        workload.goes_on()
        assert findings(workload.finish()) == []


def test_a_leader_that_is_stopped_fails_no_publish(cluster: ThreeNodes, topic: str) -> None:
    with Workload(cluster.url, topic=topic) as workload:
        leader = cluster.leader(topic)
        assert cluster.stop(leader) == 0
        workload.goes_on()
        seen = workload.finish()
        cluster.start(leader)
        cluster.wait_whole()
    assert (findings(seen), failed(seen)) == ([], [])


def test_a_rolling_restart_fails_no_publish(cluster: ThreeNodes, topic: str) -> None:
    with Workload(cluster.url, topic=topic) as workload:
        for name in NAMES:
            assert cluster.stop(name) == 0
            cluster.start(name)
            cluster.wait_whole()
            workload.goes_on()
        seen = workload.finish()
    assert (findings(seen), failed(seen)) == ([], [])
