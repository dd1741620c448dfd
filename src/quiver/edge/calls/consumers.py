"""The calls of consumers with a session, and of the members of consumer groups."""

from __future__ import annotations

import asyncio
from operator import attrgetter

from quiver import protocol
from quiver.broker.subscription.consumer import SessionEnd
from quiver.edge.auth.call_permissions import CONSUME, nothing, on_subscription
from quiver.edge.calls import merge
from quiver.edge.calls.call import Call, Turn
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.route import AtCoordinator, AtLeaders
from quiver.edge.messages.receiving import CONSUMER_MAX

AT_COORDINATOR = AtCoordinator(attrgetter("subscription"))


async def consume(context: Context, request: protocol.Consume, _: memoryview) -> Answer:
    stream = context.streams.new(context.caller, request)
    try:
        return await stream.open(), ()
    except BaseException:
        stream.close(SessionEnd.CLOSED)
        raise


async def progress(context: Context, request: protocol.Progress, _: memoryview) -> Answer:
    settled, stored = context.streams.get(request.session).progress(request)
    for durable in stored:
        await asyncio.shield(durable)  # others wait for it too
    return settled, ()


async def heartbeat(context: Context, request: protocol.Heartbeat, _: memoryview) -> Answer:
    group = await context.services.broker.directory.get(request.subscription)
    partitions = group.heartbeat(request.consumer[:CONSUMER_MAX])
    return protocol.GroupMembership(partitions=partitions), ()


async def leave(context: Context, request: protocol.Leave, _: memoryview) -> Answer:
    group = await context.services.broker.directory.get(request.subscription)
    group.leave(request.consumer[:CONSUMER_MAX])
    return protocol.Done(), ()


CALLS = (
    Call(
        request=protocol.Consume,
        handler=consume,
        needs=on_subscription(CONSUME),
        subject=attrgetter("subscription"),
        turn=Turn.OWN,
    ),
    Call(request=protocol.Progress, handler=progress, needs=nothing, turn=Turn.EAGER),
    Call(
        request=protocol.Heartbeat,
        handler=heartbeat,
        needs=on_subscription(CONSUME),
        runs=AT_COORDINATOR,
    ),
    Call(
        request=protocol.Leave,
        handler=leave,
        needs=on_subscription(CONSUME),
        runs=AtLeaders(attrgetter("subscription"), then_coordinator=True),
        merge=merge.done,
    ),
)
