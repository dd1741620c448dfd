"""Long histories: what a new leader or a new replica learns comes from snapshots in the state log."""

from __future__ import annotations

from tests.integration.cluster.nodes import Cluster, waited
from tests.integration.cluster.test_queues import drain, numbered


def _state_begins(three: Cluster, node: int, topic: str) -> int:
    """The first offset that a node's state log still has."""
    files = three.data(node).glob(f"partitions/{topic}@*/0/state/*.log")
    return min(int(file.stem) for file in files)


def _worked_on(three: Cluster, name: str, **settings: object) -> None:
    """A queue of which 200 of 260 messages are acknowledged, one by one, and 10 are leased."""
    client = three.client()
    client.create_queue(name, guarantee="exactly-once", **settings)  # leases are durable at once
    client.publish(name, b"0", dedup_id="first")
    client.publish_many(name, numbered(260)[1:])
    for message in client.receive(name, 200, wait="20s"):
        message.ack()
    assert len(client.receive(name, 10, wait="20s", visibility="1h")) == 10
    leader = three.leader(name)
    waited(lambda: _state_begins(three, leader, name) > 0, "old records are dropped")


def _left(three: Cluster, name: str) -> tuple[int | None, list[bytes]]:
    """How many are leased, and what can be received, once the first message was sent again."""
    client = three.client()
    waited(
        lambda: client.describe_subscription(name).partitions or None, "its partition has a leader"
    )
    leased = client.describe_subscription(name).leased
    client.publish(name, b"0", dedup_id="first")  # a repeat
    left = sorted(drain(client, name, 50))
    return leased, left + [message.payload for message in client.receive(name)]


def test_the_next_leader_knows_what_happened_before_the_snapshot(three: Cluster) -> None:
    _worked_on(three, "long")
    three.kill(three.leader("long"))
    assert _left(three, "long") == (10, sorted(numbered(260)[210:]))


def test_a_replica_that_begins_anew_knows_it_too(three: Cluster) -> None:
    _worked_on(three, "moved", replicas=1)
    client = three.client()
    target = f"node-{three.follower('moved')}"
    client.move_partition("moved", 0, [target])

    def has_moved() -> bool:
        (one,) = [one for one in client.describe_cluster().partitions if one.topic == "moved"]
        return one.leader == target and one.replicas == [target]

    waited(has_moved, "it is led by the other")
    assert _left(three, "moved") == (10, sorted(numbered(260)[210:]))
