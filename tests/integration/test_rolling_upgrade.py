"""A cluster of the last released version is upgraded node by node under load, and one node goes back."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import quiver
from quiver.errors import InvalidRequest
from quiver.model.topic import TopicSettings
from quiver.protocol import AnyRequest, BeginTransactions, RestoreTopic, TopicInfo
from quiver.version import __version__
from tests.integration.three_nodes import NAMES, ThreeNodes
from tests.paths import REPOSITORY
from tests.released import VERSION, released_source
from tests.serving import environment, eventually, served

pytestmark = [pytest.mark.long, pytest.mark.process]

LOAD = REPOSITORY / "tests" / "integration" / "upgrade_load.py"
PAUSE_S_MAX = 15.0
"""Of publishes, while a node is replaced, on a machine that others use too. Alone it is below 1 s."""
KEPT = 40
"""Messages of the topic that keeps little."""
STEPS = 20
"""How many more messages each program publishes before the next node is replaced."""


class Load:
    """A program of one version that publishes, consumes and reads, and what it reported."""

    def __init__(self, folder: Path, url: str, name: str, source: Path) -> None:
        self.name = name
        self._stop = folder / "stop"
        self._output = (folder / f"load-{name}").open("w+")
        self._errors = (folder / f"load-{name}.errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, str(LOAD), url, name, str(self._stop)],
            stdout=self._output,
            stderr=self._errors,
            env=environment(PYTHONPATH=str(source), PYTHONDONTWRITEBYTECODE=""),
        )

    def facts(self, *kinds: str) -> list[tuple[int, str]]:
        """When each thing of these kinds was done, and to what."""
        lines = Path(self._output.name).read_text().split("\n")[:-1]
        failed = [line for line in lines if line.split(" ")[1] == "failed"]
        assert not failed, f"{self.name}: {failed} {Path(self._errors.name).read_text()}"
        parts = (line.split(" ", 2) for line in lines)
        return [(int(at), what) for at, kind, what in parts if kind in kinds]

    def wait_for_more(self) -> None:
        known = (
            len(self.facts("stored-work")),
            len(self.facts("acked")),
            len(self.facts("consumed")),
        )

        def has_gone_on() -> bool:
            now = (
                len(self.facts("stored-work")),
                len(self.facts("acked")),
                len(self.facts("consumed")),
            )
            return now[0] > known[0] + STEPS and now[1:] > known[1:]

        eventually(has_gone_on, f"{self.name} goes on")

    def stop_publishing(self) -> None:
        self._stop.touch()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        self._output.close()
        self._errors.close()


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released_source(tmp_path_factory.mktemp("released"))


@pytest.fixture
def cluster(tmp_path: Path, released: Path) -> Iterator[ThreeNodes]:
    """Three nodes of the released version."""
    nodes = ThreeNodes(tmp_path, "--set", "limits.retention_interval_s=0.5")
    try:
        nodes.etcd.start()
        first, *others = NAMES
        old_nodes(nodes, released, first)  # it compiles what the others then find
        old_nodes(nodes, released, *others)
        yield nodes
    finally:
        nodes.close()


def old_nodes(nodes: ThreeNodes, released: Path, *names: str) -> None:
    nodes.start(*names, PYTHONPATH=str(released), PYTHONDONTWRITEBYTECODE="")


def versions(nodes: ThreeNodes) -> Counter[str]:
    with quiver.Client(nodes.url) as client:
        return Counter(one.version for one in client.describe_cluster().nodes)


def leads(nodes: ThreeNodes, name: str) -> bool:
    with quiver.Client(nodes.url) as client:
        return any(one.leads for one in client.describe_cluster().nodes if one.id == name)


def loads_of(folder: Path, url: str, released: Path) -> list[Load]:
    return [
        Load(folder, url, "old", released),
        Load(folder, url, "new", Path(quiver.__file__).parents[1]),
    ]


def test_nothing_is_lost_while_nodes_are_replaced_one_by_one_and_one_goes_back(
    cluster: ThreeNodes, released: Path, tmp_path: Path
) -> None:
    with quiver.Client(cluster.url) as client:
        client.create_queue("work", partitions=3)
        client.create_topic("short", retention={"messages": KEPT})
        client.create_topic("events", partitions=3)
        client.create_subscription(
            "billing", topics=["events"], ordering="partition", start="earliest"
        )
    loads = loads_of(tmp_path, cluster.url, released)
    try:
        go_on(loads)
        assert versions(cluster) == {VERSION: 3}
        for count, name in enumerate(NAMES, 1):
            assert cluster.stop(name) == 0
            cluster.start(name)
            settle(cluster, loads, name)
            assert versions(cluster)[__version__] == count
            if count < len(NAMES):
                assert_new_calls_wait(cluster, name)
        back = NAMES[1]
        assert cluster.stop(back) == 0
        old_nodes(cluster, released, back)
        settle(cluster, loads, back)
        assert versions(cluster) == {VERSION: 1, __version__: 2}
        assert cluster.stop(back) == 0
        cluster.start(back)
        settle(cluster, loads, back)
        for load in loads:
            load.stop_publishing()
        eventually(lambda: not missing(loads), f"everything is consumed: {missing(loads)}")
        account(cluster, loads)
    finally:
        for load in loads:
            load.close()


def assert_new_calls_wait(cluster: ThreeNodes, new: str) -> None:
    """What an older node could not do is refused by a new one until all are new."""
    info = TopicInfo(
        name="restored", number=99, layout=0, settings=TopicSettings(), created_us=0, partitions=[]
    )
    for request in RestoreTopic(name="restored", info=info, backup="b"), BeginTransactions():

        async def call(client: quiver.AsyncClient, request: AnyRequest = request) -> None:
            await client.cluster.call(
                request, repeatable=True, timeout_s=30, find_address=lambda: cluster.address(new)
            )

        with (
            quiver.Client(cluster.url) as client,
            pytest.raises(InvalidRequest, match=rf"Quiver {VERSION}\); upgrade these first"),
        ):
            client.run(call)


def go_on(loads: list[Load]) -> None:
    for load in loads:
        load.wait_for_more()


def settle(cluster: ThreeNodes, loads: list[Load], name: str) -> None:
    """As the page says: all replicas in sync before the next node. Here the node must lead again, too."""
    cluster.wait_whole()
    eventually(lambda: leads(cluster, name), f"{name} leads again")
    go_on(loads)


def stored(loads: list[Load], topic: str) -> set[str]:
    return {payload for load in loads for _, payload in load.facts(f"stored-{topic}")}


def missing(loads: list[Load]) -> set[str]:
    """What was confirmed and is not consumed yet, or while somebody may still publish: everything."""
    if not all(load.facts("published") for load in loads):
        return stored(loads, "work")
    consumed = {payload for load in loads for _, payload in load.facts("consumed")}
    acked = {payload for load in loads for _, payload in load.facts("acked")}
    return (stored(loads, "work") - consumed) | (stored(loads, "events") - acked)


def account(cluster: ThreeNodes, loads: list[Load]) -> None:
    with quiver.Client(cluster.url) as client:
        for topic in ("work", "events"):
            found = Counter(message.text() for message in client.read(topic).messages())
            assert set(found.values()) == {1}, "nothing is stored twice"
            assert stored(loads, topic) == set(found), "what was confirmed is stored, and no more"

        def left() -> int:
            infos = [client.describe_subscription(name) for name in ("work", "billing")]
            return sum((one.ready or 0) + (one.unseen or 0) + (one.leased or 0) for one in infos)

        eventually(lambda: left() == 0, "nothing is left to deliver")

        def kept() -> int:
            (only,) = client.describe_topic("short").partitions
            return (only.next_offset or 0) - (only.start_offset or 0)

        eventually(lambda: kept() == KEPT, "retention goes on")
    assert_no_ack_was_forgotten(loads)
    assert_order(loads)
    pauses = [
        (later - earlier) / 1e9
        for load in loads
        for (earlier, _), (later, _) in pairwise(load.facts("stored-work", "stored-events"))
    ]
    print(f"longest pauses of publishes: {sorted(pauses)[-5:]}")
    assert max(pauses) < PAUSE_S_MAX


def assert_no_ack_was_forgotten(loads: list[Load]) -> None:
    acked = {payload: at for load in loads for at, payload in load.facts("acked")}
    again = [
        what
        for load in loads
        for at, what in load.facts("received")
        if at > acked.get(what.partition(" ")[2], at)
    ]
    assert again == [], "no message is delivered again after its ack was confirmed"


def assert_order(loads: list[Load]) -> None:
    """Each partition is first read in the order of its offsets, whoever reads it."""
    facts = sorted(fact for load in loads for fact in load.facts("received"))
    seen: defaultdict[str, set[int]] = defaultdict(set)
    for _, what in facts:
        partition, _, offset = what.partition(" ")[0].partition("/")
        number = int(offset)
        if number not in seen[partition]:
            assert number > max(seen[partition], default=-1), f"partition {partition} is in order"
            seen[partition].add(number)


def test_a_single_node_goes_to_the_new_version_and_back_with_all_its_messages(
    released: Path, tmp_path: Path
) -> None:
    old = {"PYTHONPATH": str(released), "PYTHONDONTWRITEBYTECODE": ""}
    published: set[str] = set()
    consumed: list[str] = []
    for number, variables in enumerate((old, {}, old, {})):
        with served(tmp_path / "node", **variables) as node, quiver.Client(node.url) as client:
            if not number:
                client.create_queue("work")
            assert pending(client) == len(published) - len(consumed)
            batch = {f"{number}-{count}" for count in range(40)}
            for payload in batch:
                client.publish("work", payload, priority=int(payload[-1]) % 10)
            published |= batch
            messages = client.receive("work", 15, wait="5s")
            client.ack("work", messages)
            consumed += [message.text() for message in messages]
            client.nack("work", client.receive("work", 5, wait="5s"))
            assert node.stop() == 0
    with served(tmp_path / "node") as node, quiver.Client(node.url) as client:
        while pending(client):
            messages = client.receive("work", 100, wait="5s")
            client.ack("work", messages)
            consumed += [message.text() for message in messages]
    assert sorted(consumed) == sorted(published)


def pending(client: quiver.Client) -> int:
    info = client.describe_subscription("work")
    return sum(one or 0 for one in (info.ready, info.unseen, info.delayed, info.leased))
