"""A message's id: time-ordered, unique, and enough to find the message.

It is made of what the log already knows (append time, topic, partition, offset), so it costs no
stored bytes. As text it has 32 characters of base32hex, whose alphabetical order is time order.
"""

from __future__ import annotations

import base64
import struct

import msgspec

from quiver.errors import InvalidRequest
from quiver.model.ids import Microseconds, Offset, PartitionIndex


class MessageId(msgspec.Struct, frozen=True, order=True):
    """Where a message is: ``topic`` is the topic's number, which no other topic ever gets."""

    append_time: Microseconds
    topic: int
    partition: PartitionIndex
    offset: Offset

    def __str__(self) -> str:
        packed = (
            struct.pack(">Q", self.append_time)[1:]
            + struct.pack(">IH", self.topic, self.partition)
            + struct.pack(">Q", self.offset)[1:]
        )
        return base64.b32hexencode(packed).decode().lower()


def parse_message_id(text: str) -> MessageId:
    try:
        packed = base64.b32hexdecode(text.encode("ascii").upper())
    except ValueError as error:
        raise InvalidRequest(f"not a message id: {text[:80]!r}") from error
    if len(packed) != 20:
        raise InvalidRequest(f"not a message id: {text[:80]!r}")
    topic, partition = struct.unpack(">IH", packed[7:13])
    return MessageId(
        append_time=Microseconds(int.from_bytes(packed[:7], "big")),
        topic=topic,
        partition=PartitionIndex(partition),
        offset=Offset(int.from_bytes(packed[13:], "big")),
    )
