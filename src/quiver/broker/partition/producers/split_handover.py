"""The split handover: what a new partition must know of its parent to reject duplicates.

It holds the last sequence of each producer that numbers its messages, and the ids in the dedup window
with their times, as of the split. The parent saves it before the split. The child keeps its own copy
from its first opening on.
"""

from __future__ import annotations

import msgspec

from quiver.broker.partition.producers.sessions import ProducerSessions
from quiver.model.ids import Microseconds, Offset, ProducerId

IMPORTED = "inherited"
"""Under this name a partition keeps what was handed down to it."""
HANDOVER = "bequest-"
"""How the names begin under which it keeps what it hands down."""


class NumberedProducer(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    last_user_sequence: int


class SplitHandover(msgspec.Struct, frozen=True):
    producers: dict[ProducerId, NumberedProducer] = {}
    ids: list[tuple[Microseconds, list[str]]] = []
    """Oldest first."""


def handover_name(offset: Offset) -> str:
    """Under which name a partition keeps what it hands down by its split at an offset."""
    return f"{HANDOVER}{offset}"


def numbered_producers(sessions: ProducerSessions) -> dict[ProducerId, NumberedProducer]:
    return {
        producer: NumberedProducer(session.epoch, session.last_user_sequence)
        for producer, session in sessions.by_producer.items()
        if session.last_user_sequence is not None
    }


def encode_handover(handover: SplitHandover) -> bytes:
    return _encode(handover)


def decode_handover(data: bytes) -> SplitHandover:
    """What is in these bytes; nothing if they are damaged."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return SplitHandover()


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[SplitHandover] = msgspec.msgpack.Decoder(SplitHandover)
