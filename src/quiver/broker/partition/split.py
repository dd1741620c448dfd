"""Splits a partition while it is in use: half of its key range moves to a new partition, in order.

The leader stops accepting batches with keys, waits until everything before is committed, and saves the
handover for the new partition. Then it changes the topic's layout in one commit of the metadata store,
which succeeds only while it still leads. So a crash leaves either no split or a complete one. Batches
that were routed by the old layout are refused from then on, and producers route them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from quiver.broker.partition.partitions import Partitions, Place
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.cluster.metadata.store import Expect, Put
from quiver.errors import (
    MetadataError,
    NotLeader,
    PartitionUnavailable,
    StaleLayout,
    TopicNotFound,
)
from quiver.model.clock import Clock
from quiver.model.layout import Split, middle_of, split_after

_AGAIN_S = 0.5

logger = structlog.get_logger()


class PartitionSplitter:
    def __init__(self, topics: TopicCatalog, partitions: Partitions, clock: Clock) -> None:
        self._topics = topics
        self._partitions = partitions
        self._clock = clock
        self._held: set[Place] = set()
        self._turn = asyncio.Lock()
        self._closed = False

    def close(self) -> None:
        """Nothing is published any more: what is not known of a split, the next start will know."""
        self._closed = True

    def refusal(self, record: TopicRecord, index: int, layout: int) -> StaleLayout | None:
        """Why a batch that was routed by a layout may not be stored; 0: it was not routed.

        Where the layout has changed, its number is given: no copy of the batch that is still on its
        way will be stored either. While that is being decided, no number is.
        """
        if not layout:
            return None
        if layout < record.layout and layout < record.changed_in(index):
            return StaleLayout(layout=record.layout)
        if (record.number, index) in self._held:
            return StaleLayout("the partition is being split; try again")
        return None

    async def split(self, topic: str, index: int, layout: int) -> tuple[TopicRecord, Split, bool]:
        """Split a partition; the topic then, the split, and whether it was made now.

        One that has been split since ``layout`` is not split again: whoever asks twice has it once.
        """
        async with self._turn:
            record = self._topics.get(topic)
            await self._partitions.get(record, index)
            record = self._topics.get(topic)
            made = split_after(record.splits, index, layout)
            if made is not None:
                return record, made, False
            middle_of(record.first_hashes, index)
            place = (record.number, index)
            self._held.add(place)
            try:
                record = await self._split_held(record, index)
            finally:
                self._held.discard(place)
            made = split_after(record.splits, index, layout)
            assert made is not None, "it was split"
            return record, made, True

    async def follow(self, record: TopicRecord, split: Split) -> TopicRecord:
        """Split a mirrored topic as its source was split; ``NotLeader`` unless this node may."""
        async with self._turn:
            term = self._partitions.placement.term(record, split.parent)

            async def also(
                old: TopicRecord, new: TopicRecord
            ) -> Sequence[tuple[Expect, Put | None]]:
                if new.splits == old.splits:
                    return ()
                return await self._topics.hooks.on_split(new, split.parent, term)

            return await self._topics.split(record, split.parent, split.offset, also)

    async def _split_held(self, record: TopicRecord, index: int) -> TopicRecord:
        partition = await self._partitions.get(record, index)
        term = self._partitions.placement.term(record, index)
        if partition.failure is not None:
            raise NotLeader(f"this node is not the leader of partition {index} of {record.name!r}")
        offset = await partition.export_handover()

        async def also(old: TopicRecord, new: TopicRecord) -> Sequence[tuple[Expect, Put | None]]:
            if new.splits == old.splits:
                return ()
            return await self._topics.hooks.on_split(new, index, term)

        try:
            return await self._topics.split(record, index, offset, also)
        except MetadataError as error:
            return await self._settled(record, index, error)

    async def _settled(self, record: TopicRecord, index: int, error: MetadataError) -> TopicRecord:
        """Nobody knows whether the commit was made, or will be: hold on until it is certain."""
        while not self._closed:
            try:
                known = await self._topics.touch(record.name)
            except TopicNotFound:
                break
            except MetadataError as again:
                logger.warning(
                    "the outcome of a split is not known",
                    topic=record.name,
                    partition=index,
                    error=again.message,
                )
                await self._clock.sleep(_AGAIN_S)
                continue
            is_same = known.number == record.number
            if is_same and split_after(known.splits, index, record.layout) is not None:
                return known
            break
        raise PartitionUnavailable(
            f"partition {index} of {record.name!r} was not split: {error.message}"
        ) from error
