"""Consumer groups whose members are connected to different nodes."""

from __future__ import annotations

import contextlib
import threading

from quiver.errors import StaleReceipt
from tests.integration.cluster.nodes import Cluster, waited
from tests.integration.cluster.test_queues import numbered


class Member:
    """Receives and acknowledges in a thread, until it is told to end."""

    def __init__(self, cluster: Cluster, node: tuple[int, ...], group: str, name: str) -> None:
        self._client = cluster.client(*node)
        self._group, self._name = group, name
        self.got: list[tuple[int, bytes]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            messages = self._client.receive(self._group, 5, wait="300ms", consumer=self._name)
            self.got += [(one.partition, one.payload) for one in messages]
            with contextlib.suppress(StaleReceipt):  # the partition went to another meanwhile
                self._client.ack(self._group, messages)

    def end(self) -> None:
        self._end.set()
        self._thread.join(30)


def _made(three: Cluster, name: str) -> None:
    client = three.client()
    client.create_topic(name, partitions=3)
    client.create_subscription(
        name, topics=[name], ordering="partition", start="earliest", session_timeout="5s"
    )


def test_members_on_several_nodes_share_the_partitions(three: Cluster) -> None:
    _made(three, "team")
    client = three.client()
    shares = lambda: [client.heartbeat("team", f"m{index}") for index in range(3)]  # noqa: E731
    waited(lambda: sorted(map(len, shares())) == [1, 1, 1], "each has one")
    with client.producer("team") as producer:
        for payload in numbered(60):
            producer.send(payload, key=payload)
    members = [Member(three, (index,), "team", f"m{index}") for index in range(3)]
    try:
        waited(lambda: sum(len(one.got) for one in members) == 60, "everything is read")
    finally:
        for member in members:
            member.end()
    for member in members:
        assert len({partition for partition, _ in member.got}) == 1
    read = [payload for member in members for _, payload in member.got]
    assert sorted(read) == sorted(numbered(60))


def test_the_partitions_of_a_dead_member_move(three: Cluster) -> None:
    _made(three, "heirs")
    client = three.client()
    waited(
        lambda: len(client.heartbeat("heirs", "a")) + len(client.heartbeat("heirs", "b")) == 3,
        "all are given",
    )
    waited(lambda: len(client.heartbeat("heirs", "b")) == 3, "the other has them all")
    members = client.describe_subscription("heirs").members or {}
    assert sorted(members["b"]) == [f"heirs/{index}" for index in range(3)]
    assert "a" not in members


def test_members_rejoin_when_their_coordinator_dies(three: Cluster) -> None:
    _made(three, "orphans")
    client = three.client()
    members = [Member(three, (), "orphans", f"m{index}") for index in range(2)]
    for n in range(60):
        client.publish("orphans", str(n).encode(), key=str(n))
        if n == 20:
            victim = three.leader("orphans", 0)
            three.kill(victim)
    try:
        waited(
            lambda: {payload for one in members for _, payload in one.got} == set(numbered(60)),
            "everything is read",
        )
        waited(
            lambda: len(client.describe_subscription("orphans").members or {}) == 2,
            "both are members again",
        )
        assert three.leader("orphans", 0) != victim
    finally:
        for member in members:
            member.end()
