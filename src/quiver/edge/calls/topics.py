"""The calls about topics and their partitions."""

from __future__ import annotations

from operator import attrgetter

from quiver import protocol
from quiver.edge.auth.call_permissions import ADMIN, SEE, nothing, on_topic
from quiver.edge.auth.caller import Caller
from quiver.edge.calls.call import Call
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.route import AT_LEADER


async def create(context: Context, request: protocol.CreateTopic, _: memoryview) -> Answer:
    topics = context.services.broker.topics
    context.caller.require_room_for_topic(request.name, lambda: topics.names)
    info = await topics.create(request.name, request.settings, exist_ok=request.exist_ok)
    return protocol.Topic(topic=info), ()


async def alter(context: Context, request: protocol.AlterTopic, _: memoryview) -> Answer:
    info = await context.services.broker.topics.alter(request.name, request.changes)
    return protocol.Topic(topic=info), ()


async def split(context: Context, request: protocol.SplitPartition, _: memoryview) -> Answer:
    topics = context.services.broker.topics
    info = await topics.split(request.topic, request.partition, request.layout)
    return protocol.Topic(topic=info), ()


async def delete(context: Context, request: protocol.DeleteTopic, _: memoryview) -> Answer:
    await context.services.broker.topics.delete(request.name)
    return protocol.Done(), ()


async def describe(context: Context, request: protocol.DescribeTopic, _: memoryview) -> Answer:
    topics = context.services.broker.topics
    info = await topics.describe(request.name, extents=request.extents)
    return protocol.Topic(topic=info), ()


async def list_all(context: Context, _request: protocol.ListTopics, _: memoryview) -> Answer:
    return protocol.Topics(topics=context.services.broker.topics.infos()), ()


def hide_topics(caller: Caller, reply: protocol.Topics) -> None:
    reply.topics = [one for one in reply.topics if caller.sees_topic(one.name)]


CALLS = (
    Call(
        request=protocol.CreateTopic,
        handler=create,
        needs=on_topic(ADMIN, "name"),
        is_audited=True,
    ),
    Call(
        request=protocol.AlterTopic,
        handler=alter,
        needs=on_topic(ADMIN, "name"),
        is_audited=True,
    ),
    Call(
        request=protocol.SplitPartition,
        handler=split,
        needs=on_topic(ADMIN),
        is_audited=True,
        runs=AT_LEADER,
    ),
    Call(
        request=protocol.DeleteTopic,
        handler=delete,
        needs=on_topic(ADMIN, "name"),
        is_audited=True,
    ),
    Call(
        request=protocol.DescribeTopic,
        handler=describe,
        needs=on_topic(SEE, "name"),
        subject=attrgetter("name"),
    ),
    Call(request=protocol.ListTopics, handler=list_all, needs=nothing, hide=hide_topics),
)
