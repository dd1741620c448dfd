"""Calls that are split: each part goes to the leader of the lease or message that it is about."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from quiver import protocol
from quiver.client.transport.cluster import expect
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.route import Here, ask
from quiver.edge.messages.settling import Settle, Settling
from quiver.model.message_id import parse_message_id


class AtLeaseLeaders:
    """Each lease is settled by the node that leads its partition, all at the same time."""

    is_here, is_several = False, True

    def __init__(self, settle: Settle, count: Callable[[Context, Any], None]) -> None:
        """``count`` updates the caller's lease quota once all are settled."""
        self._settle = settle
        self._count = count

    async def answers(self, context: Context, request: Settling, _: Here) -> list[Answer]:
        answers = await at_lease_leaders(context, request, self._settle)
        self._count(context, request)
        return answers


async def at_lease_leaders(context: Context, request: Settling, settle: Settle) -> list[Answer]:
    broker = context.services.broker

    async def settled(address: str | None, part: list[protocol.Settlement]) -> Answer:
        own = msgspec.structs.replace(request, settlements=part)
        return (
            (await settle(broker, own), ()) if address is None else await ask(context, address, own)
        )

    parts: dict[str | None, list[protocol.Settlement]] = defaultdict(list)
    for one in request.settlements:
        parts[broker.leaders.leader_of_lease(one.lease)].append(one)
    if len(parts) == 1:  # mostly: without a task, and the turns of the event loop that it takes
        return [await settled(*parts.popitem())]
    return list(await asyncio.gather(*(settled(*part) for part in parts.items())))


class AtLeadersInTurn:
    """A redrive: one leader after the other, so that no more than was asked for go back."""

    is_here, is_several = False, True

    async def answers(
        self, context: Context, request: protocol.Redrive, here: Here
    ) -> list[Answer]:
        broker = context.services.broker
        letters = broker.dead_letters.queue_of(request.subscription)
        answers: list[Answer] = []
        left = request.messages_max
        for address in broker.leaders.leaders(letters or request.subscription):
            if left <= 0:
                break
            part = msgspec.structs.replace(request, messages_max=left)
            answer = await (here(part) if address is None else ask(context, address, part))
            left -= expect(protocol.Redriven, answer[0]).count
            answers.append(answer)
        return answers


class AtMessageLeaders:
    """A cancellation: each message at the leader of its partition."""

    is_here, is_several = False, True

    def __init__(self, require_few: Callable[[protocol.Cancel], None]) -> None:
        """``require_few`` refuses a request with too many messages, wherever they are."""
        self._require_few = require_few

    async def answers(self, context: Context, request: protocol.Cancel, here: Here) -> list[Answer]:
        self._require_few(request)
        broker = context.services.broker
        parts: dict[int, list[str]] = defaultdict(list)
        for one in request.ids:
            parts[parse_message_id(one).partition].append(one)
        answers: list[Answer] = []
        for index, ids in parts.items():
            address = broker.topics.leader_of(request.topic, index)
            if address is None:
                count = await broker.lookup.cancel(request.topic, ids)
                answers.append((protocol.Counted(count=count), ()))
            else:
                part = msgspec.structs.replace(request, ids=ids)
                answers.append(await ask(context, address, part))
        return answers or [await here(request)]
