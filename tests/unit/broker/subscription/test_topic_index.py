"""The index of subscriptions by topic gives what a look at all of them would give."""

from __future__ import annotations

import random

from quiver.broker.subscription.catalog import SubscriptionRecord, covers
from quiver.broker.subscription.topic_index import TopicIndex
from quiver.model.subscription import SubscriptionSettings

TOPICS = ["orders", "orders.eu", "orders.us", "bills", "__audit", "s1.dlq"]
WANTED = [*TOPICS, "orders.*", "*", "__*", "b*"]


def record(number: int, name: str, *topics: str) -> SubscriptionRecord:
    settings = SubscriptionSettings(topics=list(topics))
    return SubscriptionRecord(name=name, number=number, settings=settings, created_us=0, starts={})


def _covers(one: SubscriptionRecord, topic: str) -> bool:
    return covers(one.name, one.settings, topic)


def test_whatever_changes_it_finds_those_that_read_a_topic() -> None:
    chance = random.Random(7)
    index, known = TopicIndex[SubscriptionRecord](_covers), dict[str, SubscriptionRecord]()
    for number in range(400):
        name = f"s{chance.randrange(12)}"
        old = known.pop(name, None)
        new = None
        if chance.random() < 0.7:
            topics = chance.sample(WANTED, chance.randrange(1, 4))
            new = known[name] = record(number, name, *topics)
        index.update(old, new)
        for topic in TOPICS:
            found = [one.name for one in index.on_topic(topic)]
            all_of_them = sorted(known.values(), key=lambda one: one.number)
            assert found == [one.name for one in all_of_them if _covers(one, topic)]


def test_nothing_is_kept_of_what_is_gone() -> None:
    index = TopicIndex[SubscriptionRecord](_covers)
    one = record(1, "s1", "orders", "b*")
    index.update(None, one)
    index.update(one, None)
    assert index.on_topic("orders") == index.on_topic("bills") == []
    assert not index._by_topic
    assert not index._with_pattern
