"""The manifest of a backup: what it holds, and the checksum of every object it needs. Pure.

The manifest is written last. A backup without one does not exist. It carries a checksum of itself, so
damage in it is found too.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from quiver.errors import CorruptBackup, UnsupportedFormat
from quiver.formats import BACKUPS
from quiver.protocol import PartitionDeliveries, SubscriptionInfo, TokenCopy, TopicInfo

FORMAT = "quiver-backup"
VERSION = BACKUPS.newest


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the backup."""

    name: str
    bytes: int
    sha256: str


class LastEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The last entry of a chunk. Where a log still has it, it has everything before it too."""

    base_offset: int
    count: int
    append_time: int
    checksum: int
    """CRC-32C of its body."""


class Chunk(StoredObject, frozen=True, kw_only=True):
    """Entries of one partition, as they are stored, from an offset up to another."""

    base_offset: int
    next_offset: int
    first_time: int
    """When the first entry was stored, in microseconds."""
    last: LastEntry


class PartitionBackup(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one partition: the chunks follow each other without gaps."""

    start_offset: int
    next_offset: int
    chunks: list[Chunk] = []


class TopicBackup(msgspec.Struct, frozen=True, kw_only=True):
    info: TopicInfo
    partitions: list[PartitionBackup]

    @property
    def identity(self) -> tuple[str, int, int]:
        """No other topic ever has it, not even one that was restored from this."""
        return self.info.name, self.info.number, self.info.created_us


class SubscriptionBackup(msgspec.Struct, frozen=True, kw_only=True):
    info: SubscriptionInfo
    state: StoredObject
    """The bitmaps of all partitions, one after the other."""
    partitions: list[PartitionDeliveries]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_us: int
    """When the backup began. It has every message that was confirmed before."""
    finished_us: int
    software: str
    topics: list[TopicBackup]
    subscriptions: list[SubscriptionBackup]
    tokens: list[TokenCopy]

    @property
    def objects(self) -> list[StoredObject]:
        """Every object that it needs."""
        chunks = [one for topic in self.topics for part in topic.partitions for one in part.chunks]
        return [*chunks, *(one.state for one in self.subscriptions)]

    @property
    def messages(self) -> int:
        parts = [part for topic in self.topics for part in topic.partitions]
        return sum(part.next_offset - part.start_offset for part in parts)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.objects)


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    version: int
    sha256: str
    manifest: msgspec.Raw


def encode_manifest(manifest: Manifest) -> bytes:
    content = msgspec.json.encode(manifest)
    checksum = sha256(content).hexdigest()
    return msgspec.json.encode(
        _File(format=FORMAT, version=VERSION, sha256=checksum, manifest=msgspec.Raw(content))
    )


def decode_manifest(data: bytes, name: str) -> Manifest:
    """``CorruptBackup`` if it is damaged, ``UnsupportedFormat`` if it is of a later version."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise CorruptBackup(f"{name} is not the manifest of a backup", object=name) from error
    if file.format != FORMAT or file.version != VERSION:
        raise UnsupportedFormat(
            f"{name} has format {file.format[:40]!r} version {file.version}, and this Quiver reads "
            f"{FORMAT!r} version {VERSION}: use a newer Quiver",
            version=file.version,
        )
    content = bytes(file.manifest)
    if sha256(content).hexdigest() != file.sha256:
        raise CorruptBackup(f"{name} does not match its checksum", object=name)
    try:
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise CorruptBackup(f"{name} cannot be read: {error}", object=name) from error
