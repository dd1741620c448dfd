"""The producers behind ``publish``: one for each topic, shared by all who publish at the same time.

The ones used last are kept, within a bound; one whose topic is gone is dropped, so that the next
publish looks the topic up again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

from quiver.client.producer import AsyncProducer
from quiver.errors import PartitionNotFound, QuiverError, TopicNotFound

KEPT_MAX = 256

_Key = tuple[str, str | None]


class _Shared:
    def __init__(self, producer: AsyncProducer) -> None:
        self.producer = producer
        self.users = 0


class SharedProducers:
    def __init__(self, make: Callable[[str, str | None], AsyncProducer]) -> None:
        self._make = make
        self._kept: OrderedDict[_Key, _Shared] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def producer(self, topic: str, acks: str | None) -> AsyncIterator[AsyncProducer]:
        key = (topic, acks)
        shared = self._kept.get(key)
        if shared is None:
            shared = self._kept[key] = _Shared(self._make(topic, acks))
            self._trim()
        else:
            self._kept.move_to_end(key)
        shared.users += 1
        try:
            yield shared.producer
        except (TopicNotFound, PartitionNotFound):
            if self._kept.get(key) is shared:
                del self._kept[key]
            raise
        finally:
            shared.users -= 1
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
        task = asyncio.create_task(_close_quietly(producer))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Wait for those that are being let go; the others are closed with the client."""
        if self._closing:
            await asyncio.wait(self._closing)


async def _close_quietly(producer: AsyncProducer) -> None:
    # Each publish was told what became of it.
    with contextlib.suppress(QuiverError):
        await producer.close()
