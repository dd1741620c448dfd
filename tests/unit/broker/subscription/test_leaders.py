"""Which topics a subscription reads, found without looking at all topics."""

from __future__ import annotations

from pathlib import Path

from quiver.broker.broker import Broker
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import open_broker


class Looked:
    """Counts how often somebody looks at all topics."""

    def __init__(self, topics: TopicCatalog) -> None:
        self.count = 0
        self._all = topics.topics

    def __call__(self) -> list[TopicRecord]:
        self.count += 1
        return self._all()


def names(broker: Broker, *topics: str) -> list[str]:
    settings = SubscriptionSettings(topics=list(topics))
    return [one.name for one in broker.leaders.covered("s", settings)]


@async_test
async def test_names_are_looked_up_and_only_patterns_look_at_all_topics(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        for name in ("orders", "orders.eu", "bills"):
            await broker.topics.create(name, TopicSettings())
        looked = Looked(broker.leaders.topics)
        broker.leaders.topics.topics = looked  # type: ignore[method-assign]
        assert names(broker, "bills", "orders", "bills", "missing") == ["orders", "bills"]
        assert looked.count == 0
        assert names(broker, "orders*", "bills") == ["orders", "orders.eu", "bills"]
        assert looked.count == 1


@async_test
async def test_a_topic_is_known_by_its_number_until_it_is_deleted(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        topics = broker.leaders.topics
        await broker.topics.create("orders", TopicSettings())
        first = topics.get("orders")
        assert topics.numbered(first.number) == first
        await broker.topics.delete("orders")
        assert topics.numbered(first.number) is None
        await broker.topics.create("orders", TopicSettings())
        assert topics.numbered(first.number) is None
        assert topics.numbered(topics.get("orders").number) is not None
