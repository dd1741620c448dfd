"""Answers to what other nodes of the cluster ask."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quiver import protocol
from quiver.broker.partition.producer_ids import ProducerIdentity
from quiver.cluster.replica.messages import Entries, Fetch
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import PEER
from quiver.edge.peers.messages import (
    Acknowledged,
    CatchUp,
    Extents,
    Finished,
    HasFinished,
    LastOwnSequence,
    LastSequence,
    Partitions,
    PeerReply,
    Question,
    ReadSplitHandover,
    SplitHandoverPart,
    StoreBatch,
    decode_question,
    encode,
)
from quiver.edge.services import NodeServices
from quiver.errors import PermissionDenied, ProtocolError
from quiver.model.batch import Bytes
from quiver.model.ids import Offset

_CATCH_UP_S = 2.0
_PART_BYTES = 256 << 10


async def answer_peer(
    services: NodeServices, caller: Caller, request: protocol.AskPeer, body: memoryview
) -> tuple[protocol.PeerAnswer, Sequence[Bytes]]:
    """Only a node of this cluster may ask."""
    if caller.principal is not PEER or services.member is None:
        raise PermissionDenied("nodes of the cluster alone may ask this")
    try:
        question = decode_question(request.question)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the question is not understood: {error}") from error
    if isinstance(question, Fetch):
        caller.node = question.node
    answer = await _answer(services, question, body)
    data: Sequence[Bytes] = ()
    if isinstance(answer, Entries) and answer.data:
        data, answer = [answer.data], msgspec.structs.replace(answer, data=b"")
    return protocol.PeerAnswer(answer=encode(answer)), data


async def _answer(services: NodeServices, question: Question, body: memoryview) -> PeerReply:
    assert services.member is not None
    match question:
        case Fetch():
            return await services.member.on_fetch(question)
        case StoreBatch():
            await services.broker.publisher.store_batch(question.topic, question.partition, body)
            return Acknowledged()
        case LastSequence():
            identity = ProducerIdentity(question.producer_id, question.epoch)
            last = await services.broker.publisher.last_sequence(
                question.topic, question.partition, identity
            )
            return LastOwnSequence(last=last)
        case CatchUp():
            await services.member.view.wait_for(question.revision, _CATCH_UP_S)
            return Acknowledged()
        case ReadSplitHandover() | HasFinished():
            return await _answer_about_split(services, question)
        case Extents():
            return Partitions(
                partitions=(await services.broker.topics.describe_here(question.topic)).partitions
            )


async def _answer_about_split(
    services: NodeServices, question: ReadSplitHandover | HasFinished
) -> SplitHandoverPart | Finished:
    broker, topic, partition = services.broker, question.topic, question.partition
    if isinstance(question, HasFinished):
        offset = Offset(question.offset)
        passed = await broker.directory.has_passed(question.subscription, topic, partition, offset)
        return Finished(passed=passed)
    data = await broker.reader.handover(topic, partition, question.offset)
    part = data[question.begin : question.begin + _PART_BYTES]
    return SplitHandoverPart(data=part, size=len(data))
