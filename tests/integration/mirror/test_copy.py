"""Mirrors between nodes on this machine: exact copies that take no publishes."""

from __future__ import annotations

import time

import pytest

import quiver
from quiver.edge.mirror.partition_puller import WAIT_S
from tests.integration.client_node import ThreadNode
from tests.integration.mirror.nodes import copied, entries, messages, wait_same
from tests.serving import eventually


def test_a_copy_has_the_bytes_offsets_times_and_ids_of_its_source(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders", partitions=2)
        there.publish_many("orders", [b"before %d" % i for i in range(500)])
        here.create_mirror("eu", source.url, "orders")
        wait_same(source.url, target.url, "orders", 2)
        there.publish("orders", {"id": 1}, key="a", headers={"x": "y"})
        wait_same(source.url, target.url, "orders", 2)
        assert len(entries(target.url, "orders", 0)) > 0
        assert messages(here, "orders") == messages(there, "orders")
        assert len(messages(here, "orders")) == 501


def test_messages_keep_their_ids_whatever_the_order_of_the_names_of_their_topics(
    source: ThreadNode, target: ThreadNode
) -> None:
    names = ("orders", "events", "invoices")
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        for name in names:
            there.create_topic(name)
            there.publish(name, b"one")
        here.create_mirror("eu", source.url, "*")
        for name in names:
            wait_same(source.url, target.url, name)
        assert [messages(here, name) for name in names] == [messages(there, name) for name in names]


def test_a_copy_of_a_topic_without_messages_lacks_nothing_from_the_start(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        here.create_mirror("eu", source.url, "orders")
        began = time.monotonic()
        eventually(copied(here, "eu", "orders"), "nothing is lacking")
        assert time.monotonic() - began < WAIT_S


def test_a_copy_takes_no_publishes_and_names_its_source(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        there.publish("orders", b"one")
        here.create_mirror("eu", source.url, "orders")
        wait_same(source.url, target.url, "orders")
        with pytest.raises(quiver.ReadOnlyTopic, match="'orders' of mirror 'eu'") as refused:
            here.publish("orders", b"two")
        assert refused.value.details["mirror"] == "eu"
        assert refused.value.code == "read_only_topic"
        with pytest.raises(quiver.ReadOnlyTopic):
            here.alter_topic("orders", retention={"age": "1d"})


def test_a_copy_follows_settings_splits_and_what_comes_later(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        here.create_mirror("eu", source.url, "orders*")
        for number in range(50):
            there.publish("orders", b"%d" % number, key=f"k{number}")
        there.split_partition("orders", 0)
        for number in range(50):
            there.publish("orders", b"after %d" % number, key=f"k{number}")
        there.alter_topic("orders", retention={"age": "3d"})
        there.create_topic("orders.late", partitions=3)
        there.publish_many("orders.late", [b"x"] * 30)
        wait_same(source.url, target.url, "orders.late", 3)
        eventually(
            lambda: len(here.describe_topic("orders").partitions) == 2, "the split is followed"
        )
        wait_same(source.url, target.url, "orders", 2)
        ours, theirs = here.describe_topic("orders"), there.describe_topic("orders")
        assert [one.first_hash for one in ours.partitions] == [
            one.first_hash for one in theirs.partitions
        ]
        assert ours.layout == theirs.layout
        eventually(
            lambda: here.describe_topic("orders").settings.retention.age_s == 3 * 86_400,
            "settings are followed",
        )


def test_transactions_are_copied_with_their_outcome(source: ThreadNode, target: ThreadNode) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        here.create_mirror("eu", source.url, "orders")
        with there.transaction() as committed:
            committed.publish("orders", b"counts")
        aborted = there.transaction()
        aborted.__enter__()
        aborted.publish("orders", b"never")
        wait_same(source.url, target.url, "orders")
        assert [payload for _, payload in messages(here, "orders")] == [b"counts"]
        aborted.abort()
        there.publish("orders", b"later")
        wait_same(source.url, target.url, "orders")
        assert [payload for _, payload in messages(here, "orders")] == [b"counts", b"later"]
        assert messages(here, "orders") == messages(there, "orders")


def test_a_copy_goes_on_after_either_side_was_restarted(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        here.create_mirror("eu", source.url, "orders")
        there.publish_many("orders", [b"%d" % i for i in range(100)])
        wait_same(source.url, target.url, "orders")
        source.stop()
        source.start()
        there.publish_many("orders", [b"%d" % i for i in range(100, 200)])
        wait_same(source.url, target.url, "orders")
        target.stop()
        there.publish_many("orders", [b"%d" % i for i in range(200, 300)])
        target.start()
        wait_same(source.url, target.url, "orders")
        assert [one for _, one in messages(here, "orders")] == [b"%d" % i for i in range(300)]


def test_prefixed_copies_stand_beside_local_topics_and_never_travel_in_a_circle(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as eu, quiver.Client(target.url) as us:
        eu.create_topic("orders")
        us.create_topic("orders")
        us.create_mirror("eu", source.url, "*", rename="{cluster}.{topic}")
        eu.create_mirror("us", target.url, "*", rename="{cluster}.{topic}")
        eu.publish("orders", b"from eu")
        us.publish("orders", b"from us")
        us.create_subscription("all", topics=["*orders"], start="earliest")
        eventually(copied(us, "eu", "eu.orders"), "eu.orders is copied")
        eventually(copied(eu, "us", "us.orders"), "us.orders is copied")
        eventually(lambda: len(messages(us, "eu.orders")) == 1, "the message is there")
        got: set[bytes] = set()
        while len(got) < 2:
            got |= {one.payload for one in us.receive("all", max_messages=10, wait=5)}
        assert got == {b"from eu", b"from us"}
        eventually(
            lambda: "eu.orders" in {one.source for one in eu.describe_mirror("us").topics},
            "the loop is seen",
        )
        there = {one.source: one.error for one in eu.describe_mirror("us").topics}
        assert "come from this cluster" in there["eu.orders"]
        assert {one.name for one in eu.list_topics()} == {"orders", "us.orders"}
        assert {one.name for one in us.list_topics()} == {"orders", "eu.orders"}


def test_a_promoted_copy_of_another_name_does_not_come_back(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as eu, quiver.Client(target.url) as us:
        eu.create_topic("orders")
        eu.publish("orders", b"from eu")
        us.create_mirror("eu", source.url, "orders", rename="{cluster}.{topic}")
        eventually(copied(us, "eu", "eu.orders"), "eu.orders is copied")
        us.promote_topics("eu.orders", fence=False)
        us.create_topic("events")
        eu.create_mirror("us", target.url, "*", rename="{cluster}.{topic}")
        wait_named(eu, "us.events")
        eventually(
            lambda: "eu.orders" in {one.source for one in eu.describe_mirror("us").topics},
            "it is seen",
        )
        there = {one.source: one.error for one in eu.describe_mirror("us").topics}
        assert "come from this cluster" in there["eu.orders"]
        assert {one.name for one in eu.list_topics()} == {"orders", "us.events"}


def test_a_topic_that_a_mirror_no_longer_names_is_no_longer_copied(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        for name in ("events", "orders"):
            there.create_topic(name)
            there.publish(name, b"1")
        here.create_mirror("eu", source.url, ["events", "orders"])
        for name in ("events", "orders"):
            wait_same(source.url, target.url, name)
        here.alter_mirror("eu", topics=["orders"])

        def error_of_events() -> str:
            return {one.name: one.error for one in here.describe_mirror("eu").topics}["events"]

        eventually(lambda: "does not copy it any more" in error_of_events(), "it is described")
        for name in ("events", "orders"):
            there.publish(name, b"2")
        wait_same(source.url, target.url, "orders")
        assert [one for _, one in messages(here, "events")] == [b"1"]
        here.alter_mirror("eu", topics=["*"])
        wait_same(source.url, target.url, "events")
        here.alter_mirror("eu", topics=["orders"])
        eventually(lambda: "does not copy it any more" in error_of_events(), "it is described")
        (promoted,) = here.promote_topics("events")
        assert "does not copy it any more" in promoted.error
        there.publish("events", b"3")  # its source was not stopped


def test_a_name_that_is_taken_is_left_alone(source: ThreadNode, target: ThreadNode) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        there.publish("orders", b"theirs")
        here.create_topic("orders")
        here.publish("orders", b"ours")
        here.create_mirror("eu", source.url, "orders")
        eventually(
            lambda: any(one.error for one in here.describe_mirror("eu").topics), "it is reported"
        )
        (found,) = here.describe_mirror("eu").topics
        assert "no copy of it" in found.error
        here.publish("orders", b"more")
        assert [one for _, one in messages(here, "orders")] == [b"ours", b"more"]


def test_a_loop_is_refused_when_it_is_set_up(source: ThreadNode, target: ThreadNode) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        here.create_mirror("eu", source.url, "orders", rename="{cluster}.{topic}")
        wait_named(here, "eu.orders")
        with pytest.raises(quiver.MirrorLoop, match="at the source is a copy"):
            there.create_mirror("us", target.url, "eu.orders")
        with pytest.raises(quiver.MirrorLoop, match="is this cluster"):
            here.create_mirror("self", target.url, "*", rename="{cluster}.{topic}")
        assert [one.name for one in here.list_mirrors()] == ["eu"]
        assert there.list_mirrors() == []


def wait_named(client: quiver.Client, topic: str) -> None:
    eventually(lambda: topic in {one.name for one in client.list_topics()}, f"{topic} is created")
