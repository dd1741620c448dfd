"""The producers behind ``publish``: one for each topic, shared by all who publish at the same time.

The ones used last are kept, within a bound; one whose topic is gone is dropped, so that the next
publish looks the topic up again.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType

from quiver.aio import TaskSet
from quiver.client.producer.producer import AsyncProducer
from quiver.errors import PartitionNotFound, QuiverError, TopicNotFound

KEPT_MAX = 256

_Key = tuple[str, str | None]


class _Shared:
    def __init__(self, producer: AsyncProducer) -> None:
        self.producer = producer
        self.users = 0


class _Use:
    """One user's hold on a shared producer. A class, since a generator costs several times as much."""

    __slots__ = ("_key", "_owner", "_shared")

    def __init__(self, owner: SharedProducers, key: _Key, shared: _Shared) -> None:
        self._owner = owner
        self._key = key
        self._shared = shared

    def __enter__(self) -> AsyncProducer:
        self._shared.users += 1
        return self._shared.producer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._shared.users -= 1
        self._owner._end(self._key, self._shared, error)


class SharedProducers:
    def __init__(self, make: Callable[[str, str | None], AsyncProducer]) -> None:
        self._make = make
        self._kept: OrderedDict[_Key, _Shared] = OrderedDict()
        self._closing = TaskSet()

    def producer(self, topic: str, acks: str | None) -> _Use:
        """The producer of a topic, for as long as the ``with`` block."""
        key = (topic, acks)
        shared = self._kept.get(key)
        if shared is None:
            shared = self._kept[key] = _Shared(self._make(topic, acks))
            self._trim()
        else:
            self._kept.move_to_end(key)
        return _Use(self, key, shared)

    def _end(self, key: _Key, shared: _Shared, error: BaseException | None) -> None:
        if isinstance(error, TopicNotFound | PartitionNotFound) and self._kept.get(key) is shared:
            del self._kept[key]
        if not shared.users and self._kept.get(key) is not shared:
            self._close(shared.producer)

    def _trim(self) -> None:
        """Let go of the ones that were used longest ago and that nobody is using."""
        for key in list(self._kept):
            if len(self._kept) <= KEPT_MAX:
                return
            if not self._kept[key].users:
                self._close(self._kept.pop(key).producer)

    def _close(self, producer: AsyncProducer) -> None:
        self._closing.start(_close_quietly(producer))

    async def close(self) -> None:
        """Wait for those that are being let go; the others are closed with the client."""
        await self._closing.wait()


async def _close_quietly(producer: AsyncProducer) -> None:
    # Each publish was told what became of it.
    with contextlib.suppress(QuiverError):
        await producer.close()
