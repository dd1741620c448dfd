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

LETTERS = "0123456789abcdefghijklmnopqrstuv"
PAIRS = [first + second for first in LETTERS for second in LETTERS]
_PAIR_SHIFTS = range(150, -1, -10)


class MessageId(msgspec.Struct, frozen=True, order=True):
    """Where a message is: ``topic`` is the topic's number, which no other topic ever gets."""

    append_time: Microseconds
    topic: int
    partition: PartitionIndex
    offset: Offset

    def __str__(self) -> str:
        number = self.append_time << 104 | self.topic << 72 | self.partition << 56 | self.offset
        return "".join([PAIRS[number >> shift & 1023] for shift in _PAIR_SHIFTS])


def parse_message_id(text: str) -> MessageId:
    try:
        packed = base64.b32hexdecode(text.encode("ascii").upper())
    except ValueError as error:
        raise InvalidRequest(f"{text[:80]!r} is not a message id") from error
    if len(packed) != 20:
        raise InvalidRequest(f"{text[:80]!r} is not a message id")
    topic, partition = struct.unpack(">IH", packed[7:13])
    return MessageId(
        append_time=Microseconds(int.from_bytes(packed[:7], "big")),
        topic=topic,
        partition=PartitionIndex(partition),
        offset=Offset(int.from_bytes(packed[13:], "big")),
    )
