"""A row of the table of calls: everything about one call of the protocol.

A session looks the row up once for each request. It says which permission the call needs, how long it
may take, in what order it runs, on which nodes, and which function handles it.
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
from quiver.edge.calls.fan_out.route import HERE, Route
from quiver.errors import QuiverError

REQUEST_TIMEOUT_S = 30.0

Handler = Callable[[Context, Any, memoryview], Coroutine[Any, Any, Answer]]
Merge = Callable[[list[Answer]], Answer]


class Turn(Enum):
    """The order in which a session handles its requests."""

    CALL = "call"
    """One after the other, and only while the client reads its replies: some are large."""
    OWN = "own"
    """At the same time as all others."""
    PUBLISH = "publish"
    """Publishes are stored in order of arrival."""
    EAGER = "eager"
    """Carried out before the next request is read, as far as that needs no waiting."""
    AFTER = "after"
    """Like ``EAGER``, once the requests are answered that it names with ``after``."""
    AT_ONCE = "at once"
    """Answered before the next request is read. The handler never waits."""


def request_timeout_s(_: Any) -> float:
    return REQUEST_TIMEOUT_S


def wait_timeout_s(
    request: protocol.Fetch | protocol.FetchLog | protocol.Receive | protocol.AwaitReady,
) -> float:
    """The usual limit plus the time that the request may wait for messages."""
    return REQUEST_TIMEOUT_S + min(max(0, request.wait_ms) / 1000, FETCH_WAIT_S_MAX)


class Call(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    request: type[protocol.Request]
    handler: Handler
    """Carries the call out on this node."""
    needs: NeedsOf
    """The permissions that the caller needs."""
    subject: Callable[[Any], str] | None = None
    """The one name that ``needs`` depends on. A decision is cached by this name; without it, never."""
    is_metered: bool = True
    """Whether the call counts towards the caller's rate quotas."""
    is_for_peers: bool = True
    """Whether other nodes may send it. What gives access is asked for by people."""
    is_audited: bool = False
    """Whether the audit log also records calls that were allowed."""
    timeout_s: Callable[[Any], float] = request_timeout_s
    """The time limit. After it the caller gets ``RequestTimeout``."""
    turn: Turn = Turn.CALL
    only_waits: bool = False
    """Whether the client may abandon it and a shutdown ends it. All others are carried through."""
    runs: Route = HERE
    """The nodes of a cluster that the call runs on."""
    merge: Merge | None = None
    """Merges the answers of several nodes into one."""
    hide: Callable[[Caller, Any], None] | None = None
    """Removes from the reply what the caller may not see."""

    def answer(
        self, context: Context, request: Any, body: memoryview
    ) -> Coroutine[Any, Any, Answer]:
        """Run the call on its nodes and write the audit log. The caller must be admitted before."""
        carry_out = self._carry_out_audited if self.is_audited else self._carry_out
        return carry_out(context, request, body)

    async def _carry_out_audited(self, context: Context, request: Any, body: memoryview) -> Answer:
        try:
            answer = await self._carry_out(context, request, body)
        except QuiverError as error:
            context.caller.did(request, error)
            raise
        context.caller.did(request, answer[0])
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
