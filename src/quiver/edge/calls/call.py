"""A row of the table of calls: all there is to say of one call of the protocol.

Whoever carries requests looks the row up once. Permissions, limits, order, place and handler follow
from it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import Enum
from functools import partial
from typing import Any

import msgspec

from quiver import protocol
from quiver.broker.partition.reader import FETCH_WAIT_S_MAX
from quiver.edge.auth.call_permissions import NeedsOf
from quiver.edge.auth.caller import Caller
from quiver.edge.calls.context import Answer, Context, may_ask_others
from quiver.edge.calls.fan_out import HERE, Route
from quiver.errors import QuiverError

REQUEST_TIMEOUT_S = 30.0

Handler = Callable[[Context, Any, memoryview], Coroutine[Any, Any, Answer]]
Merge = Callable[[list[Answer]], Answer]


class Turn(Enum):
    """In what order a session begins its requests."""

    CALL = "call"
    """One after the other, and only while the client reads: some answers are large."""
    OWN = "own"
    """Beside all others."""
    PUBLISH = "publish"
    """Publishes are stored in the order in which they came."""
    AT_ONCE = "at once"
    """Answered before the next request is taken: the handler waits for nothing."""


def request_timeout_s(_: Any) -> float:
    return REQUEST_TIMEOUT_S


def wait_timeout_s(request: protocol.Fetch | protocol.Receive) -> float:
    """The time that the request may wait for messages comes on top."""
    return REQUEST_TIMEOUT_S + min(max(0, request.wait_ms) / 1000, FETCH_WAIT_S_MAX)


class Call(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    request: type[protocol.Request]
    handler: Handler
    """Carries the call out on this node."""
    needs: NeedsOf
    """The permissions that the caller needs."""
    subject: Callable[[Any], str] | None = None
    """The one name that ``needs`` depends on, if a decision may be remembered for that name."""
    is_metered: bool = True
    """Whether it counts towards the caller's rates."""
    is_audited: bool = False
    """Whether the audit log tells also of calls that were allowed."""
    timeout_s: Callable[[Any], float] = request_timeout_s
    """After how long the caller is told that it took too long."""
    turn: Turn = Turn.CALL
    only_waits: bool = False
    """Whether it changes nothing until it is answered: it can be abandoned, and a shutdown ends it."""
    runs: Route = HERE
    """Which nodes of a cluster carry it out."""
    merge: Merge | None = None
    """Makes one answer of those of several nodes."""
    hide: Callable[[Caller, Any], None] | None = None
    """Takes from the reply what the caller may not know of."""

    def answer(
        self, context: Context, request: Any, body: memoryview
    ) -> Coroutine[Any, Any, Answer]:
        """Carry the call out wherever it belongs, and write the audit log. The caller was admitted."""
        carry_out = self._carry_out_audited if self.is_audited else self._carry_out
        return carry_out(context, request, body)

    async def _carry_out_audited(self, context: Context, request: Any, body: memoryview) -> Answer:
        try:
            answer = await self._carry_out(context, request, body)
        except QuiverError as error:
            context.caller.did(request, error)
            raise
        context.caller.did(request, None)
        return answer

    async def _carry_out(self, context: Context, request: Any, body: memoryview) -> Answer:
        if self.runs.is_here or not may_ask_others(context):
            return self._shown(context, await self.handler(context, request, body))
        answers = await self.runs.answers(context, request, partial(self._here, context, body))
        return self._shown(context, answers[0] if self.merge is None else self.merge(answers))

    async def _here(self, context: Context, body: memoryview, request: Any) -> Answer:
        return self._shown(context, await self.handler(context, request, body))

    def _shown(self, context: Context, answer: Answer) -> Answer:
        if self.hide is not None:
            self.hide(context.caller, answer[0])
        return answer
