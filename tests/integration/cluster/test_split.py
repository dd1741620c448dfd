"""Partitions of a cluster are split while they are used, and while nodes die: order and numbers hold."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest

import quiver
from quiver.errors import QuiverError
from quiver.model.key_hash import KeyRouter
from tests.integration.cluster.nodes import SECONDS_MAX, Cluster, waited

KEYS = [f"key-{number}" for number in range(16)]


class Publishing:
    """A thread that publishes numbers of each key for as long as the block lasts."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.sent: dict[str, list[bytes]] = defaultdict(list)
        self._client = quiver.Client(cluster.url)
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._error: BaseException | None = None

    def _publish(self) -> None:
        number = 0
        try:
            with self._client.producer(self._topic) as producer:
                while not self._is_over.wait(0.002):
                    key, number = KEYS[number % len(KEYS)], number + 1
                    producer.send(b"%08d" % number, key=key)
                    self.sent[key].append(b"%08d" % number)
        except BaseException as error:
            self._error = error

    def goes_on(self, count: int = 100) -> None:
        """Wait until so many more were sent."""
        goal = self._sent_count + count
        waited(lambda: self._sent_count >= goal or not self._thread.is_alive(), "it is publishing")

    @property
    def _sent_count(self) -> int:
        return sum(len(self.sent.get(key, ())) for key in KEYS)

    def __enter__(self) -> Publishing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(120)
        self._client.close()
        assert self._error is None, self._error
        assert not self._thread.is_alive()


def stored(client: quiver.Client, topic: str) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = defaultdict(list)
    for partition in client.describe_topic(topic).partitions:
        for message in client.read(topic, partition=partition.index).messages():
            assert message.key is not None
            found[message.key.decode()].append(message.payload)
    return found


def drained(
    client: quiver.Client, subscription: str, count: int, consumer: str = ""
) -> dict[str, list[bytes]]:
    """By key, what a consumer got, each message when it came first."""
    found: dict[str, list[bytes]] = defaultdict(list)
    seen: set[tuple[str, bytes]] = set()
    deadline = time.monotonic() + 2 * SECONDS_MAX
    while len(seen) < count:
        assert time.monotonic() < deadline, f"{len(seen)} of {count} came"
        messages = client.receive(subscription, 100, wait="2s", consumer=consumer)
        for message in messages:
            assert message.key is not None
            one = (message.key.decode(), message.payload)
            if one not in seen:
                found[one[0]].append(message.payload)
            seen.add(one)
        if messages:
            client.ack(subscription, messages)
    return found


def owner(client: quiver.Client, topic: str, key: str) -> int:
    firsts = [one.first_hash for one in client.describe_topic(topic).partitions]
    return KeyRouter.of(firsts).partition(key.encode())


def test_any_node_may_be_asked_to_split(three: Cluster) -> None:
    three.client(0).create_topic("asked", partitions=2)
    for node in range(3):
        child = three.client(node).split_partition("asked", 0)
        assert child.index == 2 + node
        for other in range(3):
            known = three.client(other).describe_topic("asked").partitions
            assert [one.index for one in known] == list(range(3 + node))
    placed = [one for one in three.client(1).describe_cluster().partitions if one.topic == "asked"]
    assert {len(one.replicas) for one in placed} == {3}
    assert {one.min_in_sync for one in placed} == {2}


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_a_child_led_elsewhere_waits_for_its_parent(three: Cluster, ordering: str) -> None:
    client, topic = three.client(), f"turns-{ordering}"
    client.create_topic(topic)
    client.create_subscription(f"{topic}-read", topics=[topic], ordering=ordering)
    for key in KEYS:
        client.publish(topic, b"before", key=key)
    child = client.split_partition(topic, 0)
    parent = three.leader(topic)
    if three.leader(topic, child.index) == parent:
        client.transfer_lead(topic, child.index)
        waited(lambda: three.leader(topic, child.index) != parent, "they have different leaders")
    moved = [key for key in KEYS if owner(client, topic, key) == child.index]
    for key in moved:
        client.publish(topic, b"after", key=key)
    # Asked of the node that leads the child alone, and so holds nothing but what must wait.
    remote = three.client(three.leader(topic, child.index))
    first = remote.receive(f"{topic}-read", 100, wait="10s", consumer="one")
    assert {message.payload for message in first} == {b"before"}
    client.ack(f"{topic}-read", first[:-1])
    assert remote.receive(f"{topic}-read", 100, wait="1s", consumer="one") == []
    client.ack(f"{topic}-read", first[-1:])
    second = remote.receive(f"{topic}-read", 100, wait="10s", consumer="one")
    assert sorted(message.key.decode() for message in second if message.key) == sorted(moved)


def test_what_is_stored_once_is_so_across_a_split_to_another_node(three: Cluster) -> None:
    client, topic = three.client(), "inherited"
    client.create_topic(topic)
    ids = [f"id-{number}" for number in range(20)]
    for one in ids:
        client.publish(topic, b"x", dedup_id=one)
    with client.producer(topic, name="inherited-import") as producer:
        for number, key in enumerate(KEYS):
            producer.send(b"%d" % number, key=key, sequence=number)
    child = client.split_partition(topic, 0)
    assert all(client.publish(topic, b"x", dedup_id=one).duplicate for one in ids)
    three.kill(three.leader(topic, child.index))
    three.heal()
    assert all(client.publish(topic, b"x", dedup_id=one).duplicate for one in ids)
    with client.producer(topic, name="inherited-import") as producer:
        assert producer.last_sequences == {0: len(KEYS) - 1, child.index: len(KEYS) - 1}
        for number, key in enumerate(KEYS):
            assert producer.send(b"%d" % number, key=key, sequence=number).result().duplicate
    ends = [one.next_offset for one in client.describe_topic(topic).partitions]
    assert ends == [len(ids) + len(KEYS), 0]


@pytest.mark.parametrize("delay_s", [0.0, 0.004, 0.012, 0.03])
def test_a_leader_that_is_killed_in_the_middle_of_a_split(three: Cluster, delay_s: float) -> None:
    client, topic = three.client(), f"killed-{round(delay_s * 1000)}"
    client.create_topic(topic)
    client.create_subscription(f"{topic}-read", topics=[topic], ordering="key")
    with Publishing(three, topic) as publishing:
        publishing.goes_on()
        victim = three.leader(topic)
        outcome: list[object] = []

        def split() -> None:
            with quiver.Client(three.url) as own:
                try:
                    outcome.append(own.split_partition(topic, 0))
                except QuiverError as error:
                    outcome.append(error)

        splitting = threading.Thread(target=split)
        splitting.start()
        time.sleep(delay_s)
        three.kill(victim)
        splitting.join(60)
        assert outcome
        publishing.goes_on()
    count = len(client.describe_topic(topic).partitions)
    assert count == 2, f"split asked for once: {count} partitions, {outcome}"
    assert stored(client, topic) == publishing.sent
    total = sum(map(len, publishing.sent.values()))
    assert drained(client, f"{topic}-read", total) == publishing.sent


def test_splits_under_load_with_leaders_that_move(three: Cluster) -> None:
    client, topic = three.client(), "busy"
    client.create_topic(topic, partitions=2)
    client.create_subscription("busy-read", topics=[topic], ordering="key")
    with Publishing(three, topic) as publishing:
        for index in (0, 1, 2):
            publishing.goes_on()
            child = client.split_partition(topic, index)
            client.transfer_lead(topic, index)
            client.transfer_lead(topic, child.index)
        publishing.goes_on()
    assert len(client.describe_topic(topic).partitions) == 5
    assert stored(client, topic) == publishing.sent
    total = sum(map(len, publishing.sent.values()))
    assert drained(client, "busy-read", total) == publishing.sent
