"""Settling messages whose partitions this node leads: ack, hold, nack, reject, extend and return."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pyroaring import BitMap64

from quiver import protocol
from quiver.broker.broker import Broker
from quiver.broker.subscription.settlement import Settlement
from quiver.errors import InvalidRequest
from quiver.model.transaction import TransactionId

SETTLEMENTS_MAX = 100_000
_TRANSACTION_MAX = (1 << 63) - 1

Settling = (
    protocol.Ack
    | protocol.Hold
    | protocol.Nack
    | protocol.Reject
    | protocol.Extend
    | protocol.Return
)
Stored = asyncio.Future[None]
Settle = Callable[[Broker, Any], Awaitable[protocol.Settled]]
"""Settles messages whose partitions this node leads; returns when that is durable."""


async def begin_ack(
    broker: Broker, request: protocol.Ack
) -> tuple[protocol.Settled, list[asyncio.Future[None]]]:
    """Acknowledge messages. Returns the reply, and the writes that must be durable before it is sent."""
    subscription = await broker.directory.get(request.subscription)
    stale, stored = subscription.settler.ack(settlements_of(request.settlements))
    return settled_of(stale), stored


async def ack(broker: Broker, request: protocol.Ack) -> protocol.Settled:
    settled, stored = await begin_ack(broker, request)
    await asyncio.gather(*map(asyncio.shield, stored))  # others wait for it too
    return settled


async def begin_hold(
    broker: Broker, request: protocol.Hold
) -> tuple[protocol.Settled, list[asyncio.Future[None]]]:
    """Let messages wait for a transaction. Returns what ``begin_ack`` does."""
    if not 0 <= request.transaction <= _TRANSACTION_MAX:
        raise InvalidRequest(f"{request.transaction} is not the id of a transaction")
    subscription = await broker.directory.get(request.subscription)
    stale, stored = subscription.settler.hold(
        settlements_of(request.settlements), TransactionId(request.transaction)
    )
    return settled_of(stale), stored


async def hold(broker: Broker, request: protocol.Hold) -> protocol.Settled:
    settled, stored = await begin_hold(broker, request)
    await asyncio.gather(*map(asyncio.shield, stored))  # others wait for it too
    return settled


async def nack(broker: Broker, request: protocol.Nack) -> protocol.Settled:
    subscription = await broker.directory.get(request.subscription)
    delay_s = None if request.delay_ms is None else request.delay_ms / 1000
    settlements = settlements_of(request.settlements)
    return settled_of(
        await subscription.settler.nack(settlements, delay_s=delay_s, error=request.error)
    )


async def reject(broker: Broker, request: protocol.Reject) -> protocol.Settled:
    subscription = await broker.directory.get(request.subscription)
    settlements = settlements_of(request.settlements)
    return settled_of(await subscription.settler.reject(settlements, error=request.error))


async def extend(broker: Broker, request: protocol.Extend) -> protocol.Settled:
    subscription = await broker.directory.get(request.subscription)
    settlements = settlements_of(request.settlements)
    visibility_s = request.visibility_ms / 1000
    return settled_of(await subscription.settler.extend(settlements, visibility_s=visibility_s))


async def return_unread(broker: Broker, request: protocol.Return) -> protocol.Settled:
    subscription = await broker.directory.get(request.subscription)
    return settled_of(await subscription.settler.return_unread(settlements_of(request.settlements)))


def settlements_of(settlements: Sequence[protocol.Settlement]) -> list[Settlement]:
    """Settlements as the broker has them."""
    if len(settlements) > SETTLEMENTS_MAX:
        raise InvalidRequest(f"at most {SETTLEMENTS_MAX:,} settlements go into one request")
    return [Settlement(one.lease, _offsets(one.offsets)) for one in settlements]


def settled_of(stale: list[Settlement]) -> protocol.Settled:
    """The reply that says what could not be settled."""
    return protocol.Settled(
        stale=[protocol.Settlement(one.token, one.offsets.serialize()) for one in stale]
    )


def _offsets(data: bytes) -> BitMap64:
    try:
        return BitMap64.deserialize(data)
    except (ValueError, IndexError, MemoryError) as error:
        raise InvalidRequest("the offsets are not a bitmap") from error
