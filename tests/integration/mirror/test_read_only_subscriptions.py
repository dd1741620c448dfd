"""What another cluster delivers is not changed here: seek, purge, redrive, cancel and settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import quiver
from tests.integration.client_node import ThreadNode
from tests.integration.mirror.nodes import copied, messages, wait_same
from tests.serving import eventually

Change = Callable[[quiver.Client], object]
CHANGES: dict[str, Change] = {
    "seek": lambda client: client.seek("emails", "latest"),
    "purge": lambda client: client.purge("emails"),
    "redrive": lambda client: client.redrive("emails"),
    "redrive of the dead letters": lambda client: client.redrive("emails.dlq"),
    "counting what a redrive would send": lambda client: client.redrive("emails", dry_run=True),
    "alter": lambda client: client.alter_subscription("emails", visibility="5m"),
}


def mirrored(source: ThreadNode, there: quiver.Client, here: quiver.Client) -> None:
    there.create_queue("emails", max_deliveries=1)
    there.publish_many("emails", [b"1", b"2", b"3"])
    here.create_mirror("eu", source.url, "emails*", with_subscriptions=True)
    eventually(copied(here, "eu", "emails"), "the queue is copied")
    eventually(copied(here, "eu", "emails.dlq"), "its dead letters are copied")
    eventually(
        lambda: {"emails", "emails.dlq"} <= {one.name for one in here.list_subscriptions()},
        "the subscriptions are copied",
    )


def test_delivery_state_is_changed_where_it_is_delivered_and_here_after_a_promote(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        mirrored(source, there, here)
        for said, change in CHANGES.items():
            with pytest.raises(quiver.ReadOnlySubscription, match="mirror 'eu'") as refused:
                change(here)
            assert refused.value.code == "read_only_subscription", said
            assert refused.value.details["mirror"] == "eu"
            assert not refused.value.retryable
        here.promote_topics("emails*")
        for said, change in CHANGES.items():
            with pytest.raises(
                quiver.ReadOnlySubscription, match="was moved to cluster"
            ) as refused:
                change(there)
            assert "moved_to" in refused.value.details, said
            change(here)


def test_a_scheduled_message_is_cancelled_where_it_was_published(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_queue("emails")
        later = there.publish("emails", b"later", delay="1h").id
        assert later is not None
        here.create_mirror("eu", source.url, "emails", with_subscriptions=True)
        eventually(copied(here, "eu", "emails"), "the queue is copied")
        with pytest.raises(quiver.ReadOnlyTopic, match="mirror 'eu'"):
            here.cancel("emails", later)
        here.promote_topics("emails")
        with pytest.raises(quiver.ReadOnlyTopic, match="was moved"):
            there.cancel("emails", later)
        assert here.cancel("emails", later)


def test_a_subscription_of_this_cluster_on_a_copy_is_changed_as_any(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        mirrored(source, there, here)
        here.create_subscription("report", topics=["emails"], start="earliest")
        assert here.purge("report") == 3
        here.seek("report", "earliest")
        assert len(here.receive("report", max_messages=10, wait=5)) == 3


def test_a_pattern_that_also_covers_a_moved_topic_is_still_changed(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        mirrored(source, there, here)
        there.create_topic("other")
        there.create_subscription("all", topics=["*"], start="earliest")
        there.publish("other", b"4")
        here.promote_topics("emails*")
        assert there.purge("all") == 1


def test_a_copied_queue_is_not_deleted_while_a_mirror_would_copy_it_again(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        mirrored(source, there, here)
        with pytest.raises(quiver.ReadOnlySubscription, match="mirror 'eu'") as refused:
            here.delete_subscription("emails")
        assert refused.value.details == {"subscription": "emails", "mirror": "eu"}
        assert "emails" in {one.name for one in here.list_topics()}
        here.delete_mirror("eu")
        here.delete_subscription("emails")
        assert "emails" not in {one.name for one in here.list_topics()}


def test_a_copied_subscription_that_was_deleted_at_the_source_is_deleted_here(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        mirrored(source, there, here)
        there.create_subscription("audit", topics=["emails"])
        eventually(lambda: "audit" in {one.name for one in here.list_subscriptions()}, "copied")
        there.delete_subscription("audit")

        def is_deleted() -> bool:
            try:
                here.delete_subscription("audit")
            except quiver.ReadOnlySubscription:
                return False
            return True

        eventually(is_deleted, "the mirror knows that the source has it no more")
        assert "audit" not in {one.name for one in here.list_subscriptions()}


def test_a_copied_topic_that_is_deleted_here_is_copied_anew(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_topic("orders")
        there.publish("orders", b"one")
        here.create_mirror("eu", source.url, "orders")
        wait_same(source.url, target.url, "orders")
        here.delete_topic("orders")
        wait_same(source.url, target.url, "orders")
        assert [payload for _, payload in messages(here, "orders")] == [b"one"]
