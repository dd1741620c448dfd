"""A message's id: time-ordered, unique, and enough to find the message.

It is made of what the log already knows (append time, topic, partition, offset), so it costs no
stored bytes. As text it has 32 characters of base32hex, whose alphabetical order is time order.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from quiver.errors import InvalidRequest
from quiver.model.ids import Microseconds, Offset, PartitionIndex

_LETTERS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [first + second for first in _LETTERS for second in _LETTERS]
_PAIR_SHIFTS = range(150, -1, -10)


class MessageId(msgspec.Struct, frozen=True, order=True):
    """Where a message is: ``topic`` is the topic's number, which no other topic ever gets."""

    append_time: Microseconds
    topic: int
    partition: PartitionIndex
    offset: Offset

    def __str__(self) -> str:
        number = self.append_time << 104 | self.topic << 72 | self.partition << 56 | self.offset
        return "".join([_PAIRS[number >> shift & 1023] for shift in _PAIR_SHIFTS])


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


class Placed(Protocol):
    """A message that knows where it is stored."""

    @property
    def timestamp_us(self) -> int: ...
    @property
    def topic_number(self) -> int: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def id(self) -> str: ...


_FEW = 16
_ALPHABET = np.frombuffer(_LETTERS.encode(), np.uint8)
_SHIFTS = np.arange(35, -1, -5, dtype=np.uint64)


def message_ids(messages: Sequence[Placed]) -> list[str]:
    """The ids of many messages, in columns where that is faster."""
    if len(messages) < _FEW:
        return [message.id for message in messages]
    packed = np.zeros((len(messages), 24), np.uint8)
    packed[:, 0:8] = _big_endian([message.timestamp_us for message in messages])
    packed[:, 8:16] = _big_endian(
        [message.topic_number << 16 | message.partition for message in messages]
    )
    packed[:, 16:24] = _big_endian([message.offset for message in messages])
    kept = np.concatenate((packed[:, 1:8], packed[:, 10:16], packed[:, 17:24]), axis=1)
    fives = np.zeros((len(messages), 4, 8), np.uint8)
    fives[:, :, 3:] = kept.reshape(len(messages), 4, 5)
    numbers = fives.view(">u8").astype(np.uint64)
    letters = _ALPHABET[(numbers >> _SHIFTS) & np.uint64(31)]
    text = letters.tobytes().decode("ascii")
    return [text[at : at + 32] for at in range(0, len(text), 32)]


def _big_endian(numbers: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.array(numbers, np.uint64).astype(">u8").view(np.uint8).reshape(len(numbers), 8)
