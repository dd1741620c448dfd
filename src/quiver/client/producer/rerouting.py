"""Batches that were filled by a layout that is no more, divided by the one that took its place.

Only what was routed moves: messages that the user put into a partition, and those without a key, an
id or a number, stay where they are. Messages keep their order within each partition.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from quiver import arrow_compute as pc
from quiver.client.producer.delivery import BatchPromise
from quiver.client.producer.pending_batch import PendingBatch
from quiver.client.transport.cluster import TopicLayout
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import encode_record_batch
from quiver.model.schema import schema_of
from quiver.model.topic import Compression


def changed_partitions(old: TopicLayout, new: TopicLayout) -> frozenset[int]:
    """Those of the old layout's partitions that have another range in the new one."""
    ranges = new.router.ranges
    return frozenset(
        partition for partition, span in old.router.ranges.items() if ranges.get(partition) != span
    )


def divided(
    batch: PendingBatch,
    partition: int,
    old: TopicLayout,
    new: TopicLayout,
    compression: Compression,
) -> list[PendingBatch]:
    """The batch, if all of it belongs to one partition, else one for each that has a part of it."""
    if batch.encoded is None or not batch.is_routed:
        return [batch]
    rows = _rows(batch.encoded)
    groups: dict[int, list[int]] = {}
    for row, place in enumerate(_places(rows, batch.pinned, partition, old, new)):
        groups.setdefault(place, []).append(row)
    if len(groups) == 1:
        (batch.promise.partition,) = groups
        return [batch]
    parts = [_part(batch, place, rows, members, compression) for place, members in groups.items()]
    parts[0].size = batch.size - sum(part.size for part in parts[1:])
    batch.promise.divide(
        [(part.promise, members) for part, members in zip(parts, groups.values(), strict=True)]
    )
    return parts


def _rows(encoded: UnstoredBatch) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(encoded.body), schema_of(encoded.columns))


def _places(
    rows: pa.RecordBatch, pinned: set[int], partition: int, old: TopicLayout, new: TopicLayout
) -> Iterator[int]:
    """The partition of each row: by what had brought it to the one where it is."""
    columns = [_column(rows, name) for name in ("key", "dedup_id", "sequence")]
    for row in range(len(rows)):
        place = partition
        if row not in pinned:
            for column in columns:
                value = column[row]
                if value is not None and old.router.partition(value) == partition:
                    place = new.router.partition(value)
                    break
        yield place


def _column(rows: pa.RecordBatch, name: str) -> list[bytes | None]:
    """The values of a column as they are hashed."""
    if name not in rows.schema.names:
        return [None] * len(rows)
    values = rows.column(name).to_pylist()
    if name == "dedup_id":
        return [None if one is None else one.encode() for one in values]
    if name == "sequence":
        return [None if one is None else one.to_bytes(8, "little", signed=True) for one in values]
    return list(values)


def _part(
    batch: PendingBatch,
    partition: int,
    rows: pa.RecordBatch,
    members: list[int],
    compression: Compression,
) -> PendingBatch:
    """A batch of some of the rows, with their share of the bytes."""
    promise = BatchPromise(batch.promise.topic, partition, batch.promise.keeper)
    part, chosen = PendingBatch(promise, batch.opened), rows.take(pa.array(members))
    part.encoded, part.builder = encode_record_batch(chosen, compression), None
    part.count, part.is_routed = len(members), True
    part.size = batch.size * len(members) // batch.count
    part.pinned = {at for at, row in enumerate(members) if row in batch.pinned}
    if batch.user_sequence is not None:
        part.user_sequence = pc.max(chosen.column("sequence")).as_py()
    return part
