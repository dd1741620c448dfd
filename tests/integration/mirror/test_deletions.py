"""What is deleted at the source: with the option it goes here as well, and without it stays."""

from __future__ import annotations

import pytest

import quiver
from tests.integration.client_node import ThreadNode
from tests.integration.mirror.nodes import copied
from tests.serving import eventually


def names(client: quiver.Client) -> tuple[set[str], set[str]]:
    """Topics and subscriptions."""
    topics = {one.name for one in client.list_topics()}
    return topics, {one.name for one in client.list_subscriptions()}


@pytest.mark.parametrize("deletes", [True, False])
def test_queues_and_subscriptions_go_with_those_of_the_source_if_that_is_asked_for(
    source: ThreadNode, target: ThreadNode, deletes: bool
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        there.create_queue("emails", max_deliveries=0)
        there.create_topic("orders")
        there.create_subscription("audit", topics=["orders"])
        here.create_mirror("eu", source.url, "*", with_subscriptions=True, with_deletions=deletes)
        for topic in ("emails", "orders"):
            eventually(copied(here, "eu", topic), f"{topic} is copied")
        eventually(lambda: {"emails", "audit"} <= names(here)[1], "subscriptions are copied")
        here.create_subscription("own", topics=["orders"])
        there.delete_subscription("emails")
        there.delete_subscription("audit")
        there.create_topic("later")
        eventually(copied(here, "eu", "later"), "the source was looked at since")
        if deletes:
            eventually(
                lambda: names(here) == ({"orders", "later"}, {"own"}), "they are deleted here"
            )
        assert names(here)[1] == {"own"} | (set() if deletes else {"emails", "audit"})


def test_a_subscription_that_reads_a_promoted_topic_stays(
    source: ThreadNode, target: ThreadNode
) -> None:
    with quiver.Client(source.url) as there, quiver.Client(target.url) as here:
        for topic in ("orders", "invoices"):
            there.create_topic(topic)
        there.create_subscription("audit", topics=["orders", "invoices"])
        here.create_mirror("eu", source.url, "*", with_subscriptions=True, with_deletions=True)
        for topic in ("orders", "invoices"):
            eventually(copied(here, "eu", topic), f"{topic} is copied")
        eventually(lambda: "audit" in names(here)[1], "the subscription is copied")
        here.promote_topics("orders", fence=False)
        there.delete_subscription("audit")
        there.create_topic("later")
        eventually(copied(here, "eu", "later"), "the source was looked at since")
        assert "audit" in names(here)[1]
