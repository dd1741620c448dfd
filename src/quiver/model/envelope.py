"""The envelope: the fixed bytes in front of every batch, on disk and on the wire.

    prefix     magic, format version, envelope size, entry size, leader sum
    leader     base offset, append time, durable offset, leader epoch, hops
    producer   producer sum, count, body size, columns, flags, producer epoch, producer id, sequence

The producer sum (CRC-32C) covers the producer part after it and the body. The leader sum covers the
rest of the envelope, the producer sum included, so that giving a batch its offset never reads the
body, and no part of one entry can be taken for another's. The prefix keeps its place in every
format version: any reader can check an entry before it judges its version.

Hops are the clusters that an entry was copied from, one after the other; 0 where its producer published
it. A copy keeps the producer's part as it was sealed. Ids of producers are given out by each cluster, so the
id of a copied entry is read together with its hops: it is never taken for one of this cluster.

The durable offset is how far the log was known to be synced when the entry was written: recovery
uses it to tell a torn tail from rot in what was acknowledged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import msgspec
from crc32c import crc32c

from quiver.errors import CorruptLog, InvalidBatch, UnsupportedFormat
from quiver.model.batch import Bytes, StoredBatch, UnstoredBatch
from quiver.model.ids import (
    NO_PRODUCER,
    LeaderEpoch,
    Microseconds,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
)
from quiver.model.schema import ALL_COLUMNS, PAYLOAD
from quiver.model.transaction import TransactionId, producer_of, transaction_id

FORMAT_VERSION = 1
TRANSACTION_VERSION = 2
"""Of an entry that belongs to a transaction or ends one. Earlier versions of Quiver read version 1 alone,
so none takes such an entry for a message that counts."""
TRANSACTIONAL, MARKER, COMMITTED = 1, 2, 4
"""Flags of the producer's part. A batch of a transaction has the first. A marker, which ends transactions,
has the first two, and the third if they were committed."""
MAGIC = b"QVRE"
BATCH_BYTES_MAX = 64 << 20
"""The largest body a batch may have; no length field above it is believed."""
BATCH_COUNT_MAX = 1 << 20

HOPS_MAX = 15
"""More hops are not told apart."""
_HOPS_SHIFT = 39
"""Where the hops are in the id of a copied entry's producer. With its epoch it has 63 bits."""
_VERSIONS = (FORMAT_VERSION, TRANSACTION_VERSION)
_PREFIX = struct.Struct("<4sHHII")
_LEADER = struct.Struct("<qqqII")
_PRODUCER = struct.Struct("<IIIIIqq")
_SUM = struct.Struct("<I")
PREFIX_SIZE = _PREFIX.size
PRODUCER_SIZE = _SUM.size + _PRODUCER.size
ENVELOPE_SIZE = PREFIX_SIZE + _LEADER.size + PRODUCER_SIZE
_SUMMED_PREFIX = PREFIX_SIZE - _SUM.size
_PRODUCER_AT = ENVELOPE_SIZE - PRODUCER_SIZE
_ENVELOPE = struct.Struct("<4sHHIIqqqIIIIIIIIqq")
assert ENVELOPE_SIZE == _ENVELOPE.size == 88


class ProducerStamp(msgspec.Struct, frozen=True):
    """Which producer wrote a batch, and where it stands in that producer's sequence."""

    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: ProducerEpoch = ProducerEpoch(0)
    sequence: Sequence = Sequence(0)


UNSTAMPED = ProducerStamp()


def seal_batch(
    body: Bytes, count: int, columns: int, stamp: ProducerStamp = UNSTAMPED, flags: int = 0
) -> UnstoredBatch:
    """Make a batch of an Arrow IPC body: the producer's part of the envelope, with its checksum."""
    if not 0 < count <= BATCH_COUNT_MAX:
        raise InvalidBatch(f"a batch holds 1 to {BATCH_COUNT_MAX:,} messages, not {count:,}")
    if len(body) > BATCH_BYTES_MAX:
        raise InvalidBatch(f"a batch body is at most {BATCH_BYTES_MAX:,} bytes, not {len(body):,}")
    fields = _PRODUCER.pack(
        count, len(body), columns, flags, stamp.producer_epoch, stamp.producer_id, stamp.sequence
    )
    checksum = crc32c(body, crc32c(fields))
    return UnstoredBatch(
        head=_SUM.pack(checksum) + fields,
        body=body,
        count=count,
        columns=columns,
        producer_id=stamp.producer_id,
        producer_epoch=stamp.producer_epoch,
        sequence=stamp.sequence,
        flags=flags,
    )


def seal_marker(transactions: Iterable[TransactionId], *, is_committed: bool) -> UnstoredBatch:
    """What ends transactions in the log of a partition. It has no message, and takes one offset.

    The first is in the envelope, the others are in the body.
    """
    first, *others = transactions
    flags = TRANSACTIONAL | MARKER | (COMMITTED if is_committed else 0)
    body = struct.pack(f"<{len(others)}q", *others)
    return seal_batch(body, 1, 0, ProducerStamp(*producer_of(first)), flags)


def ended_by(marker: StoredBatch) -> list[TransactionId]:
    """The transactions that a marker ends."""
    first = transaction_id(marker.producer_id, marker.producer_epoch)
    if not marker.body:
        return [first]
    others = map(producer_of, struct.unpack(f"<{len(marker.body) // 8}q", marker.body))
    hops = marker.hops
    return [first, *(transaction_id(_producer_of(one, hops), epoch) for one, epoch in others)]


def seal_gap(count: int, noted: int = 0) -> UnstoredBatch:
    """Offsets without messages: a backup has them in the place of markers and aborted messages.

    ``noted`` is when a mirror found out that its source has none. No producer counts it as a sequence.
    """
    stamp = ProducerStamp(sequence=Sequence(noted))
    return seal_batch(b"", count, 0, stamp, flags=TRANSACTIONAL | MARKER)


def noted_time(gap: StoredBatch) -> Microseconds:
    """When a mirror found out about a gap; 0: it is not known."""
    return Microseconds(gap.sequence)


def is_hidden(entry: StoredBatch) -> bool:
    """Whether an entry, as a reader of committed messages gets it, has nothing that counts."""
    return bool(entry.flags & MARKER)


def open_batch(data: Bytes) -> UnstoredBatch:
    """Check bytes that a producer sent (its part of the envelope, then the body) and name them."""
    view = memoryview(data)
    if len(view) < PRODUCER_SIZE:
        raise InvalidBatch(f"a batch has at least {PRODUCER_SIZE} bytes, not {len(view)}")
    (checksum,) = _SUM.unpack_from(view)
    fields = _PRODUCER.unpack_from(view, _SUM.size)
    count, size, columns, flags, epoch, producer_id, sequence = fields
    head, body = bytes(view[:PRODUCER_SIZE]), view[PRODUCER_SIZE:]
    if size != len(body):
        raise InvalidBatch(f"the batch says its body has {size:,} bytes; it has {len(body):,}")
    if not 0 < count <= BATCH_COUNT_MAX:
        raise InvalidBatch(f"a batch holds 1 to {BATCH_COUNT_MAX:,} messages, not {count:,}")
    if columns & ~ALL_COLUMNS or not columns & PAYLOAD:
        raise InvalidBatch(f"the batch has columns that this version does not know: {columns:#x}")
    if flags & ~TRANSACTIONAL or (flags and producer_id == NO_PRODUCER):
        raise InvalidBatch(f"the batch has flags that this version does not know: {flags:#x}")
    if crc32c(body, crc32c(head[_SUM.size :])) != checksum:
        raise InvalidBatch("the batch does not match its checksum")
    return UnstoredBatch(
        head=head,
        body=body,
        count=count,
        columns=columns,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(epoch),
        sequence=Sequence(sequence),
        flags=flags,
    )


def store_batch(
    batch: UnstoredBatch,
    *,
    base_offset: Offset,
    epoch: LeaderEpoch,
    append_time: Microseconds,
    durable_offset: Offset,
) -> StoredBatch:
    """Give a batch its place in a log: the leader's part of the envelope, with its checksum."""
    body_size = len(batch.body)
    version = TRANSACTION_VERSION if batch.flags else FORMAT_VERSION
    prefix = _PREFIX.pack(
        MAGIC, version, ENVELOPE_SIZE, ENVELOPE_SIZE + body_size + (-body_size & 7), 0
    )
    rest = _LEADER.pack(base_offset, append_time, durable_offset, epoch, batch.hops) + batch.head
    checksum = crc32c(rest, crc32c(prefix[:_SUMMED_PREFIX]))
    return StoredBatch(
        base_offset=base_offset,
        count=batch.count,
        epoch=epoch,
        append_time=append_time,
        durable_offset=durable_offset,
        columns=batch.columns,
        producer_id=_producer_of(batch.producer_id, batch.hops),
        producer_epoch=batch.producer_epoch,
        sequence=batch.sequence,
        head=prefix[:_SUMMED_PREFIX] + _SUM.pack(checksum) + rest,
        body=batch.body,
        flags=batch.flags,
        hops=batch.hops,
    )


def copy_batch(entry: StoredBatch) -> UnstoredBatch:
    """What an entry of another cluster's log is stored as: its producer's bytes, one hop further."""
    head = bytes(memoryview(entry.head)[_PRODUCER_AT:])
    return UnstoredBatch(
        head=head,
        body=entry.body,
        count=entry.count,
        columns=entry.columns,
        producer_id=ProducerId(_PRODUCER.unpack_from(head, _SUM.size)[5]),
        producer_epoch=entry.producer_epoch,
        sequence=entry.sequence,
        flags=entry.flags,
        hops=min(entry.hops + 1, HOPS_MAX),
    )


def is_copied(producer: ProducerId) -> bool:
    """Whether a producer is one of another cluster, whose entries were copied."""
    return bool(producer >> _HOPS_SHIFT)


def _producer_of(producer: int, hops: int) -> ProducerId:
    """The id of a producer, which of a copied entry has the hops in it.

    They add up: a marker that a cluster wrote for a transaction that it copied has some in its id.
    """
    return ProducerId(producer + (hops << _HOPS_SHIFT) if hops and producer else producer)


def remark(entry: StoredBatch, durable_offset: Offset) -> StoredBatch:
    """The same entry with another durable mark: how far another log than its first was synced."""
    head = bytes(entry.head)
    place = entry.base_offset, entry.append_time, durable_offset, entry.epoch, entry.hops
    rest = _LEADER.pack(*place)
    rest += head[_PRODUCER_AT:]
    checksum = crc32c(rest, crc32c(head[:_SUMMED_PREFIX]))
    head = head[:_SUMMED_PREFIX] + _SUM.pack(checksum) + rest
    return msgspec.structs.replace(entry, head=head, durable_offset=durable_offset)


class BadEntry(Exception):
    """The bytes at this place are not a whole, intact entry."""


def entry_size_at(view: memoryview, at: int) -> int:
    """The size of the entry at ``at`` as its prefix claims it, or ``BadEntry``; nothing is summed."""
    if len(view) - at < ENVELOPE_SIZE:
        raise BadEntry("fewer bytes than an envelope has")
    magic, _, envelope_size, entry_size, _ = _PREFIX.unpack_from(view, at)
    if magic != MAGIC:
        raise BadEntry("no entry begins here")
    if not ENVELOPE_SIZE <= envelope_size <= entry_size <= 2 * BATCH_BYTES_MAX or entry_size % 8:
        raise BadEntry("the entry's size makes no sense")
    return int(entry_size)


def ends_by(view: memoryview, at: int, offset: Offset) -> bool:
    """Whether the entry at ``at`` seems to end at or before ``offset``, unchecked: to hop over it."""
    fields = _ENVELOPE.unpack_from(view, at)
    version, base_offset, count = fields[1], fields[5], fields[11]
    return bool(version in _VERSIONS and base_offset + count <= offset)


def columns_at(view: memoryview, at: int) -> int:
    """The columns of the entry at ``at`` as its envelope claims them, unchecked: to hop over it."""
    fields = _ENVELOPE.unpack_from(view, at)
    return int(fields[13]) if fields[1] in _VERSIONS else ALL_COLUMNS


def _checked_envelope(view: memoryview, at: int) -> tuple[Any, ...]:
    """The fields of the envelope at ``at``, once its leader sum is right and its version known."""
    entry_size_at(view, at)
    fields = _ENVELOPE.unpack_from(view, at)
    version, envelope_size, leader_sum = fields[1], fields[2], fields[4]
    summed = view[at + PREFIX_SIZE : at + envelope_size]
    if crc32c(summed, crc32c(view[at : at + _SUMMED_PREFIX])) != leader_sum:
        raise BadEntry("the leader's part does not match its checksum")
    if version not in _VERSIONS:
        raise UnsupportedFormat(
            f"an entry has format version {version} and this Quiver reads versions up to "
            f"{_VERSIONS[-1]}: use a newer Quiver",
            version=version,
        )
    return fields


def durable_offset_at(view: memoryview, at: int) -> tuple[Offset, Offset]:
    """Base offset and durable offset of the entry at ``at``, whose body may be damaged or cut."""
    fields = _checked_envelope(view, at)
    return Offset(fields[5]), Offset(fields[7])


def entry_at(view: memoryview, at: int) -> StoredBatch:
    """The intact entry at ``at``, as views of the given bytes.

    ``BadEntry`` if it is cut or any checksum is wrong; ``UnsupportedFormat`` if it is intact and of
    a version this code does not know.
    """
    fields = _checked_envelope(view, at)
    base_offset, append_time, durable_offset, epoch, hops = fields[5:10]
    checksum, count, body_size, columns, flags = fields[10:15]
    producer_epoch, producer_id, sequence = fields[15:18]
    if ENVELOPE_SIZE + body_size + (-body_size & 7) != fields[3]:
        raise BadEntry("the body's size does not fit the entry's")
    body_at = at + ENVELOPE_SIZE
    body = view[body_at : body_at + body_size]
    if len(view) - at < fields[3]:
        raise BadEntry("the entry is cut")
    if crc32c(body, crc32c(view[at + _PRODUCER_AT + _SUM.size : body_at])) != checksum:
        raise BadEntry("the body does not match its checksum")
    return StoredBatch(
        base_offset=Offset(base_offset),
        count=count,
        epoch=LeaderEpoch(epoch),
        append_time=Microseconds(append_time),
        durable_offset=Offset(durable_offset),
        columns=columns,
        producer_id=_producer_of(producer_id, hops),
        producer_epoch=ProducerEpoch(producer_epoch),
        sequence=Sequence(sequence),
        head=view[at:body_at],
        body=body,
        flags=flags,
        hops=hops,
    )


def entries_in(data: Bytes) -> list[StoredBatch]:
    """Every entry in bytes that came whole, as from a fetch; ``CorruptLog`` if one is not intact."""
    view = memoryview(data)
    entries, at = [], 0
    while at < len(view):
        try:
            entry = entry_at(view, at)
        except BadEntry as bad:
            raise CorruptLog(
                f"bytes received are not intact at {at:,}: {bad}", position=at
            ) from bad
        entries.append(entry)
        at += entry.size()
    return entries
