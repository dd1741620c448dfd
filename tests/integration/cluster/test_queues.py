"""Queues whose partitions several nodes lead, through each of the nodes."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pyarrow as pa
import pytest

import quiver
from quiver.errors import StaleReceipt
from tests.integration.cluster.nodes import SECONDS_MAX, Cluster, waited


def drain(client: quiver.Client, name: str, count: int, **options: object) -> list[bytes]:
    """Receive and acknowledge so many messages."""
    got: list[bytes] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count}"
        messages = client.receive(name, 50, wait="1s", **options)  # type: ignore[arg-type]
        got += [message.payload for message in messages]
        client.ack(name, messages)
    return got


def numbered(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(count)]


@pytest.mark.parametrize("entry", [0, 1, 2])
def test_each_message_is_received_once_through_any_node(three: Cluster, entry: int) -> None:
    name, client = f"once-{entry}", three.client(entry)
    client.create_queue(name, partitions=3)
    client.publish_many(name, numbered(60))
    assert (
        client.describe_subscription(name).ready + client.describe_subscription(name).unseen == 60
    )
    assert sorted(drain(client, name, 60)) == sorted(numbered(60))
    assert client.receive(name) == []
    info = three.client((entry + 1) % 3).describe_subscription(name)
    assert (info.ready, info.leased, info.unseen) == (0, 0, 0)


@pytest.mark.parametrize("entry", [0, 1, 2])
def test_every_node_shows_the_progress_in_all_partitions(three: Cluster, entry: int) -> None:
    name, client = f"progress-{entry}", three.client(entry)
    client.create_queue(name, partitions=3)
    client.publish_many(name, numbered(60))

    def progress() -> list[tuple[int, bool, int]]:
        partitions = client.describe_subscription(name).partitions or []
        assert sum(one.end for one in partitions) == 60
        return [(one.partition, one.committed == one.end, one.lag) for one in partitions]

    shown = progress()
    assert [index for index, _, _ in shown] == [0, 1, 2]
    assert sum(lag for _, _, lag in shown) == 60
    drain(client, name, 60)
    assert progress() == [(0, True, 0), (1, True, 0), (2, True, 0)]


def test_consumers_on_all_nodes_share_a_queue(three: Cluster) -> None:
    three.client(0).create_queue("shared", partitions=3)
    three.client(0).publish_many("shared", numbered(300))
    got: list[bytes] = []

    def work(index: int) -> None:
        client, deadline = three.client(index), time.monotonic() + SECONDS_MAX
        while len(got) < 300 and time.monotonic() < deadline:
            messages = client.receive("shared", 20, wait="500ms", consumer=f"c{index}")
            got.extend(message.payload for message in messages)
            client.ack("shared", messages)

    threads = [threading.Thread(target=work, args=[index]) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS_MAX)
    assert sorted(got) == sorted(numbered(300))


@pytest.mark.parametrize("entry", ["leader", "follower"])
def test_a_long_poll_is_woken_wherever_the_message_comes(three: Cluster, entry: str) -> None:
    name = f"woken-{entry}"
    three.client(0).create_queue(name)
    node = three.leader(name) if entry == "leader" else three.follower(name)
    timer = threading.Timer(0.5, lambda: three.client().publish(name, b"now"))
    timer.start()
    began = time.monotonic()
    (message,) = three.client(node).receive(name, wait="20s")
    assert time.monotonic() - began < 15
    message.ack()
    timer.join()


@pytest.mark.parametrize("entry", ["leader", "follower"])
def test_settling_in_every_way(three: Cluster, entry: str) -> None:
    name = f"settled-{entry}"
    three.client(0).create_queue(name)
    node = three.leader(name) if entry == "leader" else three.follower(name)
    client = three.client(node)
    client.publish_many(name, numbered(4))
    acked, nacked, extended, returned = client.receive(name, 4, wait="20s")
    acked.ack()
    nacked.nack(delay=0)
    extended.extend("10m")
    client.give_back(name, [returned])
    again = {}
    while len(again) < 2:
        again |= {one.payload: one for one in client.receive(name, wait="20s")}
    assert again[nacked.payload].deliveries == 2
    assert again[returned.payload].deliveries == 1
    assert client.describe_subscription(name).leased == 3
    (status,) = client.message_status(name, extended.id).subscriptions
    assert status.until is not None
    assert status.until - extended.timestamp > timedelta(minutes=5)
    with pytest.raises(StaleReceipt):
        client.ack(name, [nacked])


def test_batches_as_arrow_are_settled_as_they_are(three: Cluster) -> None:
    client = three.client(0)
    client.create_queue("arrow", partitions=3)
    client.publish_many("arrow", pa.RecordBatch.from_pydict({"payload": numbered(90)}))
    got: list[bytes] = []
    while len(got) < 90:
        batch = client.receive_batch("arrow", wait="20s")
        assert batch.num_rows
        got += batch["payload"].to_pylist()
        client.ack("arrow", batch)
    assert sorted(got) == sorted(numbered(90))


def test_priorities_and_delays_hold_across_nodes(three: Cluster) -> None:
    name = "urgent"
    three.client(0).create_queue(name)
    client = three.client(three.follower(name))
    began = time.monotonic()
    client.publish(name, b"late", delay="1s", priority=0)
    client.publish(name, b"low", priority=1)
    client.publish(name, b"high", priority=9)
    first = client.receive(name, 1, wait="20s")
    second = client.receive(name, 1, wait="20s")
    assert [one.payload for one in first + second] == [b"high", b"low"]
    assert drain(client, name, 1) == [b"late"]
    assert time.monotonic() - began >= 1


def test_dead_letters_go_to_a_queue_that_is_led_elsewhere_and_come_back(three: Cluster) -> None:
    name = "poison"
    three.client(0).create_queue(name, partitions=3, max_deliveries=1)
    client = three.client(three.follower("poison.dlq"))
    client.publish_many(name, numbered(30))
    done = 0
    while done < 30:
        messages = client.receive(name, 30, wait="20s")
        client.nack(name, messages, delay=0, error="broken")
        done += len(messages)
    waited(lambda: client.describe_subscription(name).dead == 30, "all are dead letters")
    letters = client.peek("poison.dlq", 100)
    assert sorted(one.payload for one in letters) == sorted(numbered(30))
    assert client.redrive(name, dry_run=True) == 30
    assert client.redrive(name, max_messages=10) == 10
    assert [three.client(index).describe_subscription(name).dead for index in range(3)] == [20] * 3
    assert client.redrive("poison.dlq") == 20
    assert sorted(drain(client, name, 30)) == sorted(numbered(30))
    assert client.redrive(name, dry_run=True) == 0


def test_a_reject_reaches_every_leader(three: Cluster) -> None:
    name = "hopeless"
    three.client(0).create_queue(name, partitions=3)
    client = three.client(1)
    client.publish_many(name, numbered(30))
    held = []
    while len(held) < 30:
        held += client.receive(name, 30, wait="20s")
    client.reject(name, held, error="broken")  # leases of all leaders in one call
    assert client.describe_subscription(name).dead == 30
    assert sorted(one.payload for one in client.peek("hopeless.dlq", 100)) == sorted(numbered(30))


def test_peek_pending_purge_seek_cancel_and_status(three: Cluster) -> None:
    name = "tended"
    three.client(0).create_queue(name, partitions=3)
    client = three.client(1)
    stored = client.publish_many(name, numbered(30))
    assert len(client.peek(name, 100)) == 30
    assert sum(len(part.states.get("ready", ())) for part in client.pending(name)) == 30
    later = client.publish(name, b"later", delay="1h")
    for index in range(3):
        status = three.client(index).message_status(name, later.id)
        assert [one.state for one in status.subscriptions] == ["delayed"]
    assert client.cancel(name, [later.id]) == 1
    assert client.purge(name) == 30
    assert client.receive(name) == []
    client.seek(name, "earliest")
    assert len(stored) == 30
    assert sorted(drain(client, name, 30)) == sorted(numbered(30))
    client.seek(name, "latest")
    assert client.describe_subscription(name).ready == 0


@pytest.mark.parametrize("guarantee", ["at-most-once", "exactly-once"])
def test_other_guarantees(three: Cluster, guarantee: str) -> None:
    name = f"guarantee-{guarantee}"
    three.client(0).create_topic(name, partitions=3)
    three.client(0).create_subscription(
        f"{name}-s", topics=[name], guarantee=guarantee, start="earliest"
    )
    client = three.client(2)
    client.publish_many(name, numbered(60))
    got: list[bytes] = []
    while len(got) < 60:
        messages = client.receive(f"{name}-s", 20, wait="20s")
        assert messages
        got += [one.payload for one in messages]
        if guarantee == "exactly-once":
            client.ack(f"{name}-s", messages)
    assert sorted(got) == sorted(numbered(60))
    assert client.receive(f"{name}-s") == []


def test_keys_keep_their_order(three: Cluster) -> None:
    name = "by-key"
    three.client(0).create_topic(name, partitions=3)
    three.client(0).create_subscription(
        f"{name}-s", topics=[name], ordering="key", start="earliest"
    )
    client = three.client(0)
    with client.producer(name) as producer:
        for n in range(90):
            producer.send(str(n), key=str(n % 9))
    seen: dict[str, list[int]] = {}
    done = 0
    while done < 90:
        messages = three.client(done % 3).receive(f"{name}-s", 7, wait="20s")
        assert messages
        for one in messages:
            seen.setdefault(one.key.decode(), []).append(int(one.payload))
        client.ack(f"{name}-s", messages)
        done += len(messages)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
