"""The calls that consumers make: subscriptions, receiving and settling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pyroaring import BitMap64

from quiver.broker.broker import Broker
from quiver.broker.inbox import Portion
from quiver.broker.subscription import WAIT_S_MAX, Settlement, Subscription
from quiver.errors import InvalidRequest
from quiver.model import wire
from quiver.model.batch import Bytes
from quiver.model.clock import Clock

SETTLEMENTS_MAX = 100_000
RECEIVE_BYTES_MAX = 32 << 20


async def manage(broker: Broker, request: wire.AnyRequest) -> wire.AnyReply:
    """Create, alter, delete, describe or list subscriptions."""
    match request:
        case wire.CreateSubscription():
            if request.start not in ("earliest", "latest"):
                raise InvalidRequest(
                    f"a subscription starts at 'earliest' or 'latest', not {request.start[:80]!r}"
                )
            info = await broker.create_subscription(
                request.name,
                request.settings,
                start=request.start,
                start_time=request.start_time_us,
                exist_ok=request.exist_ok,
            )
        case wire.CreateQueue():
            info = await broker.create_queue(
                request.name, request.topic, request.subscription, exist_ok=request.exist_ok
            )
        case wire.AlterSubscription():
            info = await broker.alter_subscription(request.name, request.changes)
        case wire.DescribeSubscription():
            info = await broker.describe_subscription(request.name)
        case wire.DeleteSubscription():
            await broker.delete_subscription(request.name)
            return wire.Done()
        case _:
            return wire.Subscriptions(subscriptions=broker.list_subscriptions())
    return wire.Subscription(subscription=info)


async def settle(broker: Broker, request: wire.Ack | wire.Nack | wire.Extend) -> wire.Settled:
    """Acknowledge, give back or hold messages; the reply is sent when that is durable."""
    if len(request.settlements) > SETTLEMENTS_MAX:
        raise InvalidRequest(f"at most {SETTLEMENTS_MAX:,} settlements go into one request")
    subscription = await broker.subscriptions.get(request.subscription)
    settlements = [Settlement(one.lease, _offsets(one.offsets)) for one in request.settlements]
    if isinstance(request, wire.Ack):
        stale = await subscription.ack(settlements)
    elif isinstance(request, wire.Nack):
        delay_s = None if request.delay_ms is None else request.delay_ms / 1000
        stale = await subscription.nack(settlements, delay_s=delay_s, error=request.error)
    else:
        stale = await subscription.extend(settlements, visibility_s=request.visibility_ms / 1000)
    return wire.Settled(
        stale=[wire.Settlement(one.token, one.offsets.serialize()) for one in stale]
    )


class Receiving:
    """One receive: tried at once, and again whenever something may be ready, until time is up."""

    def __init__(self, broker: Broker, clock: Clock, request: wire.Receive) -> None:
        self._broker = broker
        self._clock = clock
        self._request = request
        wait_s = min(max(request.wait_ms, 0) / 1000, WAIT_S_MAX)
        self._deadline = clock.monotonic() + wait_s
        self._give_back: Callable[[], None] = lambda: None

    async def attempt(self) -> tuple[wire.Received, Sequence[Bytes]] | None:
        """What there is, or ``None`` if that is nothing and there is time left to wait."""
        request = self._request
        subscription = await self._broker.subscriptions.get(request.subscription)
        portions = await subscription.receive(
            request.messages_max,
            bytes_max=min(request.bytes_max, RECEIVE_BYTES_MAX),
            consumer=request.consumer[:200],
            visibility_s=None if request.visibility_ms is None else request.visibility_ms / 1000,
        )
        self._give_back = partial(subscription.put_back, portions)
        if not portions and self._clock.monotonic() < self._deadline:
            return None
        buffers = [
            buffer
            for portion in portions
            for entry in portion.entries
            for buffer in entry.buffers()
        ]
        return wire.Received(portions=[_info(subscription, one) for one in portions]), buffers

    def give_back(self) -> None:
        """Nobody is there to take what the last attempt got: others may have it at once."""
        self._give_back()

    async def wait(self) -> None:
        subscription = await self._broker.subscriptions.get(self._request.subscription)
        await subscription.wait(max(0.0, self._deadline - self._clock.monotonic()))


def _info(subscription: Subscription, portion: Portion) -> wire.PortionInfo:
    taken = portion.taken
    return wire.PortionInfo(
        topic=portion.topic,
        topic_number=portion.topic_number,
        partition=portion.partition,
        lease=subscription.token(portion),
        deadline_us=taken.deadline,
        offsets=taken.offsets.serialize(),
        deliveries={
            count: (offsets & taken.offsets).serialize()
            for count, offsets in taken.deliveries.items()
            if count > 1
        },
        size=sum(entry.size() for entry in portion.entries),
    )


def _offsets(data: bytes) -> BitMap64:
    try:
        return BitMap64.deserialize(data)
    except (ValueError, IndexError, MemoryError) as error:
        raise InvalidRequest("the offsets are not a bitmap") from error
