"""The catalog of subscriptions in the metadata store: settings and start offsets.

A subscription starts at an offset in each partition that exists when it is created. Topics that match
its pattern later are read from their beginning.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import msgspec

from quiver.broker.subscription.topic_index import TopicIndex
from quiver.broker.topics.catalog import TopicRecord
from quiver.broker.topics.registry import (
    OnChange,
    RecordKind,
    Registry,
    changed_settings,
    ignore_change,
)
from quiver.cluster.metadata.store import MetadataStore
from quiver.errors import InvalidSetting, SubscriptionExists, SubscriptionNotFound
from quiver.model.clock import Clock
from quiver.model.ids import Offset
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import checked_name, is_internal

_KIND = RecordKind(
    noun="subscription",
    title="queue or subscription",
    prefix="subscriptions/",
    numbers="numbers/subscription",
    not_found=SubscriptionNotFound,
    exists=SubscriptionExists,
)
_FIXED = ("ordering", "guarantee", "fairness")


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata store holds of a subscription."""

    name: str
    number: int
    settings: SubscriptionSettings
    created_us: int
    starts: dict[str, int]
    """The first offset to deliver, by ``topic number/partition``; 0 where none is given."""
    is_queue: bool = False
    mirror: str = ""
    """The mirror that copies it, if one does. What is mirrored it delivers only after a promote."""

    def delivers(self, topic: TopicRecord) -> bool:
        """Whether it may deliver from a topic here: not what another cluster still delivers."""
        if topic.moved_to or topic.failback is not None:
            return False
        return not self.copies(topic)

    def copies(self, topic: TopicRecord) -> bool:
        """Whether a mirror keeps it where it is at the source of a topic."""
        return bool(topic.origin is not None and self.mirror)

    def start(self, topic: TopicRecord, partition: int) -> Offset:
        return Offset(self.starts.get(f"{topic.number}/{partition}", 0))


def dead_letter_topic(name: str, settings: SubscriptionSettings) -> str:
    return settings.dead_letter or f"{name}.dlq"


def covers(name: str, settings: SubscriptionSettings, topic: str) -> bool:
    """Whether a subscription reads a topic; no pattern leads it to its own dead letters, and only
    one that begins with ``__`` to the broker's own topics."""
    if topic in settings.topics:
        return True
    return topic != dead_letter_topic(name, settings) and any(
        "*" in wanted and fnmatchcase(topic, wanted) and is_internal(topic) <= is_internal(wanted)
        for wanted in settings.topics
    )


class SubscriptionCatalog:
    """``on_change`` is called when another node has made, changed or deleted a subscription."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        on_change: OnChange[SubscriptionRecord] = ignore_change,
    ) -> None:
        self._clock = clock
        self._index = TopicIndex[SubscriptionRecord](
            lambda record, topic: covers(record.name, record.settings, topic)
        )
        self.registry = self._registry = Registry(
            store, _KIND, SubscriptionRecord, on_change, self._index.update
        )
        self.on_topic = self._index.on_topic
        self.load = self._registry.load
        self.get = self._registry.get
        self.all = self._registry.all
        self.delete = self._registry.delete

    def has(self, name: str) -> bool:
        return self._registry.has(name)

    async def create(
        self,
        name: str,
        settings: SubscriptionSettings,
        starts: dict[str, int],
        *,
        is_queue: bool = False,
        mirror: str = "",
    ) -> SubscriptionRecord:
        """Add a subscription; ``SubscriptionExists`` if there is one of this name."""
        checked_name(name, "subscription")
        checked_name(dead_letter_topic(name, settings), "dead-letter topic")
        return await self._registry.create(
            name,
            lambda number: SubscriptionRecord(
                name=name,
                number=number,
                settings=settings,
                created_us=self._clock.time_us(),
                starts={place: offset for place, offset in starts.items() if offset},
                is_queue=is_queue,
                mirror=mirror,
            ),
        )

    async def adopt(self, name: str, mirror: str) -> SubscriptionRecord:
        """Let a mirror copy a subscription that was this cluster's own, or another mirror's."""
        return await self._registry.change(
            name, lambda record: msgspec.structs.replace(record, mirror=mirror)
        )

    async def alter(self, name: str, changes: dict[str, Any]) -> SubscriptionRecord:
        """Change some of a subscription's settings; the others stay."""

        def altered(record: SubscriptionRecord) -> SubscriptionRecord:
            settings = changed_settings(record.settings, changes)
            for setting in _FIXED:
                if getattr(settings, setting) != getattr(record.settings, setting):
                    raise InvalidSetting(
                        f"{setting} cannot be changed: create a new subscription",
                        setting=setting,
                    )
            checked_name(dead_letter_topic(name, settings), "dead-letter topic")
            return msgspec.structs.replace(record, settings=settings)

        return await self._registry.change(name, altered)
