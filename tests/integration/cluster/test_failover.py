"""A leader is killed: what was acknowledged is there, what was leased stays so, nothing is twice."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter

import pytest

import quiver
from quiver.errors import NotEnoughReplicas, QuiverError, StaleReceipt
from tests.integration.cluster.nodes import SECONDS_MAX, Cluster, waited
from tests.integration.cluster.test_publishing import payloads
from tests.integration.cluster.test_queues import drain, numbered


def test_a_named_producer_leaves_no_gap_and_no_duplicate(three: Cluster) -> None:
    client = three.client()
    client.create_topic("gapless")
    victim = three.leader("gapless")
    with client.producer("gapless", name="gapless") as producer:
        for n in range(400):
            producer.send(str(n), key="one")
            if n == 150:
                three.kill(victim)
            if n > 150:
                time.sleep(0.002)
    assert payloads(client, "gapless") == [str(n).encode() for n in range(400)]


def test_repeats_are_known_to_the_next_leader(three: Cluster) -> None:
    client = three.client()
    client.create_topic("seen")
    first = client.publish("seen", b"once", dedup_id="a")
    victim = three.leader("seen")
    three.kill(victim)
    assert client.publish("seen", b"once", dedup_id="a").id == first.id
    assert payloads(client, "seen") == [b"once"]


def test_what_subscriptions_did_outlives_their_leader(three: Cluster) -> None:
    """Leases, attempts, acks, delays, priorities and dead letters, in one queue."""
    client = three.client()
    client.create_queue("survivor", max_deliveries=2)
    client.publish_many("survivor", numbered(10))
    leased = client.receive("survivor", 10, wait="20s", visibility="10m")
    client.ack("survivor", leased[:3])
    leased[3].nack(delay="1h")
    leased[4].nack(delay=0, error="once")
    leased[5].extend("20m")
    soon, returned = leased[6], leased[7]
    soon.extend("3s")
    client.give_back("survivor", [returned])
    later = client.publish("survivor", b"later", delay="1h", priority=9)
    victim = three.leader("survivor")
    three.kill(victim)

    leased[8].ack()  # a receipt of the old leader's, at the new one
    got: dict[bytes, int] = {}
    deadline = time.monotonic() + SECONDS_MAX
    while set(got) != {one.payload for one in (leased[4], soon, returned)}:
        assert time.monotonic() < deadline, got
        messages = client.receive("survivor", 10, wait="2s", visibility="10m")
        got |= {one.payload: one.deliveries for one in messages}
        if leased[4].payload in {one.payload for one in messages}:
            last = next(one for one in messages if one.payload == leased[4].payload)
            last.nack(error="twice")
    assert got == {leased[4].payload: 2, soon.payload: 2, returned.payload: 1}
    status = client.message_status("survivor", later.id)
    assert [one.state for one in status.subscriptions] == ["delayed"]
    (letter,) = client.receive("survivor.dlq", wait="20s")
    assert letter.payload == leased[4].payload
    assert client.cancel("survivor", later.id) == 1
    info = client.describe_subscription("survivor")
    assert (info.delayed, info.leased) == (1, 4)  # 3; and 5, 6, 7, 9


def test_the_next_leader_knows_the_priorities_of_a_backlog(three: Cluster) -> None:
    client = three.client()
    client.create_queue("urgent-backlog", ageing=0)
    client.publish_many("urgent-backlog", [b"." * 1000] * 4000)
    client.publish("urgent-backlog", b"urgent", priority=9)
    victim = three.leader("urgent-backlog")
    three.kill(victim)
    (first,) = client.receive("urgent-backlog", 1, wait="20s")
    assert first.payload == b"urgent"


def test_a_stale_receipt_is_stale_for_the_next_leader(three: Cluster) -> None:
    client = three.client()
    client.create_queue("stale", guarantee="exactly-once")  # a lease is durable when it is given
    client.publish("stale", b"x")
    (first,) = client.receive("stale", wait="20s")
    first.nack(delay=0)
    (second,) = client.receive("stale", wait="20s")
    victim = three.leader("stale")
    three.kill(victim)
    with pytest.raises(StaleReceipt):
        first.ack()
    second.ack()
    assert client.describe_subscription("stale").leased == 0


def depth(client: quiver.Client, subscription: str) -> int:
    info = client.describe_subscription(subscription)
    return sum(one or 0 for one in (info.ready, info.unseen, info.delayed, info.leased))


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once", "at-most-once"])
def test_work_goes_on_while_a_leader_dies(three: Cluster, guarantee: str) -> None:
    client, name = three.client(), f"goes-on-{guarantee}"
    client.create_topic(name, partitions=3)
    client.create_subscription(name, topics=[name], guarantee=guarantee, visibility="5s")
    victim = three.leader(name, 1)
    got: Counter[bytes] = Counter()
    ended = threading.Event()

    def consume() -> None:
        while not ended.is_set():
            messages = client.receive(name, 20, wait="300ms")
            got.update(one.payload for one in messages)
            if guarantee != "at-most-once" and messages:
                with contextlib.suppress(StaleReceipt):
                    client.ack(name, messages)

    consumer = threading.Thread(target=consume)
    consumer.start()
    for n in range(120):
        client.publish(name, str(n).encode(), key=str(n))
        if n == 40:
            three.kill(victim)
    if guarantee == "at-most-once":
        waited(lambda: not depth(client, name), "nothing is left to deliver")
    else:
        waited(lambda: len(got) == 120, "everything is delivered")
    ended.set()
    consumer.join(30)
    assert set(got) <= set(numbered(120))
    if guarantee == "at-most-once":
        assert max(got.values()) == 1


def test_too_few_replicas_take_no_durable_publish_and_are_read(three: Cluster) -> None:
    client = three.client()
    client.create_topic("few", replicas=2, min_in_sync=2)
    client.publish("few", b"durable")
    (placed,) = [one for one in client.describe_cluster().partitions if one.topic == "few"]
    other = next(node for node in placed.replicas if node != placed.leader)
    victim = int(other.removeprefix("node-"))
    three.kill(victim)
    with quiver.Client(three.url, timeout="2s") as hasty:
        with pytest.raises(QuiverError) as refused:
            hasty.publish("few", b"refused")
        assert refused.value.retryable
    assert payloads(client, "few")[0] == b"durable"
    assert NotEnoughReplicas.retryable
    three.revive(victim)
    client.publish("few", b"again")
    assert payloads(client, "few")[0] == b"durable"


def test_a_stopped_node_hands_over_and_no_publish_fails(three: Cluster) -> None:
    client = three.client()
    client.create_queue("rolling-restart", partitions=3)
    for index in range(3):
        stopping = threading.Thread(target=three.stop, args=[index])
        stopping.start()
        for n in range(20):
            client.publish("rolling-restart", f"{index}-{n}".encode(), key=str(n))
        stopping.join()
        three.revive(index)
    assert len(set(drain(client, "rolling-restart", 60))) == 60
