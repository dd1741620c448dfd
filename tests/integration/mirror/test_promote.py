"""Subscriptions travel with their topics, and consumers go on after a promote."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

import quiver
from tests.integration.client_node import ThreadNode
from tests.integration.mirror.nodes import copied, messages, wait_same
from tests.serving import eventually


def mirrored(source: ThreadNode, here: quiver.Client, topics: str) -> None:
    here.create_mirror("eu", source.url, topics, with_subscriptions=True)


def wait_state(here: quiver.Client, there: quiver.Client, topic: str) -> None:
    """Wait until the delivery state here was taken after this call began."""
    began = there.describe_node().uptime_s

    def is_new() -> bool:
        now = there.describe_node().uptime_s
        info = here.describe_mirror("eu")
        parts = [part for one in info.topics if one.name == topic for part in one.partitions]
        return bool(parts) and all(
            part.lag_messages == 0
            and part.state_lag_s is not None
            and part.state_lag_s < now - began
            for part in parts
        )

    eventually(is_new, "the delivery state is copied")


def drained(client: quiver.Client, name: str, count: int) -> list[bytes]:
    """Everything that a subscription delivers, acknowledged: so many messages, and no more."""
    found: list[bytes] = []
    while len(found) < count:
        got = client.receive(name, max_messages=100, wait=10)
        assert got, f"{len(found)} of {count}"
        found += [one.payload for one in got]
        client.ack(name, [one.receipt for one in got])
    assert client.receive(name, wait=0.2) == []
    return found


def test_after_a_promote_a_queue_goes_on_where_it_stopped(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_queue("emails")
        there.publish_many("emails", [b"%d" % i for i in range(20)])
        mirrored(source, here, "emails*")
        first = there.receive("emails", max_messages=5, wait=5)
        there.ack("emails", [one.receipt for one in first])
        eventually(copied(here, "eu", "emails"), "the queue is copied")
        (done,) = here.promote_topics("emails")
        assert (done.is_fenced, done.is_complete, done.error) == (True, True, "")
        assert drained(here, "emails", 15) == [b"%d" % i for i in range(5, 20)]
        here.publish("emails", b"new")
        assert drained(here, "emails", 1) == [b"new"]
        with pytest.raises(quiver.ReadOnlyTopic, match="was moved to cluster") as refused:
            there.publish("emails", b"lost")
        assert "moved_to" in refused.value.details
        assert there.receive("emails", wait=0.2) == []


def test_what_is_acknowledged_later_is_copied_later(source: ThreadNode, target: ThreadNode) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_queue("emails")
        there.publish_many("emails", [b"%d" % i for i in range(30)])
        mirrored(source, here, "emails*")
        for _ in range(3):
            got = there.receive("emails", max_messages=5, wait=5)
            there.ack("emails", [one.receipt for one in got])
            eventually(copied(here, "eu", "emails"), "the queue is copied")
            wait_state(here, there, "emails")
        source.stop()
        here.promote_topics("emails", timeout="1s")
        assert drained(here, "emails", 15) == [b"%d" % i for i in range(15, 30)]


def test_a_copied_queue_shows_what_a_promote_would_deliver(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_queue("emails", max_deliveries=1)
        there.publish_many("emails", [b"%d" % i for i in range(20)])
        there.publish("emails", b"later", delay="1h")
        mirrored(source, here, "emails*")
        got = there.receive("emails", max_messages=7, wait=5)
        there.ack("emails", [one.receipt for one in got[:4]])
        there.nack("emails", [got[4].receipt])
        eventually(
            lambda: there.describe_subscription("emails").dead == 1, "there is a dead letter"
        )
        eventually(copied(here, "eu", "emails"), "the queue is copied")
        eventually(copied(here, "eu", "emails.dlq"), "its dead letters are copied")
        wait_state(here, there, "emails")
        wait_state(here, there, "emails.dlq")
        ours, theirs = here.describe_subscription("emails"), there.describe_subscription("emails")
        assert (ours.ready, ours.delayed, ours.leased, ours.dead, ours.unseen) == (13, 1, 2, 1, 0)
        assert ours.partitions == theirs.partitions
        lag = [one for one in here.metrics().splitlines() if "subscription_lag_messages{" in one]
        assert [one.split()[-1] for one in lag if '"emails"' in one] == ["16"]
        assert here.receive("emails", wait=0.1) == []


def test_attempts_delays_and_dead_letters_travel(source: ThreadNode, target: ThreadNode) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_queue("jobs", max_deliveries=3)
        there.publish("jobs", b"failed once")
        there.publish("jobs", b"rejected")
        there.publish("jobs", b"late", delay="1h")
        got = {one.payload: one for one in there.receive("jobs", max_messages=2, wait=5)}
        there.nack("jobs", [got[b"failed once"].receipt], delay=0)
        there.reject("jobs", [got[b"rejected"].receipt], error="bad")
        eventually(lambda: there.describe_subscription("jobs").dead == 1, "it is a dead letter")
        mirrored(source, here, "jobs*")
        eventually(copied(here, "eu", "jobs.dlq"), "the dead letters are copied")
        here.promote_topics("jobs*")
        (again,) = here.receive("jobs", max_messages=10, wait=5)
        assert (again.payload, again.deliveries) == (b"failed once", 2)
        assert here.describe_subscription("jobs").delayed == 1
        assert [one.payload for one in here.receive("jobs.dlq", wait=5)] == [b"rejected"]


def test_positions_of_a_group_travel(source: ThreadNode, target: ThreadNode) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("events", partitions=2)
        there.create_subscription("etl", topics=["events"], start="earliest", ordering="partition")
        for number in range(40):
            there.publish("events", b"%d" % number, partition=number % 2)
        mirrored(source, here, "events")
        read: list[bytes] = []
        with there.consumer("etl") as consumer:
            for message in consumer:
                read.append(message.payload)
                message.ack()
                if len(read) == 10:
                    break
        eventually(copied(here, "eu", "events"), "the topic is copied")
        here.promote_topics("events")
        with here.consumer("etl") as consumer:
            for message in consumer:
                read.append(message.payload)
                message.ack()
                if len(read) == 40:
                    break
        assert sorted(read) == sorted(b"%d" % i for i in range(40))


def test_a_copied_subscription_delivers_nothing_before_the_promote(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_queue("emails")
        there.publish("emails", b"one")
        mirrored(source, here, "emails*")
        wait_same(source.url, target.url, "emails")
        eventually(
            lambda: "emails" in {one.name for one in here.list_subscriptions()}, "it is copied"
        )
        assert here.receive("emails", wait=0.5) == []
        assert [one.payload for one in there.receive("emails", wait=5)] == [b"one"]


def test_a_receipt_from_before_a_promote_is_stale_at_the_source_after_it(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_queue("emails")
        there.publish("emails", b"one")
        mirrored(source, here, "emails*")
        eventually(copied(here, "eu", "emails"), "the queue is copied")
        (got,) = there.receive("emails", wait=5)
        (done,) = here.promote_topics("emails", timeout="60s")
        assert done.is_complete
        with pytest.raises(quiver.StaleReceipt):
            there.ack("emails", got.receipt)


def test_a_promote_without_the_source_goes_on_with_what_was_copied(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_queue("emails")
        there.publish_many("emails", [b"%d" % i for i in range(10)])
        mirrored(source, here, "emails*")
        got = there.receive("emails", max_messages=3, wait=5)
        there.ack("emails", [one.receipt for one in got])
        eventually(copied(here, "eu", "emails"), "the queue is copied")
        wait_state(here, there, "emails")
        source.stop()
        (done,) = here.promote_topics("emails", timeout="1s")
        assert not done.is_fenced
        assert done.error
        assert drained(here, "emails", 7) == [b"%d" % i for i in range(3, 10)]
        here.publish("emails", b"new")
        assert messages(here, "emails")[-1][1] == b"new"


def test_many_topics_are_promoted_in_time_though_their_source_is_silent(
    source: ThreadNode, target: ThreadNode
) -> None:
    names = [f"orders.{number}" for number in range(12)]
    with (
        quiver.Client(source.url) as there,
        quiver.Client(target.url) as here,
        socket.create_server(("127.0.0.1", 0)) as silent,  # it takes connections and says nothing
    ):
        for name in names:
            there.create_topic(name)
        here.create_mirror("eu", source.url, "orders.*")
        for name in names:
            eventually(copied(here, "eu", name), f"{name} is copied")
        here.alter_mirror("eu", source=f"quiver://127.0.0.1:{silent.getsockname()[1]}")
        found = here.promote_topics("orders.*", timeout="4s")  # the client waits 30 s longer
        assert sorted(one.name for one in found) == sorted(names)
        assert all(one.error and not one.is_fenced for one in found)
        here.publish(names[-1], b"new")


def test_producers_and_transactions_of_both_clusters_are_kept_apart(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        here.create_mirror("eu", source.url, "orders")
        for number in range(20):
            there.publish("orders", b"eu %d" % number)
        with there.transaction() as committed:
            committed.publish("orders", b"eu committed")
        left = there.transaction()
        left.__enter__()
        left.publish("orders", b"eu open")
        wait_same(source.url, target.url, "orders")
        source.stop()
        here.promote_topics("orders", timeout="1s")
        for number in range(20):
            here.publish("orders", b"us %d" % number)
        with here.transaction() as committed:
            committed.publish("orders", b"us committed")
        expected = [b"eu %d" % i for i in range(20)] + [b"eu committed"]
        expected += [b"us %d" % i for i in range(20)] + [b"us committed"]
        eventually(
            lambda: [one for _, one in messages(here, "orders")] == expected,
            "the transaction of the source is aborted, and all others count",
        )


def test_a_promote_of_a_paused_mirror_does_not_stop_a_source_whose_rest_cannot_come(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        there.publish("orders", b"copied")
        here.create_mirror("eu", source.url, "orders")
        wait_same(source.url, target.url, "orders")
        here.alter_mirror("eu", paused=True)
        eventually(lambda: here.describe_mirror("eu").state == "paused", "it is paused")
        there.publish("orders", b"not copied")
        (done,) = here.promote_topics("orders", timeout="2s")
        assert (done.is_fenced, done.is_complete) == (False, False)
        assert "nothing was fenced" in done.error
        there.publish("orders", b"the source goes on")
        assert [payload for _, payload in messages(here, "orders")] == [b"copied"]


def test_a_promote_waits_for_what_is_behind_an_open_transaction_which_is_not_committed_any_more(
    source: ThreadNode, target: ThreadNode
) -> None:
    with (
        quiver.Client(source.url) as there,
        quiver.Client(target.url) as here,
        ThreadPoolExecutor(1) as thread,
    ):
        there.create_topic("orders")
        mirrored(source, here, "orders")
        eventually(copied(here, "eu", "orders"), "the topic is copied")
        tx = there.transaction()
        tx.begin()
        tx.publish("orders", b"in the transaction")
        eventually(lambda: is_held_back(there, "orders"), "the transaction has begun")
        there.publish("orders", b"behind it")
        promoting = thread.submit(here.promote_topics, "orders", timeout="60s")
        eventually(lambda: there.describe_topic("orders").moved_to, "the source is fenced")
        with pytest.raises(quiver.TransactionAborted, match="was moved to cluster"):
            tx.commit()
        (done,) = promoting.result()
        assert (done.is_fenced, done.is_complete, done.error) == (True, True, "")
        assert [payload for _, payload in messages(here, "orders")] == [b"behind it"]


def test_a_promote_that_does_not_wait_for_an_open_transaction_says_so_and_how_long_it_may_take(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        mirrored(source, here, "orders")
        eventually(copied(here, "eu", "orders"), "the topic is copied")
        tx = there.transaction()
        tx.begin()
        tx.publish("orders", b"in the transaction")
        eventually(lambda: is_held_back(there, "orders"), "the transaction has begun")
        (done,) = here.promote_topics("orders", timeout="500ms")
        tx.abort()
    assert (done.is_fenced, done.is_complete) == (True, False)
    assert "after 0.5 s a transaction was still open in partition 0 of the source" in done.error
    assert "60 s unless it was given more" in done.error


def is_held_back(client: quiver.Client, topic: str) -> bool:
    return any(one.has_open_transactions for one in client.describe_topic(topic).partitions)
