"""Failback: the old source becomes a copy of what was its copy, and can be promoted again."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

import pytest

import quiver
from quiver.config import Limits
from quiver.model.message_id import parse_message_id
from tests.integration.client_node import ProcessNode, ThreadNode
from tests.integration.mirror.crashes import STEPS, crash
from tests.integration.mirror.nodes import copied, entries, messages, wait_same
from tests.integration.mirror.test_promote import drained, wait_state
from tests.serving import eventually


def payloads(name: str, count: int) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(count)]


def acked(client: quiver.Client, name: str, count: int) -> list[bytes]:
    """Take so many messages of a queue, and finish them."""
    found: list[bytes] = []
    while len(found) < count:
        got = client.receive(name, max_messages=count - len(found), wait=10)
        client.ack(name, [one.receipt for one in got])
        found += [one.payload for one in got]
    return found


def grouped(client: quiver.Client, count: int) -> list[bytes]:
    """Take so many messages as a member of a group, in order."""
    found: list[bytes] = []
    with client.consumer("etl") as consumer:
        for message in consumer:
            found.append(message.payload)
            message.ack()
            if len(found) == count:
                break
    return found


def follow(here: quiver.Client, mirror: str, source: str, *topics: str) -> None:
    """Let a cluster copy topics, also those that it was the source of."""
    here.create_mirror(mirror, source, list(topics), with_subscriptions=True, failback=True)
    for topic in topics:
        eventually(copied(here, mirror, topic), f"{topic} is a copy")


def test_after_a_fenced_promote_the_old_source_goes_on_as_a_copy_and_back_again(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as eu, quiver.Client(target.url) as us:
        eu.create_queue("orders", partitions=2)
        eu.create_subscription("etl", topics=["orders"], ordering="partition")
        eu.publish_many("orders", payloads("eu", 40))
        done, read = acked(eu, "orders", 10), grouped(eu, 15)
        us.create_mirror("eu", source.url, "orders", with_subscriptions=True)
        eventually(copied(us, "eu", "orders"), "orders is copied")
        assert us.promote_topics("orders")[0].is_complete
        us.publish_many("orders", payloads("us", 20))
        done += acked(us, "orders", 20)
        read += grouped(us, 15)
        ids = messages(us, "orders")

        follow(eu, "us", target.url, "orders")
        wait_same(source.url, target.url, "orders", 2)
        assert messages(eu, "orders") == ids
        assert not [one.name for one in eu.list_topics() if "diverged" in one.name]
        with pytest.raises(quiver.ReadOnlyTopic, match="'orders' of mirror 'us'"):
            eu.publish("orders", b"not here")
        assert eu.receive("orders", wait=0.2) == []
        assert eu.promote_topics("orders")[0].is_complete
        eu.publish_many("orders", payloads("eu again", 10))
        done += acked(eu, "orders", 10)
        read += grouped(eu, 15)

        us.alter_mirror("eu", failback=True)
        eventually(copied(us, "eu", "orders"), "orders is a copy again")
        wait_same(source.url, target.url, "orders", 2)
        assert us.promote_topics("orders")[0].is_complete
        done += drained(us, "orders", 30)
        read += grouped(us, 25)
        every = sorted(payloads("eu", 40) + payloads("us", 20) + payloads("eu again", 10))
        assert sorted(done) == every
        assert sorted(read) == every


def diverged(source: ThreadNode, target: ThreadNode, there: quiver.Client) -> None:
    """Let the source have messages that are not copied, and then be lost."""
    target.stop()
    for number in range(30):
        there.publish("orders", b"lost %d" % number, key=f"k{number}", headers={"n": str(number)})
    source.stop()
    target.start()


def test_what_was_never_copied_is_kept_aside(source: ThreadNode, target: ThreadNode) -> None:
    with quiver.Client(source.url) as eu, quiver.Client(target.url) as us:
        eu.create_queue("orders", partitions=2)
        eu.publish_many("orders", payloads("eu", 40))
        eu.create_subscription("etl", topics=["orders"], start="earliest", ordering="partition")
        us.create_mirror("eu", source.url, "orders", with_subscriptions=True)
        wait_same(source.url, target.url, "orders", 2)
        done, read = acked(eu, "orders", 10), grouped(eu, 15)
        wait_state(us, eu, "orders")
        diverged(source, target, eu)
        assert not us.promote_topics("orders", timeout="1s")[0].is_fenced
        us.publish_many("orders", payloads("us", 50))
        done += acked(us, "orders", 20)
        read += grouped(us, 30)

        source.start()
        before = {payload: one for one, payload in messages(eu, "orders")}
        assert acked(eu, "orders", 15)  # a worker that nobody told: all of that is delivered again
        follow(eu, "us", target.url, "orders")
        wait_same(source.url, target.url, "orders", 2)
        assert messages(eu, "orders") == messages(us, "orders")
        (aside,) = [one.name for one in eu.list_topics() if "diverged" in one.name]
        assert aside.startswith("orders.diverged-")
        (topic,) = eu.describe_mirror("us").topics
        assert topic.diverged_to == aside == eu.describe_topic("orders").diverged_to
        kept = {
            one.payload: one for one in eu.read(aside, start="earliest", end="latest").messages()
        }
        assert sorted(kept) == sorted(payloads("lost", 30))
        for payload, one in kept.items():
            was = parse_message_id(before[payload])
            place = (was.partition, was.offset, was.append_time)
            assert place == (one.partition, one.offset, parse_message_id(one.id).append_time)
            number = payload[5:].decode()
            assert (one.key, one.headers) == (f"k{number}".encode(), {"n": number})
        eu.publish(aside, b"it is a topic like any other")

        assert eu.promote_topics("orders")[0].is_complete
        done += drained(eu, "orders", 60)
        read += grouped(eu, 45)
        every = sorted(payloads("eu", 40) + payloads("us", 50))
        assert sorted(done) == every
        assert sorted(read) == every


def test_a_transaction_that_each_side_ended_in_its_own_way_is_told_apart(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as eu, quiver.Client(target.url) as us:
        eu.create_topic("orders")
        us.create_mirror("eu", source.url, "orders")
        eu.publish("orders", b"before")
        with eu.transaction() as opened:
            opened.publish("orders", b"copied")
            eventually(lambda: len(entries(source.url, "orders")) == 2, "it is stored")
            eu.publish("orders", b"beside it")
            wait_same(source.url, target.url, "orders")
            us.promote_topics("orders", fence=False)
            opened.publish("orders", b"never copied")
        us.publish("orders", b"in us")
        expected = [b"before", b"beside it", b"in us"]
        eventually(
            lambda: [one for _, one in messages(us, "orders")] == expected,
            "the copy of the transaction is aborted",
        )
        follow(eu, "us", target.url, "orders")
        wait_same(source.url, target.url, "orders")
        us.publish("orders", b"later")
        eventually(
            lambda: [one for _, one in messages(eu, "orders")] == [*expected, b"later"],
            "readers of the copy are not held back",
        )
        aside = eu.describe_topic("orders").diverged_to
        kept = [one for _, one in messages(eu, aside)]
        assert kept == [b"copied", b"beside it", b"never copied"]


def test_a_failback_that_is_promoted_before_its_end_is_over(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as eu, quiver.Client(target.url) as us:
        eu.create_topic("orders")
        eu.publish("orders", b"one")
        us.create_mirror("eu", source.url, "orders")
        wait_same(source.url, target.url, "orders")
        us.promote_topics("orders", fence=False)
        left = eu.transaction()  # the comparison waits for its end
        left.__enter__()
        left.publish("orders", b"open")
        eu.create_mirror("us", target.url, "orders", failback=True)
        eventually(
            lambda: any("is open" in one.error for one in eu.describe_mirror("us").topics),
            "it is under way",
        )
        with pytest.raises(quiver.ReadOnlyTopic, match="becomes a copy"):
            eu.publish("orders", b"refused")
        target.stop()
        (done,) = eu.promote_topics("orders")
        assert "not a copy yet" in done.error
        left.commit()
        eu.publish("orders", b"two")
        assert [one for _, one in messages(eu, "orders")] == [b"one", b"open", b"two"]
        target.start()
        us.alter_mirror("eu", failback=True)
        eventually(copied(us, "eu", "orders"), "the other one follows")
        wait_same(source.url, target.url, "orders")


def test_a_topic_that_retention_has_emptied_says_that_it_has_to_be_copied_anew(
    tmp_path: Path, target: ThreadNode
) -> None:
    source = ThreadNode(tmp_path / "quick", limits=Limits(retention_interval_s=0.1))
    source.start()
    try:
        with quiver.Client(source.url) as eu, quiver.Client(target.url) as us:
            eu.create_queue("orders", retention={"acked": True})
            eu.publish_many("orders", payloads("eu", 10))
            us.create_mirror("eu", source.url, "orders", with_subscriptions=True)
            wait_same(source.url, target.url, "orders")
            us.promote_topics("orders", fence=False)
            eu.publish_many("orders", payloads("lost", 10))
            acked(eu, "orders", 20)
            eventually(
                lambda: eu.describe_topic("orders").partitions[0].start_offset == 20,
                "retention excludes everything",
            )
            us.publish_many("orders", payloads("us", 30))
            eu.create_mirror("us", target.url, "orders", with_subscriptions=True, failback=True)
            eventually(
                lambda: any(
                    "delete the topic" in one.error for one in eu.describe_mirror("us").topics
                ),
                "it is reported",
            )
            eu.delete_subscription("orders")  # of a queue, the topic too
            eventually(copied(eu, "us", "orders"), "orders is a copy")
            wait_same(source.url, target.url, "orders")
            assert eu.promote_topics("orders")[0].is_complete
            assert drained(eu, "orders", 40) == payloads("eu", 10) + payloads("us", 30)
    finally:
        source.close()


def test_without_consent_the_topic_is_left_alone(source: ThreadNode, target: ThreadNode) -> None:
    with quiver.Client(source.url) as eu, quiver.Client(target.url) as us:
        eu.create_topic("orders")
        eu.publish("orders", b"one")
        us.create_mirror("eu", source.url, "orders")
        wait_same(source.url, target.url, "orders")
        us.promote_topics("orders", fence=False)
        eu.create_mirror("us", target.url, "orders")
        eventually(lambda: bool(eu.describe_mirror("us").topics), "it is seen")
        (found,) = eu.describe_mirror("us").topics
        assert "set failback on the mirror" in found.error
        eu.publish("orders", b"two")
        assert [one for _, one in messages(eu, "orders")] == [b"one", b"two"]


def test_a_topic_that_has_nothing_to_do_with_it_never_becomes_a_copy(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as eu, quiver.Client(target.url) as us:
        eu.create_topic("orders")
        us.create_topic("orders")
        us.publish("orders", b"ours")
        us.create_mirror("eu", source.url, "orders", failback=True)
        eventually(lambda: bool(us.describe_mirror("eu").topics), "it is seen")
        (found,) = us.describe_mirror("eu").topics
        assert "no copy of it" in found.error
        assert [one for _, one in messages(us, "orders")] == [b"ours"]


@pytest.mark.process
def test_a_node_that_is_killed_at_any_step_goes_on_where_it_was(
    tmp_path: Path, target: ThreadNode
) -> None:
    source = ProcessNode(tmp_path / "source")
    source.start()
    try:
        with quiver.Client(source.url) as eu, quiver.Client(target.url) as us:
            eu.create_queue("orders")
            eu.publish_many("orders", payloads("eu", 40))
            us.create_mirror("eu", source.url, "orders", with_subscriptions=True)
            wait_same(source.url, target.url, "orders")
            done = acked(eu, "orders", 10)
            wait_state(us, eu, "orders")
            target.stop()
            eu.publish_many("orders", payloads("lost", 30))
            source.kill()
            target.start()
            us.promote_topics("orders", fence=False)
            us.publish_many("orders", payloads("us", 50))

            source.start(partial(crash, "begin", "before"))
            eu.create_mirror("us", target.url, "orders", with_subscriptions=True, failback=True)
            source.wait()
            for step, moment in [*product(STEPS, ("before", "after"))][1:]:
                source.start(partial(crash, step, moment))
                source.wait()
            source.start()
            wait_same(source.url, target.url, "orders")
            aside = eu.describe_topic("orders").diverged_to
            assert [one for _, one in messages(eu, aside)] == payloads("lost", 30)
            assert eu.promote_topics("orders")[0].is_complete
            done += drained(eu, "orders", 80)
            assert sorted(done) == sorted(payloads("eu", 40) + payloads("us", 50))
    finally:
        source.close()
