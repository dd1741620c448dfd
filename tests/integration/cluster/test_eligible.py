"""The last replica in sync is damaged, and an intact one that left the in-sync set before it leads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver.protocol import PartitionPlacement
from tests.integration.cluster.nodes import Cluster, waited
from tests.integration.cluster.test_publishing import payloads

TOPIC = "story"
MESSAGES = [str(n).encode() * 100 for n in range(50)]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of its own: a lost replica must not concern the topics of other tests."""
    cluster = Cluster(tmp_path)
    try:
        cluster.start()
        cluster.wait_complete()
        yield cluster
    finally:
        cluster.close()


def placed(cluster: Cluster, node: int) -> PartitionPlacement:
    (found,) = (
        one for one in cluster.client(node).describe_cluster().partitions if one.topic == TOPIC
    )
    return found


def test_a_partition_is_led_again_although_the_last_in_sync_is_damaged(own: Cluster) -> None:
    own.client().create_topic(TOPIC)
    for message in MESSAGES:
        own.client().publish(TOPIC, message)
    damaged = own.leader(TOPIC)
    first, second = (index for index in range(3) if index != damaged)
    own.kill(first)
    waited(lambda: len(placed(own, damaged).in_sync) == 2, "one has left the in-sync set")
    own.kill(second)
    waited(lambda: placed(own, damaged).in_sync == [f"node-{damaged}"], "one is in sync")
    assert placed(own, damaged).eligible == [f"node-{second}"], (
        "the first may have missed something"
    )

    own.kill(damaged)
    flip_a_bit(own.data(damaged))
    own.restart(damaged)
    waited(lambda: "a replica is damaged" in own.log(damaged), "the damage is found")
    own.restart(first)
    assert placed(own, first).leader is None, "nobody knows whether it has everything"
    own.restart(second)
    waited(lambda: placed(own, second).leader == f"node-{second}", "the eligible one leads")
    own.wait_in_sync()
    assert placed(own, second).eligible == []
    assert payloads(own.client(), TOPIC) == MESSAGES
    own.client().publish(TOPIC, b"again")


def flip_a_bit(data: Path) -> None:
    """In what is certainly committed: rot at the very end is taken for a torn write."""
    (path,) = data.glob(f"partitions/{TOPIC}@*/0/data/*.log")
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)
