"""The calls of the members of consumer groups."""

from __future__ import annotations

from operator import attrgetter

from quiver import protocol
from quiver.edge.auth.call_permissions import CONSUME, on_subscription
from quiver.edge.calls import merge
from quiver.edge.calls.call import Call
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out import AtCoordinator, AtLeaders
from quiver.edge.messages.receiving import CONSUMER_MAX

AT_COORDINATOR = AtCoordinator(attrgetter("subscription"))


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
