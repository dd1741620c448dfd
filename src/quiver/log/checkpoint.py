"""The checkpoint: the position up to which a log is known to be intact, where recovery starts.

It promises that every byte of segment ``segment`` below ``position`` was synced and intact when it was
written, that offsets below ``start_offset`` are deleted, and that all earlier segments are complete. A
new log has none: it is written before the second segment, at the latest. Where one is missing that was
there, recovery scans more and truncates nothing.
"""

from __future__ import annotations

import struct

import msgspec
from crc32c import crc32c

from quiver.errors import UnsupportedFormat
from quiver.formats import CHECKPOINTS
from quiver.log.disk.disk import Disk
from quiver.log.files import CHECKPOINT
from quiver.model.ids import LeaderEpoch, Microseconds, Offset

_VERSION = CHECKPOINTS.newest
_HEAD = struct.Struct("<4sI")
_BODY = struct.Struct("<qqqqqI")
_MAGIC = b"QVRC"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    start_offset: Offset
    segment: Offset
    position: int
    next_offset: Offset
    append_time: Microseconds
    epoch: LeaderEpoch


def blank_checkpoint(base_offset: Offset) -> Checkpoint:
    """Of a log that has left none yet: it begins at ``base_offset``, and nothing is known to be synced."""
    return Checkpoint(
        start_offset=base_offset,
        segment=base_offset,
        position=0,
        next_offset=base_offset,
        append_time=Microseconds(0),
        epoch=LeaderEpoch(0),
    )


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    data = _HEAD.pack(_MAGIC, _VERSION) + _BODY.pack(*msgspec.structs.astuple(checkpoint))
    return data + struct.pack("<I", crc32c(data))


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    """The checkpoint in these bytes; ``None`` if they are damaged."""
    if len(data) < _HEAD.size + 4 or crc32c(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        return None
    magic, version = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        return None
    if version != _VERSION:
        raise UnsupportedFormat(
            f"the checkpoint has format version {version} and this Quiver reads version {_VERSION}: "
            "use a newer Quiver",
            version=version,
        )
    if len(data) != _HEAD.size + _BODY.size + 4:
        return None
    return Checkpoint(
        **dict(zip(Checkpoint.__struct_fields__, _BODY.unpack_from(data, _HEAD.size), strict=True))
    )


def read_checkpoint(disk: Disk, folder: str) -> Checkpoint | None:
    path = f"{folder}/{CHECKPOINT}"
    if not disk.exists(path):
        return None
    try:
        return decode_checkpoint(disk.read(path))
    except UnsupportedFormat as newer:
        raise UnsupportedFormat(f"{path}: {newer.message}", file=path, **newer.details) from newer
