"""What the clients of a simulated cluster saw, and what its replicas hold in the end."""

from __future__ import annotations

from typing import Literal

import msgspec

from quiver.cluster.records import NodeId, PartitionId, SessionId

Outcome = Literal["done", "failed", "unknown"]


class Send(msgspec.Struct, kw_only=True):
    """One publish: of ``value``, the ``sequence``-th of its producer in this partition."""

    producer: int
    sequence: int
    partition: PartitionId
    value: str
    invoked: float
    ended: float = -1.0
    outcome: Outcome = "unknown"
    offset: int = -1
    epoch: int = -1


class Read(msgspec.Struct, frozen=True, kw_only=True):
    reader: int
    partition: PartitionId
    invoked: float
    ended: float
    asked: int
    epoch: int
    watermark: int | None
    """Everything before it is committed, if the leader knew that much."""
    values: tuple[tuple[int, str], ...]
    """Offsets and values."""


class Led(msgspec.Struct, frozen=True, kw_only=True):
    partition: PartitionId
    epoch: int
    node: NodeId
    session: SessionId
    at: float


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """A leader gave a value its offset, confirmed or not."""

    partition: PartitionId
    epoch: int
    offset: int
    value: str
    node: NodeId


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica holds after everything was healed."""

    node: NodeId
    watermark: int
    values: tuple[tuple[int, int, str], ...]
    """Offset, epoch and value."""


class History(msgspec.Struct):
    sends: list[Send] = []
    reads: list[Read] = []
    led: list[Led] = []
    appended: list[Appended] = []
    copies: dict[PartitionId, list[Copy]] = {}
    states: dict[PartitionId, list[Copy]] = {}
    """The same of the second log, whose beginning is dropped now and then."""
    trouble: list[str] = []
    """What did not come to its end in time."""

    def encode(self) -> bytes:
        """Byte for byte the same for the same seed."""
        return msgspec.json.encode(self)
