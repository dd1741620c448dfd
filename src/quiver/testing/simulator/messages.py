"""What the clients of the simulator ask a node, and are told."""

from __future__ import annotations

import msgspec

from quiver import protocol
from quiver.cluster.records import NodeId, PartitionId


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    partition: PartitionId
    producer: int
    sequence: int
    values: tuple[str, ...]


class Stored(msgspec.Struct, frozen=True):
    offset: int
    epoch: int
    repeats: dict[int, int] = {}
    """By their place in the batch: where those are that were stored before."""

    def place(self, row: int) -> int:
        """The offset of one of the values; below zero if nobody knows it any more."""
        if row in self.repeats:
            return self.repeats[row]
        before = sum(other < row for other in self.repeats)
        return self.offset + row - before if self.offset >= 0 else -1


class ReadFrom(msgspec.Struct, frozen=True):
    partition: PartitionId
    offset: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    watermark: int | None
    values: tuple[tuple[int, str], ...]
    read_to: int = 0
    """Where to go on, of a node with a real broker."""


class WhoLeads(msgspec.Struct, frozen=True):
    partition: PartitionId


class Leads(msgspec.Struct, frozen=True):
    node: NodeId | None


class Ask(msgspec.Struct, frozen=True):
    """A request of the native protocol, of a client or of another node."""

    request: protocol.AnyRequest
    body: bytes = b""
    is_peer: bool = False


class Answer(msgspec.Struct, frozen=True):
    reply: protocol.AnyReply
    body: bytes = b""
    epoch: int = -1
    """Of whoever leads the partition that was asked about, if it was one."""


SEPARATOR = "|"


def body_of(values: tuple[str, ...]) -> bytes:
    return SEPARATOR.join(values).encode()


def values_in(body: bytes | bytearray | memoryview) -> list[str]:
    return bytes(body).decode().split(SEPARATOR)
