"""Topics and subscriptions: what one node was told, all know when it answers."""

from __future__ import annotations

from collections import Counter

import pytest

from quiver.errors import NotEnoughReplicas, SubscriptionNotFound, TopicExists, TopicNotFound
from quiver.protocol import PartitionPlacement
from tests.integration.cluster.nodes import Cluster, waited


def _folders(three: Cluster, topic: str) -> list[str]:
    return [
        str(path)
        for index in range(3)
        for path in three.data(index).glob(f"partitions/{topic}@*/*")
    ]


def _ends(three: Cluster, node: int, topic: str) -> list[int | None]:
    return [part.next_offset for part in three.client(node).describe_topic(topic).partitions]


def test_a_topic_is_known_on_every_node_when_the_call_returns(three: Cluster) -> None:
    three.client(0).create_topic("known", partitions=3)
    for index in range(3):
        info = three.client(index).describe_topic("known")
        assert all(part.leader for part in info.partitions)
        waited(lambda: _ends(three, index, "known") == [0, 0, 0], "every extent is known")  # noqa: B023
        with pytest.raises(TopicExists):
            three.client(index).create_topic("known", partitions=3)


def test_what_one_node_altered_the_others_know(three: Cluster) -> None:
    three.client(0).create_topic("altered")
    three.client(1).alter_topic("altered", message_bytes_max=2_000)
    three.client(2).alter_topic("altered", dedup_window="1m")
    for index in range(3):
        settings = three.client(index).describe_topic("altered").settings
        assert settings.message_bytes_max == 2_000
        assert settings.dedup_window_us == 60_000_000


def test_other_log_settings_reach_every_replica(three: Cluster) -> None:
    client = three.client(0)
    client.create_topic("rolling")
    client.alter_topic("rolling", segment_bytes=1 << 20)
    for _ in range(6):
        client.publish("rolling", bytes(300_000))
    three.wait_in_sync()
    segments = lambda index: list(three.data(index).glob("partitions/rolling@*/0/data/*.log"))  # noqa: E731
    waited(lambda: all(len(segments(index)) > 1 for index in range(3)), "segments roll everywhere")
    stored = [message.payload for message in client.read("rolling").messages()]
    assert stored == [bytes(300_000)] * 6


def test_subscriptions_are_known_altered_and_deleted_on_every_node(three: Cluster) -> None:
    three.client(0).create_topic("subscribed")
    three.client(0).create_subscription("reader", topics=["subscribed"])
    for index in range(3):
        assert three.client(index).describe_subscription("reader").ready == 0
    three.client(1).alter_subscription("reader", max_deliveries=9)
    for index in range(3):
        assert three.client(index).describe_subscription("reader").settings.max_deliveries == 9
    three.client(2).delete_subscription("reader")
    for index in range(3):
        with pytest.raises(SubscriptionNotFound):
            three.client(index).describe_subscription("reader")


def test_data_of_a_deleted_topic_disappears_from_every_disk(three: Cluster) -> None:
    three.client(0).create_topic("deleted", partitions=2)
    three.client(0).publish_many("deleted", [b"x"] * 20)
    waited(lambda: len(_folders(three, "deleted")) == 6, "replicas on every disk")
    three.client(1).delete_topic("deleted")
    for index in range(3):
        with pytest.raises(TopicNotFound):
            three.client(index).describe_topic("deleted")
    waited(lambda: not _folders(three, "deleted"), "no data on any disk")


def test_a_topic_of_the_same_name_begins_anew(three: Cluster) -> None:
    for index in range(3):
        client = three.client(index)
        client.create_queue("again")
        client.publish("again", f"{index}")
        other = three.client((index + 1) % 3)
        (message,) = other.receive("again", wait="20s")
        assert message.payload == f"{index}".encode()
        other.delete_subscription("again")


def test_replicas_and_min_in_sync_are_as_the_topic_says(three: Cluster) -> None:
    client = three.client(0)
    client.create_topic("pair", replicas=2, min_in_sync=1)
    client.create_topic("default")
    placed: dict[str, PartitionPlacement] = {}

    def are_placed() -> bool:
        placed.update((one.topic, one) for one in client.describe_cluster().partitions)
        return {"pair", "default"} <= placed.keys()

    waited(are_placed, "the node that is asked knows of both")
    assert (len(placed["pair"].replicas), placed["pair"].min_in_sync) == (2, 1)
    assert (len(placed["default"].replicas), placed["default"].min_in_sync) == (3, 2)
    with pytest.raises(NotEnoughReplicas):
        client.create_topic("too-many", replicas=4)


def test_the_number_of_replicas_is_raised_and_lowered(three: Cluster) -> None:
    client = three.client(0)
    client.create_topic("resized", replicas=1)
    client.publish_many("resized", [b"x"] * 10)

    def placed() -> tuple[int, int, int]:
        (one,) = [one for one in client.describe_cluster().partitions if one.topic == "resized"]
        return len(one.replicas), len(one.in_sync), one.min_in_sync

    assert placed() == (1, 1, 1)
    client.alter_topic("resized", replicas=3)
    waited(lambda: placed() == (3, 3, 2), "three replicas in sync")
    client.alter_topic("resized", replicas=2, min_in_sync=1)
    waited(lambda: placed() == (2, 2, 1), "two replicas")
    client.publish("resized", b"y")
    assert sum(batch.num_rows for batch in client.read("resized", follow=False)) == 11


def test_topics_made_one_after_the_other_are_led_evenly(three: Cluster) -> None:
    client = three.client()
    names = [f"even-{number}" for number in range(4)]
    for name in names:
        client.create_topic(name, partitions=6, replicas=3)
    first: dict[tuple[str, int], str] = {}

    def are_placed() -> bool:
        placed = client.describe_cluster().partitions
        first.update(((one.topic, one.index), one.replicas[0]) for one in placed)
        return len([place for place in first if place[0] in names]) == 24

    waited(are_placed, "the node that is asked knows of all")
    led = Counter(node for (topic, _), node in first.items() if topic in names)
    assert len(led) == 3
    assert max(led.values()) <= 14, "a third each, but for what other topics left uneven"
