"""The calls that store messages: producer sessions, publishes and copies."""

from __future__ import annotations

from operator import attrgetter

from quiver import protocol
from quiver.broker.publish.copy import copy_entries
from quiver.edge.auth.call_permissions import (
    CONSUME,
    PUBLISH,
    Definitions,
    Needs,
    on_topic,
    topic,
)
from quiver.edge.calls.call import Call, Turn
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.route import AT_LEADER
from quiver.edge.messages.publish_order import publish_one

_TIMEOUT_S_MAX = 300.0


async def open_producer(context: Context, request: protocol.OpenProducer, _: memoryview) -> Answer:
    identity, sequences = await context.services.broker.publisher.open_producer(
        request.name,
        request.topic,
        owner=context.caller.producer_owner,
        names_max=context.caller.producer_names_max,
    )
    return protocol.ProducerOpened(
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        last_sequences=sequences,
    ), ()


async def publish(context: Context, request: protocol.Publish, body: memoryview) -> Answer:
    """Store one batch; answer when it is durable. Sessions keep several of them in order."""
    return await publish_one(context.services, request, body).reply, ()


async def copy(context: Context, request: protocol.Copy, _: memoryview) -> Answer:
    services = context.services
    copied = await copy_entries(services.broker.publisher, services.broker.reader, request)
    services.metrics.published_bytes.inc(copied.bytes)
    services.metrics.published_batches.inc(copied.entries)
    context.caller.sent(copied.bytes)
    return copied, ()


def open_producer_needs(request: protocol.OpenProducer, _: Definitions) -> Needs:
    """A producer name is stored, so only callers that may publish can set one."""
    if request.topic is None:
        return () if request.name is None else (topic(PUBLISH, "*"),)
    return (topic(PUBLISH, request.topic),)


def copy_needs(request: protocol.Copy, _: Definitions) -> Needs:
    return (topic(PUBLISH, request.topic), topic(CONSUME, request.from_topic))


def publish_timeout_s(request: protocol.Publish | protocol.Copy) -> float:
    return min(max(request.timeout_ms, 1) / 1000, _TIMEOUT_S_MAX)


CALLS = (
    Call(request=protocol.OpenProducer, handler=open_producer, needs=open_producer_needs),
    Call(
        request=protocol.Publish,
        handler=publish,
        needs=on_topic(PUBLISH),
        subject=attrgetter("topic"),
        timeout_s=publish_timeout_s,
        turn=Turn.PUBLISH,
        runs=AT_LEADER,
    ),
    Call(
        request=protocol.Copy,
        handler=copy,
        needs=copy_needs,
        timeout_s=publish_timeout_s,
        turn=Turn.OWN,
        runs=AT_LEADER,
    ),
)
