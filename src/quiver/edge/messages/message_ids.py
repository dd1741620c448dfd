"""The ids of many messages at once: by runs of one batch, or in columns, whichever is faster.

Apart from ``message_id``, so that a command that only reads an id need not load numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from quiver.model.message_id import LETTERS, PAIRS


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


_FEW = 16
_HEAD_SHIFTS = range(140, -1, -10)
_ALPHABET = np.frombuffer(LETTERS.encode(), np.uint8)
_SHIFTS = np.arange(35, -1, -5, dtype=np.uint64)


def message_ids(messages: Sequence[Placed]) -> list[str]:
    """The ids of many messages, in their order."""
    # Messages of one batch have the same time, and neighbours have all but the end of the id in common.
    if len(messages) < _FEW or messages[0].timestamp_us == messages[-1].timestamp_us:
        return _by_run(messages)
    return _by_column(messages)


def _by_run(messages: Sequence[Placed]) -> list[str]:
    ids: list[str] = []
    heads: dict[tuple[int, ...], str] = {}
    head, block, time_us, topic, partition = "", -1, -1, -1, -1
    for message in messages:
        offset = message.offset
        if (
            offset >> 10 != block
            or message.timestamp_us != time_us
            or message.partition != partition
            or message.topic_number != topic
        ):
            block, time_us = offset >> 10, message.timestamp_us
            topic, partition = message.topic_number, message.partition
            run = (block, time_us, topic, partition)
            head = heads.get(run) or heads.setdefault(run, _head(*run))
        ids.append(head + PAIRS[offset & 1023])
    return ids


def _head(block: int, time_us: int, topic: int, partition: int) -> str:
    """What the ids of 1,024 neighbours have in common: all but the last two letters."""
    number = time_us << 94 | topic << 62 | partition << 46 | block
    return "".join([PAIRS[number >> shift & 1023] for shift in _HEAD_SHIFTS])


def _by_column(messages: Sequence[Placed]) -> list[str]:
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
