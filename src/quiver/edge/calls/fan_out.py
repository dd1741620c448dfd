"""Calls about a whole subscription, in a cluster: every leader does its part, the answers are one.

The node that is asked does what concerns its own partitions and passes the call on to the nodes that
lead the others. What came from a node is not passed on again: there is one hop at most.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from quiver import protocol
from quiver.client.transport.cluster import expect
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import PEER
from quiver.edge.calls.subscriptions import Receiving, settle
from quiver.edge.services import NodeServices
from quiver.errors import QuiverError
from quiver.model.batch import Bytes
from quiver.model.message_id import parse_message_id

_ROUND_MS = 2000
"""How long a receive waits before it looks again who leads what."""

_PAUSE_S = 0.1
"""How long to wait before nodes are asked again one by one."""

_RECENT_MAX = 100

Reply = tuple[protocol.AnyReply, Sequence[Bytes]]
Settling = protocol.Ack | protocol.Nack | protocol.Extend | protocol.Return
Local = Callable[[], Awaitable[Reply]]
_Part = Callable[[protocol.Receive], Coroutine[Any, Any, Reply]]
"""A receive from one node."""
_OfSubscription = (
    protocol.DescribeSubscription
    | protocol.Leave
    | protocol.Purge
    | protocol.Peek
    | protocol.ReadState
    | protocol.Seek
)


class FanOut:
    def __init__(self, services: NodeServices) -> None:
        self._services = services
        self._broker = services.broker

    def is_needed(self, caller: Caller) -> bool:
        """Whether this caller's calls may concern partitions that other nodes lead."""
        return self._services.peers is not None and caller.principal is not PEER

    async def _ask(self, address: str, request: protocol.AnyRequest) -> Reply:
        assert self._services.peers is not None
        channel = await self._services.peers.channel(address)
        reply, body = await channel.call(msgspec.structs.replace(request))
        return reply, [body] if len(body) else []

    # ------------------------------------------------------------------ receiving

    async def receive(
        self, request: protocol.Receive, deadline: float
    ) -> tuple[protocol.Received, Sequence[Bytes]]:
        """Messages from whichever node has some first; none when the time is over."""
        clock = self._services.clock
        while True:
            left_ms = max(0, round(1000 * (deadline - clock.monotonic())))
            begun = msgspec.structs.replace(request, wait_ms=min(left_ms, _ROUND_MS))
            reply, body = await self._round(begun)
            received = expect(protocol.Received, reply)
            if received.portions or left_ms == 0 or clock.monotonic() >= deadline:
                return received, body

    async def _round(self, request: protocol.Receive) -> Reply:
        parts = await self._parts(request)
        reply = await self._in_turn(parts, msgspec.structs.replace(request, wait_ms=0))
        if expect(protocol.Received, reply[0]).portions or not request.wait_ms:
            return reply
        if self._broker.leaders.is_to_be_settled(request.subscription):
            return await self._at_once(parts, request)
        await self._services.clock.sleep(min(request.wait_ms / 1000, _PAUSE_S))
        return reply  # what is delivered at most once cannot be given back: nodes are asked in turn

    async def _in_turn(self, parts: list[_Part], request: protocol.Receive) -> Reply:
        """What the first node has that has something; each is the first to be asked as often."""
        reply: Reply = protocol.Received(portions=[]), ()
        first = next(self._services.turns) % len(parts)
        for part in parts[first:] + parts[:first]:
            reply = await part(request)
            if expect(protocol.Received, reply[0]).portions:
                break
        return reply

    async def _at_once(self, parts: list[_Part], request: protocol.Receive) -> Reply:
        """Wait for all of them; what others than the first have taken meanwhile is given back."""
        tasks = [asyncio.create_task(part(request)) for part in parts]
        chosen: asyncio.Task[Reply] | None = None
        try:
            chosen = await _first_with_messages(tasks)
            return (protocol.Received(portions=[]), ()) if chosen is None else chosen.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if task is not chosen and not task.cancelled() and task.exception() is None:
                    await self.requeue(task.result()[0])

    async def _parts(self, request: protocol.Receive) -> list[_Part]:
        """One receive for each node that has partitions for this consumer."""
        leaders = self._broker.leaders
        if leaders.is_group(request.subscription):
            mine = await self._membership(request.subscription, request.consumer)
            places = leaders.by_leader(request.subscription, mine)
        else:
            places = dict.fromkeys(leaders.leaders(request.subscription))
        parts: list[_Part] = [
            partial(self._here if address is None else partial(self._there, address), partitions)
            for address, partitions in places.items()
        ]
        return parts or [partial(self._nowhere, None)]

    async def _here(self, partitions: list[str] | None, request: protocol.Receive) -> Reply:
        request = msgspec.structs.replace(request, partitions=partitions)
        receiving = Receiving(self._broker, self._services.clock, request)
        while True:
            received = await receiving.attempt()
            if received is not None:
                return received
            await receiving.wait()

    async def _there(
        self, address: str, partitions: list[str] | None, request: protocol.Receive
    ) -> Reply:
        try:
            own = msgspec.structs.replace(request, partitions=partitions)
            return await self._ask(address, own)
        except QuiverError as error:
            if not error.retryable:
                raise
        return await self._nowhere(partitions, request)

    async def _nowhere(self, _partitions: list[str] | None, request: protocol.Receive) -> Reply:
        """Nobody can be asked now: that may be otherwise in a while."""
        await self._services.clock.sleep(min(request.wait_ms, 200) / 1000)
        return protocol.Received(portions=[]), ()

    async def requeue(self, reply: protocol.AnyReply) -> None:
        """Nobody takes these: others may have them at once."""
        portions = expect(protocol.Received, reply).portions
        if not portions:
            return
        name = self._broker.leaders.named_in(portions[0].lease)
        taken = [protocol.Settlement(portion.lease, portion.offsets) for portion in portions]
        with contextlib.suppress(QuiverError):  # their leases end by themselves, later
            await self.settle(protocol.Return(subscription=name, settlements=taken))

    # ------------------------------------------------------------------ groups

    async def _membership(self, subscription: str, consumer: str) -> list[str]:
        """The partitions that a member of a group reads, by the word of its coordinator."""
        request = protocol.Heartbeat(subscription=subscription, consumer=consumer)
        reply, _ = await self.at_coordinator(request, subscription)
        return expect(protocol.GroupMembership, reply).partitions

    async def at_coordinator(
        self, request: protocol.Heartbeat | protocol.Leave, subscription: str
    ) -> Reply:
        """The node that leads the first partition of a group's decides who reads what."""
        address = self._broker.leaders.coordinator(subscription)
        if address is not None:
            return await self._ask(address, request)
        group = await self._broker.directory.get(subscription)
        if isinstance(request, protocol.Leave):
            group.leave(request.consumer[:200])
            return protocol.Done(), ()
        return protocol.GroupMembership(partitions=group.heartbeat(request.consumer[:200])), ()

    # ------------------------------------------------------------------ settling

    async def settle(self, request: Settling) -> protocol.Settled:
        """Each lease is settled by the node that leads its partition."""
        parts: dict[str | None, list[protocol.Settlement]] = defaultdict(list)
        for one in request.settlements:
            parts[self._broker.leaders.leader_of_lease(one.lease)].append(one)
        replies = await asyncio.gather(
            *(self._settle(address, request, part) for address, part in parts.items())
        )
        return protocol.Settled(stale=[one for reply in replies for one in reply.stale])

    async def _settle(
        self, address: str | None, request: Settling, part: list[protocol.Settlement]
    ) -> protocol.Settled:
        own = msgspec.structs.replace(request, settlements=part)
        if address is None:
            return await settle(self._broker, own)
        return expect(protocol.Settled, (await self._ask(address, own))[0])

    # ------------------------------------------------------------------ all the others

    async def reply_to(self, request: protocol.AnyRequest, local: Local) -> Reply:
        """The answer of all nodes that the call concerns."""
        handler = _HANDLERS.get(type(request))
        return await local() if handler is None else await handler(self, request, local)

    async def _heartbeat(self, request: protocol.Heartbeat, _: Local) -> Reply:
        return await self.at_coordinator(request, request.subscription)

    async def _leave(self, request: protocol.Leave, local: Local) -> Reply:
        await self._everywhere(request, local)
        return await self.at_coordinator(request, request.subscription)

    async def _find(self, request: protocol.FindMessage, local: Local) -> Reply:
        place = parse_message_id(request.message_id)
        address = self._broker.topics.leader_of(request.topic, place.partition)
        return await local() if address is None else await self._ask(address, request)

    async def _describe(self, request: protocol.DescribeSubscription, local: Local) -> Reply:
        return _described(await self._everywhere(request, local))

    async def _purge(self, request: protocol.Purge, local: Local) -> Reply:
        self._broker.leaders.require_led(request.subscription)
        replies = await self._everywhere(request, local)
        return protocol.Counted(
            count=sum(expect(protocol.Counted, one).count for one, _ in replies)
        ), ()

    async def _look(self, request: protocol.Peek | protocol.ReadState, local: Local) -> Reply:
        return _joined(await self._everywhere(request, local))

    async def _seek(self, request: protocol.Seek, local: Local) -> Reply:
        self._broker.leaders.require_led(request.subscription)
        await self._everywhere(request, local)
        return protocol.Done(), ()

    async def _alerts(self, request: protocol.ListAlerts, local: Local) -> Reply:
        """Each node judges what it leads, and one of them the cluster: those of all who answer."""
        assert self._services.peers is not None
        others = [self._ask(address, request) for address in self._services.peers.addresses]
        replies = await asyncio.gather(local(), *others, return_exceptions=True)
        if isinstance(replies[0], BaseException):
            raise replies[0]
        return _alerts([one for one in replies if not isinstance(one, BaseException)])

    async def _everywhere(self, request: _OfSubscription, local: Local) -> list[Reply]:
        leaders = self._broker.leaders.leaders(_subscription_of(request))
        others = [self._ask(address, request) for address in leaders if address is not None]
        return list(await asyncio.gather(local(), *others))

    async def _cancel(self, request: protocol.Cancel, local: Local) -> Reply:
        parts: dict[int, list[str]] = defaultdict(list)
        for one in request.ids:
            parts[parse_message_id(one).partition].append(one)
        count = 0
        for index, ids in parts.items():
            part = msgspec.structs.replace(request, ids=ids)
            address = self._broker.topics.leader_of(request.topic, index)
            if address is None:
                count += await self._broker.lookup.cancel(request.topic, ids)
            else:
                count += expect(protocol.Counted, (await self._ask(address, part))[0]).count
        return (protocol.Counted(count=count), ()) if parts else await local()

    async def _redrive(self, request: protocol.Redrive, local: Local) -> Reply:
        """One after the other, so that no more than was asked for go back."""
        letters = self._broker.dead_letters.queue_of(request.subscription)
        count, by_topic, left = 0, defaultdict[str, int](int), request.messages_max
        for address in self._broker.leaders.leaders(letters or request.subscription):
            if left <= 0:
                break
            part = msgspec.structs.replace(request, messages_max=left)
            reply, _ = await (local() if address is None else self._ask(address, part))
            redriven = expect(protocol.Redriven, reply)
            count += redriven.count
            left -= redriven.count
            for topic, sent in redriven.by_topic.items():
                by_topic[topic] += sent
        return protocol.Redriven(count=count, by_topic=dict(by_topic)), ()


async def _first_with_messages(
    tasks: list[asyncio.Task[Reply]],
) -> asyncio.Task[Reply] | None:
    """The first receive that got something; ``None`` once all have come back empty."""
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if expect(protocol.Received, task.result()[0]).portions:
                return task
    return None


def _subscription_of(request: _OfSubscription) -> str:
    return (
        request.name if isinstance(request, protocol.DescribeSubscription) else request.subscription
    )


_HANDLERS: dict[type, Callable[[FanOut, Any, Local], Awaitable[Reply]]] = {
    protocol.Heartbeat: FanOut._heartbeat,
    protocol.Leave: FanOut._leave,
    protocol.FindMessage: FanOut._find,
    protocol.Cancel: FanOut._cancel,
    protocol.DescribeSubscription: FanOut._describe,
    protocol.Purge: FanOut._purge,
    protocol.Redrive: FanOut._redrive,
    protocol.Peek: FanOut._look,
    protocol.ReadState: FanOut._look,
    protocol.Seek: FanOut._seek,
    protocol.ListAlerts: FanOut._alerts,
}


def _described(replies: list[Reply]) -> Reply:
    """One description, with what each node knows added up."""
    infos = [expect(protocol.Subscription, reply).subscription for reply, _ in replies]
    members = next((info.members for info in infos if info.members), infos[0].members)
    sums = {
        name: sum(getattr(info, name) or 0 for info in infos)
        for name in ("ready", "delayed", "leased", "dead", "unseen")
    }
    consumers = sorted({one for info in infos for one in info.consumers or ()})
    return (
        protocol.Subscription(
            subscription=msgspec.structs.replace(
                infos[0], members=members, consumers=consumers, **sums
            )
        ),
        (),
    )


def _alerts(replies: list[Reply]) -> Reply:
    """The worst first, then the newest; of those that cleared the newest, no more than of one node."""
    alerts = [expect(protocol.Alerts, reply) for reply, _ in replies]
    firing = [one for each in alerts for one in each.firing]
    recent = [one for each in alerts for one in each.recent]
    firing.sort(key=lambda one: (one.severity != "critical", -one.since_us))
    recent.sort(key=lambda one: -(one.until_us or 0))
    return protocol.Alerts(firing=firing, recent=recent[:_RECENT_MAX]), ()


def _joined(replies: list[Reply]) -> Reply:
    """What each node saw, one after the other."""
    first = replies[0][0]
    bodies = [buffer for _, body in replies for buffer in body]
    if isinstance(first, protocol.Peeked):
        batches = [one for reply, _ in replies for one in expect(protocol.Peeked, reply).batches]
        return protocol.Peeked(batches=batches), bodies
    parts = [one for reply, _ in replies for one in expect(protocol.StateRead, reply).partitions]
    return protocol.StateRead(partitions=parts), bodies
