"""What the clients of the simulator ask a node, and are told."""

from __future__ import annotations

import msgspec

from quiver.cluster.records import NodeId, PartitionId


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    partition: PartitionId
    producer: int
    sequence: int
    values: tuple[str, ...]


class Stored(msgspec.Struct, frozen=True):
    offset: int
    epoch: int


class ReadFrom(msgspec.Struct, frozen=True):
    partition: PartitionId
    offset: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    watermark: int | None
    values: tuple[tuple[int, str], ...]


class WhoLeads(msgspec.Struct, frozen=True):
    partition: PartitionId


class Leads(msgspec.Struct, frozen=True):
    node: NodeId | None


SEPARATOR = "|"


def body_of(values: tuple[str, ...]) -> bytes:
    return SEPARATOR.join(values).encode()


def values_in(body: bytes | bytearray | memoryview) -> list[str]:
    return bytes(body).decode().split(SEPARATOR)
