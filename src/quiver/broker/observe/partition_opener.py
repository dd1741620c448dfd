"""Opens the partitions that this node leads, so that a sample shows what is in them.

Partitions are opened when they are first used. After a start nobody may have used them yet, and their
messages are there all the same. Each round opens as many as fit into a bounded time, and says which
are missing still. Those that nobody ever used are empty, and stay closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from quiver.aio import SingleFlight
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions, Place
from quiver.broker.subscription.catalog import SubscriptionCatalog
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import NotLeader, QuiverError

ROUND_S = 2.0
"""How long whoever asks for a sample waits for partitions that are opened from a slow disk."""
_PAUSE_S = 30.0
"""How long a partition that could not be opened is left alone."""
_SLICE = 500
"""After so many partitions that were looked at others have their turn."""

OpenState = Callable[[TopicRecord, int, Partition], Awaitable[None]]


class PartitionOpener:
    def __init__(
        self,
        topics: TopicCatalog,
        subscriptions: SubscriptionCatalog,
        partitions: Partitions,
        open_state: OpenState,
    ) -> None:
        """``open_state`` opens the delivery state of a partition that is open."""
        self._topics = topics
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._open_state = open_state
        self._opening: SingleFlight[Place, None] = SingleFlight()
        self._retry_at: dict[Place, float] = {}
        self._complete_at: tuple[int, int, int] | None = None
        self.unused: list[tuple[TopicRecord, int]] = []
        """Partitions that are empty and not open, as of the last round."""

    async def open_some(self) -> dict[Place, str]:
        """Open what is not open yet. What is still missing, with the names of the topics."""
        version = (
            self._topics.version,
            self._subscriptions.registry.version,
            self._partitions.placement.version,
        )
        if version == self._complete_at and self._is_unchanged():
            return {}
        missing: dict[Place, str] = {}
        unused: list[tuple[TopicRecord, int]] = []
        slow = set(self._opening)
        deadline = asyncio.get_running_loop().time() + ROUND_S
        for count, (record, index) in enumerate(self._led(), 1):
            place = record.number, index
            if self._partitions.is_unused(record, index):
                unused.append((record, index))
            elif not self._is_open(record, index) and (
                place in slow or not await self._open(record, index, deadline)
            ):
                missing[place] = record.name
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        self._complete_at, self.unused = None if missing else version, unused
        self._retry_at = {place: at for place, at in self._retry_at.items() if place in missing}
        return missing

    def _is_unchanged(self) -> bool:
        """Whether all that was used since the last round is open."""
        used = [one for one in self.unused if not self._partitions.is_unused(*one)]
        if used:
            self.unused = [one for one in self.unused if self._partitions.is_unused(*one)]
        return all(self._is_open(*one) for one in used)

    async def close(self) -> None:
        await self._opening.cancel()

    def _led(self) -> Iterator[tuple[TopicRecord, int]]:
        for record in list(self._topics.topics()):
            for index in self._partitions.led(record):
                yield record, index

    def _is_open(self, record: TopicRecord, index: int) -> bool:
        partition = self._partitions.ready(record, index)
        if partition is None:
            return False
        machines = () if partition.state is None else partition.state.machines
        return all(one.number in machines for one in self._subscriptions.on_topic(record.name))

    async def _open(self, record: TopicRecord, index: int, deadline: float) -> bool:
        """Whether it is open. If the time is over it is left for the next round."""
        place, now = (record.number, index), asyncio.get_running_loop().time()
        if now >= deadline or now < self._retry_at.get(place, now):
            return False
        try:
            async with asyncio.timeout_at(deadline):
                await self._opening.run(place, partial(self._open_both, record, index))
        except (NotLeader, TimeoutError):
            return False
        except QuiverError:
            self._retry_at[place] = now + _PAUSE_S
            return False
        return True

    async def _open_both(self, record: TopicRecord, index: int) -> None:
        partition = await self._partitions.get(record, index)
        await self._open_state(record, index, partition)
