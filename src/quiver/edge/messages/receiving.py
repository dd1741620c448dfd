"""One receive on this node. It tries at once, and again whenever a message may be ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from quiver import protocol
from quiver.broker.broker import Broker
from quiver.broker.delivery.partition_delivery import Portion
from quiver.broker.subscription.subscription import WAIT_S_MAX, Subscription
from quiver.model.batch import Bytes
from quiver.model.clock import Clock
from quiver.model.subscription import Guarantee, Ordering

RECEIVE_BYTES_MAX = 32 << 20
CONSUMER_MAX = 200
"""How many characters of a consumer's name are kept."""

Received = tuple[protocol.Received, Sequence[Bytes]]


class Receiving:
    """Call ``attempt`` and ``wait`` in turn until there is an answer. The deadline bounds it."""

    def __init__(self, broker: Broker, clock: Clock, request: protocol.Receive) -> None:
        self._broker = broker
        self._clock = clock
        self._request = request
        wait_s = min(max(request.wait_ms, 0) / 1000, WAIT_S_MAX)
        self._deadline = clock.monotonic() + wait_s
        self._requeue: Callable[[], None] = lambda: None
        self.is_to_be_settled = True
        """Whether the consumer must settle the messages."""

    async def attempt(self) -> Received | None:
        """The messages that are ready; ``None`` if there are none and time is left."""
        request = self._request
        subscription = await self._broker.directory.get(request.subscription)
        portions = await subscription.receive(
            request.messages_max,
            bytes_max=min(request.bytes_max, RECEIVE_BYTES_MAX),
            consumer=request.consumer[:CONSUMER_MAX],
            visibility_s=None if request.visibility_ms is None else request.visibility_ms / 1000,
            partitions=request.partitions,
        )
        self._requeue = partial(subscription.requeue, portions)
        settings = subscription.record.settings
        self.is_to_be_settled = settings.guarantee is not Guarantee.AT_MOST_ONCE
        if not portions and self._clock.monotonic() < self._deadline:
            return None
        return received_of(subscription, portions)

    def requeue(self) -> None:
        """Return the messages of the last attempt, which nobody takes: they are ready again at once."""
        self._requeue()

    async def wait(self) -> None:
        request = self._request
        subscription = await self._broker.directory.get(request.subscription)
        left_s = max(0.0, self._deadline - self._clock.monotonic())
        await subscription.wait(left_s, request.consumer[:CONSUMER_MAX], request.partitions)

    async def finish(self) -> Received:
        """Try until there is an answer."""
        while (received := await self.attempt()) is None:
            await self.wait()
        return received


async def until_ready(broker: Broker, clock: Clock, request: protocol.AwaitReady) -> bool:
    """Wait until a receive on this node may get something; ``False`` once the time is over.

    Nothing is leased, so it may be ended at any moment.
    """
    consumer, partitions = request.consumer[:CONSUMER_MAX], request.partitions
    deadline = clock.monotonic() + min(max(request.wait_ms, 0) / 1000, WAIT_S_MAX)
    while True:
        subscription = await broker.directory.get(request.subscription)
        left_s = max(0.0, deadline - clock.monotonic())
        if await subscription.watch(left_s, consumer, partitions):
            return True
        if clock.monotonic() >= deadline:
            return False


def received_of(subscription: Subscription, portions: Sequence[Portion]) -> Received:
    """The reply with these portions, and its body."""
    buffers = [
        buffer for portion in portions for entry in portion.entries for buffer in entry.buffers()
    ]
    return protocol.Received(
        portions=[_info(subscription, one) for one in portions],
        by_priority=subscription.record.settings.ordering is Ordering.NONE,
    ), buffers


def _info(subscription: Subscription, portion: Portion) -> protocol.PortionInfo:
    taken = portion.taken
    return protocol.PortionInfo(
        topic=portion.topic,
        topic_number=portion.topic_number,
        partition=portion.partition,
        lease=subscription.settler.token(portion),
        deadline_us=taken.deadline,
        offsets=taken.offsets.serialize(),
        deliveries={
            count: (offsets & taken.offsets).serialize()
            for count, offsets in taken.deliveries.items()
            if count > 1
        },
        size=portion.size,
    )
