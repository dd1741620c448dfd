"""A receive in a cluster: messages from the first leader of the subscription that has some.

Waiting leases nothing. The leaders are asked one after the other, without a wait. Mostly this node is the
first, as its own messages need no hop. While all are empty the receive waits until one of them has something
ready, and asks that one. What is asked for is asked to the end: messages for a caller that has left
meanwhile are requeued, so no lease is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
from math import ceil

import msgspec

from quiver import protocol
from quiver.aio import cancel_and_wait, finish
from quiver.broker.partition.reader import FETCH_WAIT_S_MAX
from quiver.client.transport.cluster import expect
from quiver.edge.calls.consumers import AT_COORDINATOR, heartbeat
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.in_parts import at_lease_leaders
from quiver.edge.calls.fan_out.route import Here, ask
from quiver.edge.calls.merge import first_received
from quiver.edge.messages.receiving import Receiving, until_ready
from quiver.edge.messages.settling import return_unread
from quiver.errors import QuiverError, UnknownCall

_ROUND_S = 2.0
"""How long a receive waits before it looks up the leaders again."""
_PAUSE_S = 0.1
"""How long to wait where nobody says when something is ready: for a node of an older version."""
_NOWHERE_S = 0.2
"""How long to wait for a leader that cannot be asked now."""
_MISSED_S = 0.002
"""How much longer to wait for each time that others were sooner."""
_REQUEUE_ATTEMPTS = 5
_STAYS = 8
"""Of so many receives one begins with another node. A client goes on with the node that had messages, so
those that ask again and again pass by all of them."""

_NOTHING = memoryview(b"")


class _Part(msgspec.Struct, frozen=True):
    """A node that leads partitions of the subscription; without an address it is this one."""

    address: str | None
    partitions: list[str] | None
    """Of a group: those of the consumer."""


class FromLeaders:
    """On the nodes that lead partitions of the subscription, until one has messages."""

    is_here, is_several = False, True

    async def answers(self, context: Context, request: protocol.Receive, _: Here) -> list[Answer]:
        return [await _ReceivingFromLeaders(context, request).finish()]


class _ReceivingFromLeaders:
    def __init__(self, context: Context, request: protocol.Receive) -> None:
        self._context = context
        self._request = request
        self._services = context.services
        self._leaders = context.services.broker.leaders
        self._clock = context.services.clock
        wait_s = min(max(request.wait_ms, 0) / 1000, FETCH_WAIT_S_MAX)
        self._deadline = self._clock.monotonic() + wait_s

    @property
    def _left_s(self) -> float:
        return self._deadline - self._clock.monotonic()

    async def finish(self) -> Answer:
        """Messages from the first node that has some; an empty answer after the deadline."""
        answer = await self._received(await self._parts())
        missed = 0
        while not _has_messages(answer) and self._left_s > 0:
            ready = await self._until_ready(await self._parts())
            if ready:
                answer = await self._received(ready)
                missed += 1
                if not _has_messages(answer) and missed > 1:
                    await self._rest(min(_PAUSE_S, missed * _MISSED_S))
        return answer

    # ------------------------------------------------------------------ asking

    async def _received(self, parts: list[_Part]) -> Answer:
        """Messages of the first node that has some. If the caller has left, they are requeued."""
        await self._context.until_writable()
        room = self._context.caller.room_for_messages(self._request.messages_max)
        asking = asyncio.ensure_future(self._in_turn(parts, room))
        try:
            answer = await finish(asking)
        except asyncio.CancelledError:
            if not asking.cancelled() and asking.exception() is None:
                await finish(self._requeue(asking.result()))
            raise
        if not self._context.is_wanted:
            await finish(self._requeue(answer))
            return protocol.Received(portions=[]), ()
        if self._leaders.is_to_be_settled(self._request.subscription):
            self._context.caller.took(expect(protocol.Received, answer[0]))
        return answer

    async def _in_turn(self, parts: list[_Part], messages_max: int) -> Answer:
        answers: list[Answer] = []
        refusal: QuiverError | None = None
        for part in parts:
            request = msgspec.structs.replace(
                self._request, wait_ms=0, messages_max=messages_max, partitions=part.partitions
            )
            try:
                answers.append(await self._ask(part, request))
            except QuiverError as error:
                if not error.retryable:
                    raise
                refusal = error
                continue
            if _has_messages(answers[-1]):
                return answers[-1]
        if refusal is not None:
            raise refusal
        return first_received(answers)

    async def _ask(self, part: _Part, request: protocol.Receive) -> Answer:
        if part.address is None:
            return await Receiving(self._services.broker, self._clock, request).finish()
        try:
            reply, body = await ask(self._context, part.address, request)
        except QuiverError as error:
            if not error.retryable:
                raise
            return protocol.Received(portions=[]), ()
        return msgspec.structs.replace(expect(protocol.Received, reply), leader=part.address), body

    async def _requeue(self, answer: Answer) -> None:
        """Return messages that nobody takes: they are ready again at once."""
        portions = expect(protocol.Received, answer[0]).portions
        name = self._request.subscription
        if not portions or not self._leaders.is_to_be_settled(name):
            return
        taken = [protocol.Settlement(one.lease, one.offsets) for one in portions]
        request = protocol.Return(subscription=name, settlements=taken)
        for _ in range(_REQUEUE_ATTEMPTS):
            with contextlib.suppress(QuiverError):  # otherwise their leases end by themselves
                await at_lease_leaders(self._context, request, return_unread)
                return
            await self._clock.sleep(_NOWHERE_S)

    # ------------------------------------------------------------------ waiting

    async def _until_ready(self, parts: list[_Part]) -> list[_Part]:
        """Wait until a node has something ready, and return those to ask; none after a while."""
        wait_s = min(self._left_s, _ROUND_S)
        if not parts:
            await self._rest(_NOWHERE_S)
        waits = {asyncio.create_task(self._is_ready(part, wait_s)): part for part in parts}
        waiting = set(waits)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                said = {waits[task].address: task.result() for task in waits if task in done}
                if None in said.values():
                    return parts
                if any(said.values()):
                    return [part for part in parts if said.get(part.address)]
            return []
        finally:
            await cancel_and_wait(*waits)

    async def _is_ready(self, part: _Part, wait_s: float) -> bool | None:
        """Whether the node has something ready after a wait; ``None`` if it cannot say."""
        request = protocol.AwaitReady(
            subscription=self._request.subscription,
            wait_ms=ceil(1000 * wait_s),
            consumer=self._request.consumer,
            partitions=part.partitions,
        )
        if part.address is None:
            return await until_ready(self._services.broker, self._clock, request)
        try:
            reply, _ = await ask(self._context, part.address, request)
            return expect(protocol.Ready, reply).is_ready
        except UnknownCall:
            await self._rest(_PAUSE_S)
            return None
        except QuiverError as error:
            if not error.retryable:
                raise
        await self._rest(_NOWHERE_S)
        return False

    async def _rest(self, seconds: float) -> None:
        await self._clock.sleep(max(0.0, min(seconds, self._left_s)))

    # ------------------------------------------------------------------ whom to ask

    async def _parts(self) -> list[_Part]:
        """The nodes that have partitions for this consumer, in the order to ask them."""
        name = self._request.subscription
        places: dict[str | None, list[str] | None]
        if self._leaders.is_group(name):
            places = self._leaders.by_leader(name, await self._membership())
        else:
            places = dict.fromkeys(self._leaders.leaders(name))
        parts = [_Part(address, partitions) for address, partitions in places.items()]
        own = [part for part in parts if part.address is None]
        others = [part for part in parts if part.address is not None]
        turn = self._services.turns.next(name)
        first = (turn // _STAYS if own else turn) % max(1, len(others))
        others = others[first:] + others[:first]
        return others + own if turn % _STAYS == _STAYS - 1 else own + others

    async def _membership(self) -> list[str]:
        """The partitions that the coordinator assigned to this member of the group."""
        asked = protocol.Heartbeat(
            subscription=self._request.subscription, consumer=self._request.consumer
        )
        ((reply, _),) = await AT_COORDINATOR.answers(
            self._context, asked, lambda own: heartbeat(self._context, own, _NOTHING)
        )
        return expect(protocol.GroupMembership, reply).partitions


def _has_messages(answer: Answer) -> bool:
    return bool(expect(protocol.Received, answer[0]).portions)
