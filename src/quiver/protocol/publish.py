"""Publishing: producer sessions, batches, and copies between partitions."""

from __future__ import annotations

import msgspec

from quiver.model.topic import Acks
from quiver.protocol.base import Reply, Request


class OpenProducer(Request, tag="open_producer"):
    """A session for idempotent publishing. A name makes it outlive the process."""

    name: str | None = None
    topic: str | None = None
    """With a name: for which topic to tell the last sequences."""


class ProducerOpened(Reply, tag="producer_opened"):
    producer_id: int
    producer_epoch: int
    last_sequences: dict[int, int] = {}
    """By partition: the highest ``sequence`` column value that this name has stored there."""


class Publish(Request, tag="publish"):
    """Store a batch. The body is the producer's part of the envelope and the Arrow bytes."""

    topic: str
    partition: int
    acks: Acks | None = None
    timeout_ms: int = 30_000
    layout: int = 0
    """The layout it was routed by; 0 if routing does not matter."""


class Repeat(msgspec.Struct, array_like=True, frozen=True):
    """Where a message is that was stored before."""

    offset: int
    append_time: int


class Published(Reply, tag="published"):
    base_offset: int
    append_time: int
    topic_number: int
    duplicate: bool = False
    """It had been stored before, at this offset; nothing was stored now."""
    repeats: dict[int, Repeat] = {}
    """Messages that were stored before, found by their ``dedup_id``: by their place in the batch, the
    offset and the time of storage of each. The others follow each other from ``base_offset`` on."""


class Copy(Request, tag="copy"):
    """Store entries of a partition in another one, which the same node leads: the same bytes.

    They become the next batches of a producer. Who repeats a copy adds nothing.
    """

    topic: str
    partition: int
    from_topic: str
    from_number: int
    """The number of the topic that is copied from: one made anew under its name has another."""
    from_partition: int
    offsets: list[int]
    """The first offset of each entry, in the order in which they are stored."""
    producer_id: int
    producer_epoch: int
    sequence: int
    """Of the first message of the first entry; the others follow."""
    timeout_ms: int = 30_000


class Copied(Reply, tag="copied"):
    """All of them are stored, now or before."""

    entries: int
    messages: int
    bytes: int
