"""The nodes that a call runs on: this one, a leader, several leaders, or all nodes.

The node that receives a call handles its own partitions and passes the call on to the leaders of the
others. A call that came from another node is not passed on: there is one hop at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from quiver import protocol
from quiver.edge.calls.context import Answer, Context

Here = Callable[[Any], Awaitable[Answer]]
"""Carries out a request on this node."""
Subscription = Callable[[Any], str]
"""The subscription that a request is about."""


class Route(Protocol):
    """The nodes that a call runs on."""

    @property
    def is_here(self) -> bool:
        """Whether the call always runs on the node that received it."""

    @property
    def is_several(self) -> bool:
        """Whether several nodes may answer. Then the row has a merge."""

    async def answers(self, context: Context, request: Any, here: Here) -> list[Answer]: ...


async def ask(context: Context, address: str, request: protocol.AnyRequest) -> Answer:
    """The answer of another node."""
    assert context.services.peers is not None
    channel = await context.services.peers.channel(address)
    reply, body = await channel.call(msgspec.structs.replace(request))
    return reply, [body] if len(body) else []


class _Here:
    is_here, is_several = True, False

    async def answers(self, _: Context, request: Any, here: Here) -> list[Answer]:
        return [await here(request)]


HERE = _Here()
"""On the node that received it. Every node can handle it."""
AT_LEADER = _Here()
"""On the node that received it, which must lead the partition. Otherwise it answers ``NotLeader``, and
the client asks the leader."""


class PassedToLeader:
    """On the leader of a partition. The node that received the call passes it on."""

    is_here, is_several = False, False

    def __init__(self, partition: Callable[[Any], tuple[str, int]]) -> None:
        self._partition = partition

    async def answers(self, context: Context, request: Any, here: Here) -> list[Answer]:
        address = context.services.broker.topics.leader_of(*self._partition(request))
        return [await (here(request) if address is None else ask(context, address, request))]


class AtCoordinator:
    """On the coordinator of a consumer group, which leads the first partition of its subscription."""

    is_here, is_several = False, False

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    async def answers(self, context: Context, request: Any, here: Here) -> list[Answer]:
        address = context.services.broker.leaders.coordinator(self._subscription(request))
        return [await (here(request) if address is None else ask(context, address, request))]


class AtLeaders:
    """On all nodes that lead partitions of a subscription, at the same time.

    With ``all_led`` only while every partition has a leader. With ``with_dead_letters`` also on those
    that lead its dead-letter queue. With ``then_coordinator`` once more on the coordinator, when all
    are done.
    """

    is_here, is_several = False, True

    def __init__(
        self,
        subscription: Subscription,
        *,
        all_led: bool = False,
        with_dead_letters: bool = False,
        then_coordinator: bool = False,
    ) -> None:
        self._subscription = subscription
        self._all_led = all_led
        self._with_dead_letters = with_dead_letters
        self._coordinator = AtCoordinator(subscription) if then_coordinator else None

    async def answers(self, context: Context, request: Any, here: Here) -> list[Answer]:
        leaders, name = context.services.broker.leaders, self._subscription(request)
        if self._all_led:
            leaders.require_led(name)
        nodes = leaders.leaders(name)
        if self._with_dead_letters:
            letters = context.services.broker.dead_letters.queue_of(name)
            nodes += [] if letters is None else leaders.leaders(letters)
        addresses = [address for address in dict.fromkeys(nodes) if address is not None]
        others = [ask(context, address, request) for address in addresses]
        answers = list(await asyncio.gather(here(request), *others))
        if self._coordinator is not None:
            answers += await self._coordinator.answers(context, request, here)
        return answers


class AtMachine:
    """On all processes of this machine that serve a data folder together. Those that do not answer are
    left out."""

    is_here, is_several = False, True

    async def answers(self, context: Context, request: Any, here: Here) -> list[Answer]:
        assert context.services.peers is not None
        others = context.services.peers.addresses_beside()
        return await _of_those_that_answer(context, request, here, others)


class AtAllNodes:
    """On all nodes. Those that do not answer are left out."""

    is_here, is_several = False, True

    async def answers(self, context: Context, request: Any, here: Here) -> list[Answer]:
        assert context.services.peers is not None
        others = context.services.peers.addresses
        return await _of_those_that_answer(context, request, here, others)


async def _of_those_that_answer(
    context: Context, request: Any, here: Here, addresses: Sequence[str]
) -> list[Answer]:
    others = [ask(context, address, request) for address in addresses]
    answers = await asyncio.gather(here(request), *others, return_exceptions=True)
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return [one for one in answers if not isinstance(one, BaseException)]
