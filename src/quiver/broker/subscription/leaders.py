"""Which partitions a subscription covers, and which nodes lead them."""

from __future__ import annotations

from quiver.broker.delivery.lease_token import TokenSigner
from quiver.broker.partition.placement import Placement
from quiver.broker.subscription.catalog import SubscriptionCatalog, SubscriptionRecord, covers
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import NotLeader, ReadOnlySubscription, SubscriptionNotFound
from quiver.model.subscription import Guarantee, Ordering, SubscriptionSettings


class SubscriptionLeaders:
    def __init__(
        self,
        catalog: SubscriptionCatalog,
        topics: TopicCatalog,
        placement: Placement,
        signer: TokenSigner,
    ) -> None:
        self.catalog = catalog
        self.topics = topics
        self.placement = placement
        self._signer = signer

    def is_group(self, name: str) -> bool:
        return self.catalog.get(name).settings.ordering is Ordering.PARTITION

    def is_to_be_settled(self, name: str) -> bool:
        """Whether consumers hold what they get until they settle it."""
        return self.catalog.get(name).settings.guarantee is not Guarantee.AT_MOST_ONCE

    def _leaders(self, name: str) -> dict[tuple[str, int], str | None]:
        """Of each partition, the address of the node that leads it; ``None``: this one.

        Partitions that nobody leads are left out.
        """
        placement, settings = self.placement, self.catalog.get(name).settings
        leaders: dict[tuple[str, int], str | None] = {}
        for topic in self.covered(name, settings):
            for index in range(len(topic.first_hashes)):
                if placement.leads(topic, index):
                    leaders[topic.name, index] = None
                elif (address := placement.leader(topic, index)) is not None:
                    leaders[topic.name, index] = address
        return leaders

    def delivers(self, name: str, number: int, index: int) -> bool:
        """Whether a subscription delivers this partition of the topic with this number, on whatever node.

        Not if another cluster does: then leases that were given here have ended.
        """
        topic, record = self.topics.numbered(number), self.catalog.get(name)
        return (
            topic is not None
            and index < len(topic.first_hashes)
            and covers(name, record.settings, topic.name)
            and record.delivers(topic)
        )

    def require_led(self, name: str) -> None:
        """``NotLeader`` if nobody leads one of its partitions: what concerns all must wait for it."""
        missing = self.places(self.catalog.get(name)) - self._leaders(name).keys()
        if missing:
            topic, index = min(missing)
            raise NotLeader(f"partition {index} of {topic!r} has no leader now")

    def require_delivering(self, name: str) -> None:
        """``ReadOnlySubscription`` if another cluster delivers for a subscription.

        What this cluster changed in one that is copied would be lost, and not even be seen.
        """
        record = self.catalog.get(name)
        covered = self.covered(name, record.settings)
        held = [one for one in covered if not record.delivers(one)]
        if not held or (not record.mirror and len(held) < len(covered)):
            return
        topic = held[0]
        if topic.source is not None:
            raise ReadOnlySubscription(
                f"{name!r} is a copy, as its topic {topic.name!r} is one of {topic.source}: "
                "change it there, or promote the topic",
                subscription=name,
                topic=topic.name,
                mirror=topic.source.mirror,
                source=topic.source.topic,
            )
        raise ReadOnlySubscription(
            f"{name!r} delivers nothing here, as its topic {topic.name!r} was moved to "
            f"{topic.moved_to}: change it there",
            subscription=name,
            topic=topic.name,
            moved_to=topic.moved_to,
        )

    def leaders(self, name: str) -> list[str | None]:
        """The nodes that lead partitions of a subscription, each once; ``None``: this one."""
        return list(dict.fromkeys(self._leaders(name).values()))

    def by_leader(self, name: str, partitions: list[str]) -> dict[str | None, list[str] | None]:
        """Which of these partitions each node leads."""
        leaders = {
            f"{topic}/{index}": leader for (topic, index), leader in self._leaders(name).items()
        }
        found: dict[str | None, list[str] | None] = {}
        for partition in partitions:
            if partition in leaders:
                group = found.setdefault(leaders[partition], [])
                assert group is not None
                group.append(partition)
        return found

    def coordinator(self, name: str) -> str | None:
        """The node that decides who reads what: it leads the first partition; ``None``: this one."""
        topics = sorted(
            self.covered(name, self.catalog.get(name).settings), key=lambda topic: topic.number
        )
        placement = self.placement
        if not topics or placement.leads(topics[0], 0):
            return None
        address = placement.leader(topics[0], 0)
        if address is None:
            raise NotLeader(f"partition 0 of {topics[0].name!r} has no leader now")
        return address

    def coordinates(self, name: str) -> bool:
        """Whether this node does what one node alone is to do for a subscription."""
        try:
            return self.catalog.has(name) and self.coordinator(name) is None
        except NotLeader:
            return False

    def leader_of_lease(self, lease: bytes) -> str | None:
        """The node that a lease can be settled with; ``None``: this one."""
        token = self._signer.verify(lease)
        topic = self.topics.numbered(token.topic)
        if topic is None or self.placement.leads(topic, token.partition):
            return None
        address = self.placement.leader(topic, token.partition)
        if address is None:
            raise NotLeader(f"partition {token.partition} of {topic.name!r} has no leader now")
        return address

    def named_in(self, lease: bytes) -> str:
        """The subscription that a lease is of."""
        number = self._signer.verify(lease).subscription
        record = self.catalog.registry.numbered(number)
        if record is None:
            raise SubscriptionNotFound("the subscription of this lease was deleted")
        return record.name

    def covered(self, name: str, settings: SubscriptionSettings) -> list[TopicRecord]:
        """The topics that a subscription reads; only a pattern makes it look at all topics."""
        if any("*" in wanted for wanted in settings.topics):
            found = [one for one in self.topics.topics() if covers(name, settings, one.name)]
        else:
            found = self.topics.named(dict.fromkeys(settings.topics))
        return sorted(found, key=lambda topic: topic.number)

    def places(self, record: SubscriptionRecord) -> set[tuple[str, int]]:
        """Every partition that the subscription reads, wherever it is."""
        return {
            (topic.name, index)
            for topic in self.covered(record.name, record.settings)
            for index in range(len(topic.first_hashes))
        }
