"""The complete state of a delivery machine, and its form on disk.

Taking a ``DeliverySnapshot`` is quick; ``encode_snapshot`` does the packing and may run in a thread. What
is pending takes a bit or less for each message, besides the times of those that have one. Keys are
not in here: they are in the messages.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c
from pyroaring import BitMap64

from quiver.broker.delivery.machine.leases import Lease
from quiver.broker.delivery.machine.offset_sets import offset_numbers, offset_set
from quiver.broker.delivery.machine.pending_acks import PendingAck
from quiver.broker.delivery.machine.timed import Moments
from quiver.errors import UnsupportedFormat
from quiver.formats import SNAPSHOTS
from quiver.model.ids import Offset

_MAGIC = b"QVRS"
_VERSION = SNAPSHOTS.at_start
_PENDING_ACKS_VERSION = SNAPSHOTS.newest
"""Of a snapshot in which messages wait for transactions: an earlier Quiver would take them for finished."""
_HEAD = struct.Struct("<4sI")
_SUM = struct.Struct("<I")


class DeliverySnapshot(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    start: Offset
    observed_to: Offset
    ready: BitMap64
    """What could be delivered, be it that it waits for its key."""
    under_way: BitMap64
    """What leads its key because it was taken."""
    priorities: dict[int, BitMap64]
    """Of all that is pending and not at the default priority."""
    published: Moments
    """The first offset of a batch and when it was published, for ageing."""
    delayed: Moments
    expiring: Moments
    expired_in_lease: BitMap64
    leases: list[Lease]
    attempts: dict[int, BitMap64]
    dead_letter_pending: BitMap64 = msgspec.field(name="condemned")
    errors: dict[int, str]
    dead: BitMap64
    acked: dict[int, BitMap64] = {}
    """What was acknowledged under recent leases."""
    tenants: dict[str, BitMap64] = {}
    """Of all that is pending and has a tenant, if the subscription is fair."""
    first_delivered: Moments = Moments.none()
    """Of what was delivered and returned, or is a pending dead letter."""
    last_delivered: Moments = Moments.none()
    """Of pending dead letters."""
    scheduled: Moments = Moments.none()
    """Of all that is pending, what was published for a time that has come."""
    suspects: BitMap64 = msgspec.field(default_factory=BitMap64)
    """Of all that is pending, what a consumer had when it ended without a word."""
    pending_acks: list[PendingAck] = []
    """What waits for the end of a transaction."""


def encode_snapshot(snapshot: DeliverySnapshot) -> bytes:
    version = _PENDING_ACKS_VERSION if snapshot.pending_acks else _VERSION
    data = _HEAD.pack(_MAGIC, version) + _encoder.encode(snapshot)
    return data + _SUM.pack(crc32c(data))


def decode_snapshot(data: bytes) -> DeliverySnapshot | None:
    """The snapshot in these bytes; ``None`` if they are damaged."""
    content, checksum = data[: -_SUM.size], data[-_SUM.size :]
    if len(content) < _HEAD.size or _SUM.pack(crc32c(content)) != checksum:
        return None
    magic, version = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        return None
    if not _VERSION <= version <= _PENDING_ACKS_VERSION:
        raise UnsupportedFormat(
            f"the snapshot has format version {version} and this Quiver reads versions up to "
            f"{_PENDING_ACKS_VERSION}: use a newer Quiver",
            version=version,
        )
    return _decoder.decode(memoryview(content)[_HEAD.size :])


# ---------------------------------------------------------------------- values that msgpack has not


def _packed(value: Any) -> Any:
    if isinstance(value, BitMap64):
        value.run_optimize()
        return value.serialize()
    assert isinstance(value, Moments)
    return _packed_moments(value)


def _unpacked(kind: type, value: Any) -> Any:
    return BitMap64.deserialize(value) if kind is BitMap64 else _unpacked_moments(*value)


def _packed_moments(moments: Moments) -> tuple[bytes, int, bytes]:
    """The offsets as a set, the first time, and how much later each is, in order of the offsets.

    Of these differences only as many bytes are kept as the largest one has.
    """
    if not len(moments.times):
        return BitMap64().serialize(), 0, b""
    first = moments.times.min()
    later = (moments.times - first)[np.argsort(moments.offsets)].astype("<u8")
    width = (int(later.max()).bit_length() + 7) // 8
    columns = later.view(np.uint8).reshape(-1, 8)[:, :width]
    return offset_set(moments.offsets).serialize(), int(first), columns.tobytes()


def _unpacked_moments(offsets: bytes, first: int, later: bytes) -> Moments:
    places = offset_numbers(BitMap64.deserialize(offsets))
    columns = np.zeros((len(places), 8), np.uint8)
    if later:
        width = len(later) // len(places)
        columns[:, :width] = np.frombuffer(later, np.uint8).reshape(-1, width)
    return Moments(columns.view("<u8").ravel().astype(np.int64) + first, places)


_encoder = msgspec.msgpack.Encoder(enc_hook=_packed)
_decoder: msgspec.msgpack.Decoder[DeliverySnapshot] = msgspec.msgpack.Decoder(
    DeliverySnapshot, dec_hook=_unpacked
)
