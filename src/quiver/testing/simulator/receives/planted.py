"""Bugs to plant in receives: ways to lose what a leader has leased, one at a time."""

from __future__ import annotations

import asyncio
from math import ceil
from typing import Any

import msgspec

from quiver.aio import cancel_and_wait
from quiver.client.transport import connection
from quiver.client.transport.channel import Answer as ChannelAnswer
from quiver.edge.calls.context import Answer
from quiver.edge.calls.receive_from_leaders import (
    _NOWHERE_S,
    _has_messages,
    _ReceivingFromLeaders,
)


async def _finish_with_all_at_once(self: _ReceivingFromLeaders) -> Answer:
    """Wait with a receive at each leader. The first with messages wins, and the others are cancelled."""
    answer = await self._received(await self._parts())
    while not _has_messages(answer) and self._left_s > 0:
        parts = await self._parts()
        if not parts:
            await self._rest(_NOWHERE_S)
        wait_ms = ceil(1000 * min(self._left_s, 2.0))
        request = msgspec.structs.replace(self._request, wait_ms=wait_ms)
        tasks = [asyncio.ensure_future(self._ask(part, request)) for part in parts]
        waiting, chosen = set(tasks), None
        try:
            while waiting and chosen is None:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                done = [task for task in tasks if task.done()]
                chosen = next((task for task in done if _has_messages(task.result())), None)
        finally:
            await cancel_and_wait(*tasks)
            for task in tasks:
                if task is not chosen and not task.cancelled() and task.exception() is None:
                    await self._requeue(task.result())
        if chosen is not None:
            answer = chosen.result()
    return answer


async def _read_or_drop(answer: asyncio.Future[ChannelAnswer], _: Any) -> ChannelAnswer:
    return await answer


async def _requeue_nothing(self: _ReceivingFromLeaders, answer: Answer) -> None:
    pass


def _nothing_to_return(*_: Any) -> None:
    return None


RECEIVE_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "wait with a receive at each leader and drop what the others bring": [
        (_ReceivingFromLeaders, "finish", _finish_with_all_at_once),
        (connection, "read", _read_or_drop),
    ],
    "drop an answer that came and was not looked at": [(connection, "read", _read_or_drop)],
    "drop an answer that nobody reads": [(connection, "return_of", _nothing_to_return)],
    "requeue nothing for a caller that has left": [
        (_ReceivingFromLeaders, "_requeue", _requeue_nothing)
    ],
}
"""Those that only seeds with receives find."""
