"""Copies entries from one partition to another that the same node leads, without a client in between.

The bytes stay as they are. Each entry becomes the next batch of a producer, and is checked, stored and
acknowledged as if that producer had published it. So a repeated copy adds nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from quiver.broker.partition.producers.in_flight import Placed
from quiver.broker.partition.reader import PartitionReader
from quiver.broker.publish.publisher import Publisher
from quiver.errors import InvalidRequest, OffsetOutOfRange, QuiverError, ShuttingDown, TopicNotFound
from quiver.model.batch import StoredBatch
from quiver.model.envelope import ProducerStamp, seal_batch
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.protocol import Copied, Copy

COPIED_ENTRIES_MAX = 1024
_READ_BYTES = 4 << 20


async def copy_entries(publisher: Publisher, reader: PartitionReader, request: Copy) -> Copied:
    """Returns when all of them are acknowledged; what is under way has the log's own bound."""
    if not 0 < len(request.offsets) <= COPIED_ENTRIES_MAX:
        raise InvalidRequest(f"one request copies 1 to {COPIED_ENTRIES_MAX:,} entries")
    await publisher.partition(request.topic, request.partition)  # before anything is read for it
    sequence, size = request.sequence, 0
    underway: list[asyncio.Future[Placed]] = []
    try:
        async for entry in _entries(reader, request):
            stamp = ProducerStamp(
                ProducerId(request.producer_id),
                ProducerEpoch(request.producer_epoch),
                Sequence(sequence),
            )
            batch = seal_batch(entry.body, entry.count, entry.columns, stamp)
            offer = publisher.offer_batch(request.topic, batch, partition=request.partition)
            await publisher.check(offer)
            partition = await publisher.partition(request.topic, request.partition)
            placed, _ = publisher.store(partition, offer)
            placed.add_done_callback(_failure)  # looked at, even if this is given up
            underway.append(placed)
            sequence += entry.count
            size += entry.size()
            await asyncio.sleep(0)  # others have their turn between two entries
    except QuiverError as error:
        # What failed before may be why: a gap is none if the batch before it was not stored.
        raise await _first_failure(underway) or error from None
    failure = await _first_failure(underway)
    if failure is not None:
        raise failure
    return Copied(entries=len(underway), messages=sequence - request.sequence, bytes=size)


async def _first_failure(underway: list[asyncio.Future[Placed]]) -> BaseException | None:
    """What went wrong first, once it is known of each; nothing is cancelled by waiting."""
    if underway:
        await asyncio.wait(underway)
    return next(filter(None, map(_failure, underway)), None)


def _failure(placed: asyncio.Future[Placed]) -> BaseException | None:
    return ShuttingDown() if placed.cancelled() else placed.exception()


async def _entries(reader: PartitionReader, request: Copy) -> AsyncIterator[StoredBatch]:
    """The entries that were asked for, in the order asked for."""
    wanted = iter(request.offsets)
    offset = next(wanted, None)
    while offset is not None:
        read = await reader.fetch(
            request.from_topic, request.from_partition, offset, bytes_max=_READ_BYTES
        )
        if read.topic_number != request.from_number:
            raise TopicNotFound(
                f"topic {request.from_topic!r} was deleted and created again",
                topic=request.from_topic,
            )
        if not read.entries or read.entries[0].base_offset != offset:
            raise OffsetOutOfRange(
                f"no entry of topic {request.from_topic!r} begins at offset {offset}",
                start_offset=read.start_offset,
                next_offset=read.next_offset,
            )
        for entry in read.entries:
            if entry.base_offset == offset:
                yield entry
                offset = next(wanted, None)
