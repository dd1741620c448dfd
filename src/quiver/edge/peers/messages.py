"""Requests between the nodes of a cluster, beside the calls that clients make.

During an upgrade nodes of two versions talk to each other. So fields are only added, with defaults, and an
older node ignores them. A question of a new kind fails at an older node.
"""

from __future__ import annotations

import msgspec

from quiver.cluster.replica.messages import Diverged, Entries, Fetch, Gone, NotLeading
from quiver.model.ids import ProducerEpoch, ProducerId
from quiver.protocol import PartitionInfo


class StoreBatch(msgspec.Struct, frozen=True, kw_only=True, tag="StoreBatch"):
    """Store the batch in the body; answered with ``Acknowledged`` when that is durable."""

    topic: str
    partition: int


class LastSequence(msgspec.Struct, frozen=True, kw_only=True, tag="LastSequence"):
    """A producer was opened: fence whoever had its id before, and say how far that one came."""

    topic: str
    partition: int
    producer_id: ProducerId
    epoch: ProducerEpoch


class CatchUp(msgspec.Struct, frozen=True, kw_only=True, tag="CatchUp"):
    """Answer when this revision of the metadata store is known."""

    revision: int


class Extents(msgspec.Struct, frozen=True, kw_only=True, tag="Extents"):
    """Where the partitions of a topic that the node leads begin and end."""

    topic: str


class ReadSplitHandover(msgspec.Struct, frozen=True, kw_only=True, tag="ReadBequest"):
    """What a partition hands down to the one that was split off at an offset, from a byte on."""

    topic: str
    partition: int
    offset: int
    begin: int


class HasFinished(msgspec.Struct, frozen=True, kw_only=True, tag="HasPassed"):
    """Whether a subscription is done with everything before an offset of a partition."""

    subscription: str
    topic: str
    partition: int
    offset: int


class BeginNamed(msgspec.Struct, frozen=True, kw_only=True, tag="BeginNamed"):
    """Begin transactions under a name, as it is stored. The caller may have so many names."""

    name: str
    owner: str
    names_max: int


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="Begun"):
    producer_id: ProducerId


class SplitHandoverPart(msgspec.Struct, frozen=True, kw_only=True, tag="Bequeathed"):
    """A part of a split handover, and the size of the whole."""

    data: bytes
    size: int


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="Passed"):
    passed: bool


class LastOwnSequence(msgspec.Struct, frozen=True, kw_only=True, tag="Sequence"):
    last: int | None


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True, tag="Known"):
    """The request was carried out."""


class Partitions(msgspec.Struct, frozen=True, kw_only=True, tag="Partitions"):
    partitions: list[PartitionInfo]


Question = (
    Fetch
    | StoreBatch
    | LastSequence
    | CatchUp
    | Extents
    | ReadSplitHandover
    | HasFinished
    | BeginNamed
)
PeerReply = (
    Entries
    | Diverged
    | Gone
    | NotLeading
    | LastOwnSequence
    | Acknowledged
    | Partitions
    | SplitHandoverPart
    | Finished
    | Begun
)

encode = msgspec.msgpack.Encoder().encode
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers: msgspec.msgpack.Decoder[PeerReply] = msgspec.msgpack.Decoder(PeerReply)
decode_question = _questions.decode
decode_answer = _answers.decode
