"""The calls of consumers: receive messages under a lease, and settle them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import attrgetter

from quiver import protocol
from quiver.edge.auth.call_permissions import CONSUME, on_subscription
from quiver.edge.calls import merge
from quiver.edge.calls.call import Call, Turn, wait_timeout_s
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.in_parts import AtLeaseLeaders
from quiver.edge.calls.receive_from_leaders import FromLeaders
from quiver.edge.messages import settling
from quiver.edge.messages.failures import failure_of
from quiver.edge.messages.receiving import Receiving, until_ready


async def receive(context: Context, request: protocol.Receive, _: memoryview) -> Answer:
    """Waiting blocks no other request, and one reply is built at a time."""
    receiving = Receiving(context.services.broker, context.services.clock, request)
    asked = request.messages_max
    while True:
        async with context.reply_turn:
            request.messages_max = context.caller.room_for_messages(asked)
            received = await receiving.attempt()
            if not context.is_wanted:
                receiving.requeue()
                return protocol.Received(portions=[]), ()
            if received is not None:
                if receiving.is_to_be_settled:
                    context.caller.took(received[0])
                return received
        await receiving.wait()


async def await_ready(context: Context, request: protocol.AwaitReady, _: memoryview) -> Answer:
    services = context.services
    return protocol.Ready(is_ready=await until_ready(services.broker, services.clock, request)), ()


async def ack(context: Context, request: protocol.Ack, _: memoryview) -> Answer:
    settled, stored = await settling.begin_ack(context.services.broker, request)
    await _count_when_stored(context, request, stored)
    return settled, ()


async def hold(context: Context, request: protocol.Hold, _: memoryview) -> Answer:
    settled, stored = await settling.begin_hold(context.services.broker, request)
    await _count_when_stored(context, request, stored)
    return settled, ()


async def _count_when_stored(
    context: Context, request: protocol.Ack | protocol.Hold, stored: Sequence[asyncio.Future[None]]
) -> None:
    if stored:
        await _until_stored(stored, lambda: count_settled(context, request))
    else:
        count_settled(context, request)


async def _until_stored(stored: Sequence[asyncio.Future[None]], then: Callable[[], None]) -> None:
    """Wait until all is stored, then call ``then``: also if the waiting task is cancelled."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(done: asyncio.Future[None] | asyncio.Future[list[None]]) -> None:
        error = failure_of(done)
        if error is None:
            then()
        if waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

    if len(stored) == 1:
        stored[0].add_done_callback(finish)
    else:
        asyncio.gather(*stored).add_done_callback(finish)
    await waiter


async def nack(context: Context, request: protocol.Nack, _: memoryview) -> Answer:
    settled = await settling.nack(context.services.broker, request)
    count_settled(context, request)
    return settled, ()


async def reject(context: Context, request: protocol.Reject, _: memoryview) -> Answer:
    settled = await settling.reject(context.services.broker, request)
    count_settled(context, request)
    return settled, ()


async def extend(context: Context, request: protocol.Extend, _: memoryview) -> Answer:
    settled = await settling.extend(context.services.broker, request)
    count_extended(context, request)
    return settled, ()


async def return_unread(context: Context, request: protocol.Return, _: memoryview) -> Answer:
    settled = await settling.return_unread(context.services.broker, request)
    count_settled(context, request)
    return settled, ()


def count_settled(
    context: Context,
    request: protocol.Ack | protocol.Hold | protocol.Nack | protocol.Reject | protocol.Return,
) -> None:
    context.caller.settled(request.settlements)


def count_extended(context: Context, request: protocol.Extend) -> None:
    context.caller.extended(request.settlements, request.visibility_ms)


CALLS = (
    Call(
        request=protocol.Receive,
        handler=receive,
        needs=on_subscription(CONSUME),
        subject=attrgetter("subscription"),
        timeout_s=wait_timeout_s,
        turn=Turn.EAGER,
        only_waits=True,
        runs=FromLeaders(),
        merge=merge.first_received,
    ),
    Call(
        request=protocol.AwaitReady,
        handler=await_ready,
        needs=on_subscription(CONSUME),
        subject=attrgetter("subscription"),
        timeout_s=wait_timeout_s,
        turn=Turn.OWN,
        only_waits=True,
    ),
    Call(
        request=protocol.Ack,
        handler=ack,
        needs=on_subscription(CONSUME),
        subject=attrgetter("subscription"),
        turn=Turn.EAGER,
        runs=AtLeaseLeaders(settling.ack, count_settled),
        merge=merge.settled,
    ),
    Call(
        request=protocol.Hold,
        handler=hold,
        needs=on_subscription(CONSUME),
        subject=attrgetter("subscription"),
        turn=Turn.EAGER,
        runs=AtLeaseLeaders(settling.hold, count_settled),
        merge=merge.settled,
    ),
    Call(
        request=protocol.Nack,
        handler=nack,
        needs=on_subscription(CONSUME),
        subject=attrgetter("subscription"),
        turn=Turn.EAGER,
        runs=AtLeaseLeaders(settling.nack, count_settled),
        merge=merge.settled,
    ),
    Call(
        request=protocol.Reject,
        handler=reject,
        needs=on_subscription(CONSUME),
        subject=attrgetter("subscription"),
        turn=Turn.EAGER,
        runs=AtLeaseLeaders(settling.reject, count_settled),
        merge=merge.settled,
    ),
    Call(
        request=protocol.Extend,
        handler=extend,
        needs=on_subscription(CONSUME),
        subject=attrgetter("subscription"),
        turn=Turn.EAGER,
        runs=AtLeaseLeaders(settling.extend, count_extended),
        merge=merge.settled,
    ),
    Call(
        request=protocol.Return,
        handler=return_unread,
        needs=on_subscription(CONSUME),
        turn=Turn.EAGER,
        runs=AtLeaseLeaders(settling.return_unread, count_settled),
        merge=merge.settled,
    ),
)
