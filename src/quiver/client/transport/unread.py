"""Answers that nobody reads: messages that are in them are returned, so that others get them.

Whoever waits for an answer may leave at any moment: before it comes, in the very moment in which it
comes, or when it is there and has not been looked at. In none of them a lease is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quiver.client.transport.channel import Answer
from quiver.protocol import AnyReply, AnyRequest, AwaitReady, Receive, Received, Return, Settlement

OnlyWaits = Receive | AwaitReady
"""What the node is told to end when nobody waits for the answer any more."""


def return_of(request: AnyRequest | None, reply: AnyReply) -> Return | None:
    """What returns the messages in an answer that nobody reads; ``None`` if there are none."""
    if not isinstance(request, Receive) or not isinstance(reply, Received) or not reply.portions:
        return None
    taken = [Settlement(portion.lease, portion.offsets) for portion in reply.portions]
    return Return(subscription=request.subscription, settlements=taken)


async def read(answer: asyncio.Future[Answer], unread: Callable[[AnyReply], None]) -> Answer:
    """Wait for an answer. One that is there when the waiting task is cancelled is ``unread``."""
    try:
        return await answer
    except asyncio.CancelledError:
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            unread(answer.result()[0])
        raise
