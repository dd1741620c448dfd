"""What a cluster gives to those that copy its topics: entries as they are stored, and delivery state.

Only reads. An entry is given once it is committed, so that a change of leader never takes it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b

import msgspec
import pyarrow as pa

from quiver.broker.delivery.machine.snapshot import encode_snapshot
from quiver.broker.mirror.log_copy import NO_EPOCH
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions
from quiver.broker.partition.reader import FETCH_BYTES_MAX, FETCH_WAIT_S_MAX
from quiver.broker.subscription.catalog import SubscriptionCatalog
from quiver.broker.subscription.directory import SubscriptionDirectory
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import (
    InvalidRequest,
    LeaderChanged,
    LogClosed,
    MirrorDiverged,
    NotEnoughReplicas,
    PartitionUnavailable,
)
from quiver.log.disk.disk_threads import RunBlocking
from quiver.log.log import Log
from quiver.model.batch import Bytes, StoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import Offset
from quiver.model.mirror.entry_mark import mark_of
from quiver.model.mirror.settings import MirrorCompression
from quiver.protocol import DeliveryStateFetched, FetchDeliveryState, FetchLog, LogFetched

_SAMPLE_BYTES = 64 << 10
_WORTH = 0.9
"""An answer whose beginning does not shrink to this share is sent as it is."""


class MirrorSource:
    """``run_checks`` is for work that only takes a while."""

    def __init__(
        self,
        topics: TopicCatalog,
        subscriptions: SubscriptionCatalog,
        partitions: Partitions,
        directory: SubscriptionDirectory,
        clock: Clock,
        *,
        run_checks: RunBlocking,
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._directory = directory
        self._clock = clock
        self._run_checks = run_checks

    @property
    def version(self) -> str:
        """Changes with every topic and subscription. Nodes that know the same have the same."""
        return f"{self._topics.registry.digest}.{self._subscriptions.registry.digest}"

    # ------------------------------------------------------------------ entries

    async def wait_for_data(self, request: FetchLog) -> None:
        """Wait until there is something to fetch; the log is compared first."""
        if request.offset < 0 or request.bytes_max < 1 or request.wait_ms < 0:
            raise InvalidRequest("offset and wait must not be negative, and bytes_max at least 1")
        record, partition = await self._partition(request)
        await self._require_same(record, partition.log, request)
        offset = Offset(max(request.offset, partition.log.start_offset))
        wait_s = min(request.wait_ms / 1000, FETCH_WAIT_S_MAX)
        await partition.log.wait_beyond(offset, wait_s)

    async def fetch(self, request: FetchLog) -> tuple[LogFetched, Sequence[Bytes]]:
        """Entries from an offset on, or from the start of the log if that is later."""
        record, partition = await self._partition(request)
        log = partition.log
        epoch = self._partitions.placement.term(record, request.partition)
        offset = Offset(max(request.offset, log.start_offset))
        try:
            entries = await log.read(offset, min(request.bytes_max, FETCH_BYTES_MAX))
        except LogClosed as closed:
            self._topics.get(request.topic)  # it may have been deleted meanwhile
            raise PartitionUnavailable() from closed
        end = log.next_offset
        left = 0
        if entries and entries[-1].next_offset < end:
            left = await log.size_from(entries[-1].next_offset)
        compression, body = await self._packed(entries, request.compression)
        reply = LogFetched(
            start_offset=log.start_offset,
            next_offset=end,
            read_to=entries[-1].next_offset if entries else offset,
            epoch=epoch,
            time_us=self._clock.time_us(),
            size=sum(entry.size() for entry in entries),
            compression=compression,
            left_bytes=left,
        )
        return reply, body

    async def _partition(
        self, request: FetchLog | FetchDeliveryState
    ) -> tuple[TopicRecord, Partition]:
        record = self._topics.get(request.topic)
        if request.number and record.number != request.number:
            raise MirrorDiverged(
                f"topic {record.name!r} was deleted at the source and created again",
                topic=record.name,
            )
        return record, await self._partitions.get(record, request.partition)

    async def _require_same(self, record: TopicRecord, log: Log, request: FetchLog) -> None:
        """``MirrorDiverged`` if the caller has an entry that is not in the log.

        Whether one counts that is written and not committed is not known yet: ``NotEnoughReplicas``.
        """
        last, end = request.last, log.next_offset
        epoch = self._partitions.placement.term(record, request.partition)
        if request.epoch == epoch and request.offset <= end:
            return
        if end < request.offset <= log.staged_offset:
            raise NotEnoughReplicas(
                f"the last entries of partition {request.partition} of {record.name!r} are not on enough "
                "replicas of the source yet"
            )
        if request.offset > end:
            raise MirrorDiverged(
                f"partition {request.partition} of {record.name!r} ends at offset {end:,} at the "
                f"source, and its copy at {request.offset:,}",
                next_offset=end,
            )
        if last is None and request.epoch != NO_EPOCH:
            raise LeaderChanged("the partition has another leader: name the last entry")
        if last is None or last.base_offset < log.stored_from:
            return
        found = await log.read(last.base_offset, 1, stored=True)
        if not found or mark_of(found[0]) != last:
            raise MirrorDiverged(
                f"partition {request.partition} of {record.name!r} has another message at offset "
                f"{last.base_offset:,} at the source than its copy",
                offset=last.base_offset,
            )

    async def _packed(
        self, entries: Sequence[StoredBatch], compression: str
    ) -> tuple[str, Sequence[Bytes]]:
        buffers = [buffer for entry in entries for buffer in entry.buffers()]
        if compression == MirrorCompression.ZSTD and buffers:
            packed = await self._run_checks(partial(_compressed, buffers))
            if packed is not None:
                return MirrorCompression.ZSTD, [packed]
        return MirrorCompression.NONE, buffers

    # ------------------------------------------------------------------ delivery state

    async def delivery_state(
        self, request: FetchDeliveryState, is_shown: Callable[[str], bool]
    ) -> tuple[DeliveryStateFetched, Sequence[Bytes]]:
        """The state of subscriptions of a partition, durable here, if the caller has another."""
        record, partition = await self._partition(request)
        names = {
            one.number: one.name
            for one in self._subscriptions.on_topic(record.name)
            if is_shown(one.name)
        }
        reply = DeliveryStateFetched(time_us=self._clock.time_us(), data_offset=0)
        if not names:
            return reply, ()
        state = await self._directory.state(record, request.partition, partition)
        underway = state.underway()
        taken = {
            names[number]: machine.state.snapshot()
            for number, machine in state.machines.items()
            if number in names
        }
        if underway is not None:
            await asyncio.shield(underway)
        encoded = await self._run_checks(
            lambda: {name: encode_snapshot(one) for name, one in taken.items()}
        )
        sums = {name: _digest(data) for name, data in encoded.items()}
        new = {
            name: data for name, data in encoded.items() if request.known.get(name) != sums[name]
        }
        return (
            msgspec.structs.replace(
                reply,
                data_offset=max((one.observed_to for one in taken.values()), default=0),
                sizes={name: len(data) for name, data in new.items()},
                digests=sums,
            ),
            list(new.values()),
        )


def _digest(data: bytes) -> int:
    """What tells two states apart. No checksum: a snapshot ends with its own, and so all would be alike."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") >> 1


def _compressed(buffers: Sequence[Bytes]) -> bytes | None:
    """The bytes compressed, if their beginning promises that this is worth it."""
    data = b"".join(buffers)
    codec = pa.Codec("zstd", compression_level=1)
    sample = data[:_SAMPLE_BYTES]
    if len(codec.compress(sample, asbytes=True)) > _WORTH * len(sample):
        return None
    packed: bytes = codec.compress(data, asbytes=True)
    return packed


def unpacked(body: Bytes, compression: str, size: int) -> Bytes:
    """The entries of an answer."""
    if compression == MirrorCompression.NONE:
        return body
    if compression != MirrorCompression.ZSTD or not 0 <= size <= 2 * FETCH_BYTES_MAX + (64 << 20):
        raise InvalidRequest(f"the source sent entries as {compression[:20]!r}, which is unknown")
    data: bytes = pa.Codec("zstd").decompress(body, decompressed_size=size, asbytes=True)
    return data


def snapshots_in(body: Bytes, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """The snapshots of an answer, by subscription."""
    found, at = {}, 0
    for name, size in sizes.items():
        found[name] = bytes(body[at : at + size])
        at += size
    return found
