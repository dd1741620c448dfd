"""Which subscriptions read a topic, found without looking at all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from quiver.model.subscription import SubscriptionSettings


class Subscribed(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def settings(self) -> SubscriptionSettings: ...


S = TypeVar("S", bound=Subscribed)


class TopicIndex(Generic[S]):
    """``covers`` says whether a subscription with a pattern reads a topic."""

    def __init__(self, covers: Callable[[S, str], bool]) -> None:
        self._covers = covers
        self._by_topic: dict[str, dict[str, S]] = {}
        """Subscriptions that name the topic, by their own names."""
        self._with_pattern: dict[str, S] = {}

    def update(self, old: S | None, new: S | None) -> None:
        """A subscription was there and is another now; ``None`` for one that is not there."""
        if old is not None:
            self._with_pattern.pop(old.name, None)
            for topic in old.settings.topics:
                readers = self._by_topic.get(topic, {})
                readers.pop(old.name, None)
                if not readers:
                    self._by_topic.pop(topic, None)
        if new is not None:
            for topic in new.settings.topics:
                self._by_topic.setdefault(topic, {})[new.name] = new
            if any("*" in topic for topic in new.settings.topics):
                self._with_pattern[new.name] = new

    def on_topic(self, topic: str) -> list[S]:
        """Those that read the topic, in the order in which they were made."""
        found = dict(self._by_topic.get(topic, {}))
        found |= {name: one for name, one in self._with_pattern.items() if self._covers(one, topic)}
        return sorted(found.values(), key=lambda one: one.number)
