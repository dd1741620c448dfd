"""What nodes of a cluster ask each other, beside the calls that clients make."""

from __future__ import annotations

import msgspec

from quiver.cluster.replica.messages import Diverged, Entries, Fetch, Gone, NotLeading
from quiver.model.ids import ProducerEpoch, ProducerId
from quiver.model.wire import PartitionInfo


class StoreBatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Store the batch in the body; answered with ``Known`` when that is durable."""

    topic: str
    partition: int


class LastSequence(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A producer was opened: fence whoever had its id before, and say how far that one came."""

    topic: str
    partition: int
    producer_id: ProducerId
    epoch: ProducerEpoch


class CatchUp(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer when this revision of the metadata store is known."""

    revision: int


class Extents(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where the partitions of a topic that the node leads begin and end."""

    topic: str


class Sequence(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    last: int | None


class Known(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It is so."""


class Partitions(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    partitions: list[PartitionInfo]


Question = Fetch | StoreBatch | LastSequence | CatchUp | Extents
PeerReply = Entries | Diverged | Gone | NotLeading | Sequence | Known | Partitions

encode = msgspec.msgpack.Encoder().encode
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers: msgspec.msgpack.Decoder[PeerReply] = msgspec.msgpack.Decoder(PeerReply)
decode_question = _questions.decode
decode_answer = _answers.decode
