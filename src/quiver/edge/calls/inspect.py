"""The calls of operators about messages: peek, find, seek, purge, cancel and redrive."""

from __future__ import annotations

from operator import attrgetter

from quiver import protocol
from quiver.edge.auth.call_permissions import (
    ADMIN,
    CONSUME,
    PUBLISH,
    Definitions,
    Needs,
    on_subscription,
    on_topic,
    subscription,
    topic,
)
from quiver.edge.auth.caller import Caller
from quiver.edge.calls import merge
from quiver.edge.calls.call import Call
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.in_parts import AtLeadersInTurn, AtMessageLeaders
from quiver.edge.calls.fan_out.route import AtLeaders, PassedToLeader
from quiver.edge.messages import pending
from quiver.errors import InvalidRequest
from quiver.model.filter import Filter, parse_filter
from quiver.model.message_id import parse_message_id

IDS_MAX = 10_000


async def seek(context: Context, request: protocol.Seek, _: memoryview) -> Answer:
    given = [request.at, request.time_us, request.offset, request.places]
    if sum(one is not None for one in given) != 1:
        raise InvalidRequest("a seek has one goal: a name, a time, an offset, or places")
    if request.at is not None and request.at not in ("earliest", "latest"):
        raise InvalidRequest(f"seek to 'earliest' or 'latest', not {request.at[:80]!r}")
    offsets = None
    if request.places is not None:
        offsets = {(place.topic, place.partition): place.offset for place in request.places}
    await context.services.broker.directory.seek(
        request.subscription,
        at=request.at,
        time_us=request.time_us,
        offset=request.offset,
        offsets=offsets,
    )
    return protocol.Done(), ()


async def peek(context: Context, request: protocol.Peek, _: memoryview) -> Answer:
    return await pending.peek(context.services.broker, request)


async def purge(context: Context, request: protocol.Purge, _: memoryview) -> Answer:
    condition = _condition(request.filter)
    count = await context.services.broker.directory.purge(request.subscription, condition)
    return protocol.Counted(count=count), ()


def require_few(request: protocol.Cancel) -> None:
    if len(request.ids) > IDS_MAX:
        raise InvalidRequest(f"at most {IDS_MAX:,} messages are cancelled in one request")


async def cancel(context: Context, request: protocol.Cancel, _: memoryview) -> Answer:
    require_few(request)
    count = await context.services.broker.lookup.cancel(request.topic, request.ids)
    return protocol.Counted(count=count), ()


async def redrive(context: Context, request: protocol.Redrive, _: memoryview) -> Answer:
    redriven = await context.services.broker.dead_letters.redrive(
        request.subscription,
        to=request.to,
        condition=_condition(request.filter),
        dry_run=request.dry_run,
        messages_max=request.messages_max,
    )
    return protocol.Redriven(count=redriven.count, by_topic=redriven.by_topic), ()


async def find_message(context: Context, request: protocol.FindMessage, _: memoryview) -> Answer:
    """A message by its id."""
    found = await context.services.broker.lookup.find(request.topic, request.message_id)
    reply = protocol.MessageFound(
        partition=found.id.partition,
        offset=found.id.offset,
        topic_number=found.id.topic,
        statuses=found.statuses,
    )
    return reply, [] if found.entry is None else list(found.entry.buffers())


async def read_state(context: Context, request: protocol.ReadState, _: memoryview) -> Answer:
    return await pending.read_state(context.services.broker, request)


def _condition(text: str | None) -> Filter | None:
    return None if text is None else parse_filter(text)


def hide_statuses(caller: Caller, reply: protocol.MessageFound) -> None:
    sees = caller.sees_subscription
    reply.statuses = [one for one in reply.statuses if sees(one.subscription)]


def redrive_needs(request: protocol.Redrive, definitions: Definitions) -> Needs:
    """Letters that go to another topic are read. So are those of others in a shared queue."""
    needs = [subscription(ADMIN, request.subscription)]
    if request.to is not None:
        needs += [subscription(CONSUME, request.subscription), topic(PUBLISH, request.to)]
    shared = definitions.shared_dead_letters(request.subscription)
    if shared is not None:
        needs.append(subscription(CONSUME, shared))
    return tuple(needs)


def message_partition(request: protocol.FindMessage) -> tuple[str, int]:
    return request.topic, parse_message_id(request.message_id).partition


CALLS = (
    Call(
        request=protocol.Seek,
        handler=seek,
        needs=on_subscription(ADMIN),
        is_audited=True,
        runs=AtLeaders(attrgetter("subscription"), all_led=True),
        merge=merge.done,
    ),
    Call(
        request=protocol.Peek,
        handler=peek,
        needs=on_subscription(CONSUME),
        runs=AtLeaders(attrgetter("subscription")),
        merge=merge.peeked,
    ),
    Call(
        request=protocol.Purge,
        handler=purge,
        needs=on_subscription(ADMIN),
        is_audited=True,
        runs=AtLeaders(attrgetter("subscription"), all_led=True),
        merge=merge.counted,
    ),
    Call(
        request=protocol.Cancel,
        handler=cancel,
        needs=on_topic((*PUBLISH, *ADMIN)),
        runs=AtMessageLeaders(require_few),
        merge=merge.counted,
    ),
    Call(
        request=protocol.Redrive,
        handler=redrive,
        needs=redrive_needs,
        is_audited=True,
        runs=AtLeadersInTurn(),
        merge=merge.redriven,
    ),
    Call(
        request=protocol.FindMessage,
        handler=find_message,
        needs=on_topic(CONSUME),
        runs=PassedToLeader(message_partition),
        hide=hide_statuses,
    ),
    Call(
        request=protocol.ReadState,
        handler=read_state,
        needs=on_subscription(CONSUME),
        runs=AtLeaders(attrgetter("subscription")),
        merge=merge.state_read,
    ),
)
