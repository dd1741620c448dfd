"""The call between nodes of the cluster. Each kind of question has its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from quiver import protocol
from quiver.broker.partition.producer_ids import ProducerIdentity
from quiver.cluster.node import ClusterNode
from quiver.cluster.replica.messages import Entries, Fetch
from quiver.cluster.replica.settings import ReplicaSettings
from quiver.edge.auth.call_permissions import cluster_admin
from quiver.edge.auth.principal import PEER
from quiver.edge.calls.call import REQUEST_TIMEOUT_S, Call, Turn
from quiver.edge.calls.context import Answer, Context
from quiver.edge.peers.messages import (
    Acknowledged,
    BeginNamed,
    Begun,
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

_TIMEOUT_S = REQUEST_TIMEOUT_S + ReplicaSettings().idle_wait_s
"""The usual limit plus the time that a fetch may wait for entries."""
_CATCH_UP_S = 2.0
_PART_BYTES = 256 << 10


async def answer_peer(context: Context, request: protocol.AskPeer, body: memoryview) -> Answer:
    """Only a node of this cluster may ask."""
    services, caller = context.services, context.caller
    if caller.principal is not PEER or services.member is None:
        raise PermissionDenied("only nodes of the cluster may send this request")
    try:
        question = decode_question(request.question)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the request of a node is not valid: {error}") from error
    if isinstance(question, Fetch):
        caller.node = question.node
    answer = await _HANDLERS[type(question)](services, services.member, question, body)
    data: Sequence[Bytes] = ()
    if isinstance(answer, Entries) and answer.data:
        data, answer = [answer.data], msgspec.structs.replace(answer, data=b"")
    return protocol.PeerAnswer(answer=encode(answer)), data


async def _fetch(
    _: NodeServices, member: ClusterNode, question: Fetch, _body: memoryview
) -> PeerReply:
    return await member.on_fetch(question)


async def _store_batch(
    services: NodeServices, _: ClusterNode, question: StoreBatch, body: memoryview
) -> PeerReply:
    await services.broker.publisher.store_batch(question.topic, question.partition, body)
    return Acknowledged()


async def _last_sequence(
    services: NodeServices, _: ClusterNode, question: LastSequence, _body: memoryview
) -> PeerReply:
    identity = ProducerIdentity(question.producer_id, question.epoch)
    last = await services.broker.publisher.last_sequence(
        question.topic, question.partition, identity
    )
    return LastOwnSequence(last=last)


async def _catch_up(
    _: NodeServices, member: ClusterNode, question: CatchUp, _body: memoryview
) -> PeerReply:
    await member.view.wait_for(question.revision, _CATCH_UP_S)
    return Acknowledged()


async def _extents(
    services: NodeServices, _: ClusterNode, question: Extents, _body: memoryview
) -> PeerReply:
    return Partitions(
        partitions=(await services.broker.topics.describe_here(question.topic)).partitions
    )


async def _split_handover(
    services: NodeServices, _: ClusterNode, question: ReadSplitHandover, _body: memoryview
) -> PeerReply:
    data = await services.broker.reader.handover(
        question.topic, question.partition, question.offset
    )
    part = data[question.begin : question.begin + _PART_BYTES]
    return SplitHandoverPart(data=part, size=len(data))


async def _has_finished(
    services: NodeServices, _: ClusterNode, question: HasFinished, _body: memoryview
) -> PeerReply:
    passed = await services.broker.directory.has_passed(
        question.subscription, question.topic, question.partition, Offset(question.offset)
    )
    return Finished(passed=passed)


async def _begin_named(
    services: NodeServices, _: ClusterNode, question: BeginNamed, _body: memoryview
) -> PeerReply:
    producer = await services.broker.transactions.begin_here(
        question.name, question.owner, question.names_max
    )
    return Begun(producer_id=producer)


_Handler = Callable[[NodeServices, ClusterNode, Any, memoryview], Awaitable[PeerReply]]
_HANDLERS: dict[type[Question], _Handler] = {
    Fetch: _fetch,
    StoreBatch: _store_batch,
    LastSequence: _last_sequence,
    CatchUp: _catch_up,
    Extents: _extents,
    ReadSplitHandover: _split_handover,
    HasFinished: _has_finished,
    BeginNamed: _begin_named,
}


def _timeout_s(_: protocol.AskPeer) -> float:
    return _TIMEOUT_S


CALLS = (
    Call(
        request=protocol.AskPeer,
        handler=answer_peer,
        needs=cluster_admin,
        timeout_s=_timeout_s,
        turn=Turn.OWN,
        only_waits=True,
    ),
)
