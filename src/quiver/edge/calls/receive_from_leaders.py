"""A receive in a cluster: messages from the first leader of the subscription that has some."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from quiver import protocol
from quiver.aio import cancel_and_wait
from quiver.broker.partition.reader import FETCH_WAIT_S_MAX
from quiver.client.transport.cluster import expect
from quiver.edge.calls.consumers import AT_COORDINATOR, heartbeat
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out import Here, ask
from quiver.edge.calls.fan_out_in_parts import at_lease_leaders
from quiver.edge.calls.merge import first_received
from quiver.edge.messages.receiving import Receiving
from quiver.edge.messages.settling import return_unread
from quiver.errors import QuiverError

_ROUND_MS = 2000
"""How long a receive waits before it looks up the leaders again."""

_PAUSE_S = 0.1
"""How long to wait before nodes are asked again one by one."""

_NOTHING = memoryview(b"")
_Part = Callable[[protocol.Receive], Coroutine[Any, Any, Answer]]
"""A receive from one node."""


class FromLeaders:
    """On the nodes that lead partitions of the subscription, until one has messages."""

    is_here, is_several = False, True

    async def answers(self, context: Context, request: protocol.Receive, _: Here) -> list[Answer]:
        await context.until_writable()
        services, caller = context.services, context.caller
        request.messages_max = caller.room_for_messages(request.messages_max)
        wait_s = min(max(request.wait_ms, 0) / 1000, FETCH_WAIT_S_MAX)
        receiving = _ReceivingFromLeaders(context)
        answer = await receiving.until(request, services.clock.monotonic() + wait_s)
        received = expect(protocol.Received, answer[0])
        if not context.is_wanted:
            await receiving.requeue(received)
        elif services.broker.leaders.is_to_be_settled(request.subscription):
            caller.took(received)
        return [answer]


class _ReceivingFromLeaders:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._services = context.services
        self._leaders = context.services.broker.leaders

    async def until(self, request: protocol.Receive, deadline: float) -> Answer:
        """Messages from the first node that has some; an empty answer after the deadline."""
        clock = self._services.clock
        while True:
            left_ms = max(0, round(1000 * (deadline - clock.monotonic())))
            begun = msgspec.structs.replace(request, wait_ms=min(left_ms, _ROUND_MS))
            answer = await self._round(begun)
            if _has_messages(answer) or left_ms == 0 or clock.monotonic() >= deadline:
                return answer

    async def _round(self, request: protocol.Receive) -> Answer:
        parts = await self._parts(request)
        answer = await self._in_turn(parts, msgspec.structs.replace(request, wait_ms=0))
        if _has_messages(answer) or not request.wait_ms:
            return answer
        if self._leaders.is_to_be_settled(request.subscription):
            return await self._at_once(parts, request)
        await self._services.clock.sleep(min(request.wait_ms / 1000, _PAUSE_S))
        return (
            answer  # what is delivered at most once cannot be given back: nodes are asked in turn
        )

    async def _in_turn(self, parts: list[_Part], request: protocol.Receive) -> Answer:
        """The answer of the first node with messages. Nodes take turns at being asked first."""
        answers: list[Answer] = []
        first = next(self._services.turns) % len(parts)
        for part in parts[first:] + parts[:first]:
            answers.append(await part(request))
            if _has_messages(answers[-1]):
                break
        return first_received(answers)

    async def _at_once(self, parts: list[_Part], request: protocol.Receive) -> Answer:
        """Wait for all at the same time. The first with messages wins; the others are requeued."""
        tasks = [asyncio.create_task(part(request)) for part in parts]
        chosen: asyncio.Task[Answer] | None = None
        try:
            chosen = await _first_with_messages(tasks)
            return first_received([] if chosen is None else [chosen.result()])
        finally:
            await cancel_and_wait(*tasks)
            for task in tasks:
                if task is not chosen and not task.cancelled() and task.exception() is None:
                    await self.requeue(expect(protocol.Received, task.result()[0]))

    async def _parts(self, request: protocol.Receive) -> list[_Part]:
        """One receive for each node that has partitions for this consumer."""
        name = request.subscription
        if self._leaders.is_group(name):
            places = self._leaders.by_leader(name, await self._membership(request))
        else:
            places = dict.fromkeys(self._leaders.leaders(name))
        parts: list[_Part] = [
            partial(self._here if address is None else partial(self._there, address), partitions)
            for address, partitions in places.items()
        ]
        return parts or [partial(self._nowhere, None)]

    async def _membership(self, request: protocol.Receive) -> list[str]:
        """The partitions that the coordinator assigned to this member of the group."""
        asked = protocol.Heartbeat(subscription=request.subscription, consumer=request.consumer)
        ((reply, _),) = await AT_COORDINATOR.answers(
            self._context, asked, lambda own: heartbeat(self._context, own, _NOTHING)
        )
        return expect(protocol.GroupMembership, reply).partitions

    async def _here(self, partitions: list[str] | None, request: protocol.Receive) -> Answer:
        own = msgspec.structs.replace(request, partitions=partitions)
        return await Receiving(self._services.broker, self._services.clock, own).finish()

    async def _there(
        self, address: str, partitions: list[str] | None, request: protocol.Receive
    ) -> Answer:
        try:
            own = msgspec.structs.replace(request, partitions=partitions)
            return await ask(self._context, address, own)
        except QuiverError as error:
            if not error.retryable:
                raise
        return await self._nowhere(partitions, request)

    async def _nowhere(self, _partitions: list[str] | None, request: protocol.Receive) -> Answer:
        """No leader can be asked now. Wait a little before the next round."""
        await self._services.clock.sleep(min(request.wait_ms, 200) / 1000)
        return protocol.Received(portions=[]), ()

    async def requeue(self, received: protocol.Received) -> None:
        """Return messages that nobody takes: they are ready again at once."""
        if not received.portions:
            return
        name = self._leaders.named_in(received.portions[0].lease)
        taken = [protocol.Settlement(one.lease, one.offsets) for one in received.portions]
        request = protocol.Return(subscription=name, settlements=taken)
        with contextlib.suppress(QuiverError):  # their leases end by themselves, later
            await at_lease_leaders(self._context, request, return_unread)


def _has_messages(answer: Answer) -> bool:
    return bool(expect(protocol.Received, answer[0]).portions)


async def _first_with_messages(
    tasks: list[asyncio.Task[Answer]],
) -> asyncio.Task[Answer] | None:
    """The first receive that got something; ``None`` once all have come back empty."""
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if _has_messages(task.result()):
                return task
    return None
