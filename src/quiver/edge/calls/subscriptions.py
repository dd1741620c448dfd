"""The calls that consumers make: subscriptions, receiving and settling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from pyroaring import BitMap64

from quiver import protocol
from quiver.broker.broker import Broker
from quiver.broker.delivery.partition_delivery import Portion
from quiver.broker.subscription.subscription import WAIT_S_MAX, Settlement, Subscription
from quiver.errors import InvalidRequest
from quiver.model.batch import Bytes
from quiver.model.clock import Clock
from quiver.model.filter import Filter, parse_filter
from quiver.model.subscription import RECEIVE_MAX, Guarantee, Push, SubscriptionSettings

SETTLEMENTS_MAX = 100_000
IDS_MAX = 10_000
PEEKED_STATES = ("ready", "delayed", "leased")
RECEIVE_BYTES_MAX = 32 << 20


async def manage(broker: Broker, request: protocol.AnyRequest) -> protocol.AnyReply:
    """Create, alter, delete, describe or list subscriptions."""
    match request:
        case protocol.CreateSubscription():
            if request.start not in ("earliest", "latest"):
                raise InvalidRequest(
                    f"a subscription starts at 'earliest' or 'latest', not {request.start[:80]!r}"
                )
            info = await broker.subscriptions.create(
                request.name,
                request.settings,
                start=request.start,
                start_time=request.start_time_us,
                start_offset=request.start_offset,
                exist_ok=request.exist_ok,
            )
        case protocol.CreateQueue():
            info = await broker.subscriptions.create_queue(
                request.name, request.topic, request.subscription, exist_ok=request.exist_ok
            )
        case protocol.AlterSubscription():
            info = await broker.subscriptions.alter(request.name, request.changes)
        case protocol.DescribeSubscription():
            info = await broker.subscriptions.describe(request.name)
        case protocol.DeleteSubscription():
            await broker.subscriptions.delete(request.name)
            return protocol.Done()
        case protocol.ListSubscriptions():
            return protocol.Subscriptions(subscriptions=broker.subscriptions.infos())
        case _:
            return await _tend(broker, request)
    return protocol.Subscription(subscription=info)


def push_url(request: protocol.AnyRequest) -> str | None:
    """Where the subscription that is made or changed would push, if it says so."""
    match request:
        case protocol.CreateSubscription(settings=SubscriptionSettings(push=Push(url=url))):
            return url
        case (
            protocol.CreateQueue(subscription={"push": {"url": str(url)}})
            | protocol.AlterSubscription(changes={"push": {"url": str(url)}})
        ):
            return url
    return None


async def _tend(broker: Broker, request: protocol.AnyRequest) -> protocol.AnyReply:
    """Groups, replay and clearing up."""
    match request:
        case protocol.Heartbeat():
            subscription = await broker.directory.get(request.subscription)
            return protocol.GroupMembership(
                partitions=subscription.heartbeat(request.consumer[:200])
            )
        case protocol.Leave():
            subscription = await broker.directory.get(request.subscription)
            subscription.leave(request.consumer[:200])
            return protocol.Done()
        case protocol.Seek():
            await _seek(broker, request)
            return protocol.Done()
        case protocol.Purge():
            condition = _condition(request.filter)
            return protocol.Counted(
                count=await broker.directory.purge(request.subscription, condition)
            )
        case protocol.Cancel():
            if len(request.ids) > IDS_MAX:
                raise InvalidRequest(f"at most {IDS_MAX:,} messages are cancelled in one request")
            return protocol.Counted(count=await broker.lookup.cancel(request.topic, request.ids))
        case protocol.Redrive():
            redriven = await broker.dead_letters.redrive(
                request.subscription,
                to=request.to,
                condition=_condition(request.filter),
                dry_run=request.dry_run,
                messages_max=request.messages_max,
            )
            return protocol.Redriven(count=redriven.count, by_topic=redriven.by_topic)
    raise AssertionError(f"{type(request).__name__} has no handler")


async def _seek(broker: Broker, request: protocol.Seek) -> None:
    given = [request.at, request.time_us, request.offset, request.places]
    if sum(one is not None for one in given) != 1:
        raise InvalidRequest("a seek has one goal: a name, a time, an offset, or places")
    if request.at is not None and request.at not in ("earliest", "latest"):
        raise InvalidRequest(f"seek to 'earliest' or 'latest', not {request.at[:80]!r}")
    offsets = None
    if request.places is not None:
        offsets = {(place.topic, place.partition): place.offset for place in request.places}
    await broker.directory.seek(
        request.subscription,
        at=request.at,
        time_us=request.time_us,
        offset=request.offset,
        offsets=offsets,
    )


def _condition(text: str | None) -> Filter | None:
    return None if text is None else parse_filter(text)


async def peek(broker: Broker, request: protocol.Peek) -> tuple[protocol.Peeked, list[Bytes]]:
    """Pending messages as they are now."""
    if not 1 <= request.messages_max <= RECEIVE_MAX:
        raise InvalidRequest(f"a peek is at 1 to {RECEIVE_MAX:,} messages")
    if not set(request.states) <= set(PEEKED_STATES) or not request.states:
        raise InvalidRequest(f"the states to peek at are {', '.join(PEEKED_STATES)}")
    subscription = await broker.directory.get(request.subscription)
    peeked_batches = await subscription.peek(
        request.messages_max,
        bytes_max=min(request.bytes_max, RECEIVE_BYTES_MAX),
        states=request.states,
    )
    infos = [
        protocol.PeekedBatchInfo(
            topic=peeked.topic,
            topic_number=peeked.topic_number,
            partition=peeked.partition,
            offsets=peeked.offsets.serialize(),
            states={state: part.serialize() for state, part in peeked.states.items() if part},
            deliveries={count: part.serialize() for count, part in peeked.deliveries.items()},
            size=sum(entry.size() for entry in peeked.entries),
        )
        for peeked in peeked_batches
    ]
    entries = [entry for peeked in peeked_batches for entry in peeked.entries]
    return protocol.Peeked(batches=infos), [
        buffer for entry in entries for buffer in entry.buffers()
    ]


async def read_state(
    broker: Broker, request: protocol.ReadState
) -> tuple[protocol.StateRead, list[Bytes]]:
    """Every pending message of a subscription, once all that is stored was looked at."""
    subscription = await broker.directory.get(request.subscription)
    partitions: list[protocol.PartitionDeliveries] = []
    buffers: list[Bytes] = []
    for delivery in subscription.deliveries.values():
        view = delivery.view
        await delivery.state.catch_up_to(delivery.machine, delivery.state.data.next_offset)
        states = {state: view.in_state(state) for state in PEEKED_STATES}
        states["dead"] = view.dead_letter_pending.copy()
        pending = BitMap64.union(BitMap64(), *states.values())
        of_states = {state: part.serialize() for state, part in states.items() if part}
        counts = {count: part.serialize() for count, part in view.deliveries_of(pending).items()}
        partitions.append(
            protocol.PartitionDeliveries(
                topic=delivery.topic,
                topic_number=delivery.topic_number,
                partition=delivery.partition,
                next_offset=view.observed_to,
                states={state: len(data) for state, data in of_states.items()},
                deliveries={count: len(data) for count, data in counts.items()},
            )
        )
        buffers += [*of_states.values(), *counts.values()]
    return protocol.StateRead(partitions=partitions), buffers


async def find(
    broker: Broker, request: protocol.FindMessage
) -> tuple[protocol.MessageFound, list[Bytes]]:
    """A message by its id."""
    found = await broker.lookup.find(request.topic, request.message_id)
    reply = protocol.MessageFound(
        partition=found.id.partition,
        offset=found.id.offset,
        topic_number=found.id.topic,
        statuses=found.statuses,
    )
    return reply, [] if found.entry is None else list(found.entry.buffers())


async def acknowledge(
    broker: Broker, request: protocol.Ack
) -> tuple[protocol.Settled, list[asyncio.Future[None]]]:
    """Acknowledge messages; the reply, and what has to be stored before it is sent."""
    subscription = await broker.directory.get(request.subscription)
    stale, stored = subscription.ack(_settlements(request))
    return _settled(stale), stored


async def settle(
    broker: Broker, request: protocol.Ack | protocol.Nack | protocol.Extend | protocol.Return
) -> protocol.Settled:
    """Acknowledge, give back or hold messages; the reply is given when that is durable."""
    if isinstance(request, protocol.Ack):
        settled, stored = await acknowledge(broker, request)
        await asyncio.gather(*map(asyncio.shield, stored))  # others wait for it too
        return settled
    subscription = await broker.directory.get(request.subscription)
    settlements = _settlements(request)
    if isinstance(request, protocol.Nack):
        delay_s = None if request.delay_ms is None else request.delay_ms / 1000
        stale = await subscription.nack(settlements, delay_s=delay_s, error=request.error)
    elif isinstance(request, protocol.Return):
        stale = await subscription.return_unread(settlements)
    else:
        stale = await subscription.extend(settlements, visibility_s=request.visibility_ms / 1000)
    return _settled(stale)


def _settlements(
    request: protocol.Ack | protocol.Nack | protocol.Extend | protocol.Return,
) -> list[Settlement]:
    if len(request.settlements) > SETTLEMENTS_MAX:
        raise InvalidRequest(f"at most {SETTLEMENTS_MAX:,} settlements go into one request")
    return [Settlement(one.lease, _offsets(one.offsets)) for one in request.settlements]


def _settled(stale: list[Settlement]) -> protocol.Settled:
    return protocol.Settled(
        stale=[protocol.Settlement(one.token, one.offsets.serialize()) for one in stale]
    )


class Receiving:
    """One receive: tried at once, and again whenever something may be ready, until time is up."""

    def __init__(self, broker: Broker, clock: Clock, request: protocol.Receive) -> None:
        self._broker = broker
        self._clock = clock
        self._request = request
        wait_s = min(max(request.wait_ms, 0) / 1000, WAIT_S_MAX)
        self._deadline = clock.monotonic() + wait_s
        self._requeue: Callable[[], None] = lambda: None
        self.is_to_be_settled = True
        """Whether the consumer holds what it gets until it settles it."""

    async def attempt(self) -> tuple[protocol.Received, Sequence[Bytes]] | None:
        """What there is, or ``None`` if that is nothing and there is time left to wait."""
        request = self._request
        subscription = await self._broker.directory.get(request.subscription)
        portions = await subscription.receive(
            request.messages_max,
            bytes_max=min(request.bytes_max, RECEIVE_BYTES_MAX),
            consumer=request.consumer[:200],
            visibility_s=None if request.visibility_ms is None else request.visibility_ms / 1000,
            partitions=request.partitions,
        )
        self._requeue = partial(subscription.requeue, portions)
        guarantee = subscription.record.settings.guarantee
        self.is_to_be_settled = guarantee is not Guarantee.AT_MOST_ONCE
        if not portions and self._clock.monotonic() < self._deadline:
            return None
        buffers = [
            buffer
            for portion in portions
            for entry in portion.entries
            for buffer in entry.buffers()
        ]
        return protocol.Received(portions=[_info(subscription, one) for one in portions]), buffers

    def requeue(self) -> None:
        """Nobody is there to take what the last attempt got: others may have it at once."""
        self._requeue()

    async def wait(self) -> None:
        subscription = await self._broker.directory.get(self._request.subscription)
        left_s = max(0.0, self._deadline - self._clock.monotonic())
        await subscription.wait(left_s, self._request.consumer[:200], self._request.partitions)


def _info(subscription: Subscription, portion: Portion) -> protocol.PortionInfo:
    taken = portion.taken
    return protocol.PortionInfo(
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
        size=portion.size,
    )


def _offsets(data: bytes) -> BitMap64:
    try:
        return BitMap64.deserialize(data)
    except (ValueError, IndexError, MemoryError) as error:
        raise InvalidRequest("the offsets are not a bitmap") from error
