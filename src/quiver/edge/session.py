"""One client's session with the node, over any transport.

``receive`` accepts a request and returns at once. The table of calls says what becomes of it. The reply
is sent through the given ``send`` when the work is done, in any order. Publishes are stored in order of
arrival. Unanswered requests are bounded: the transport stops reading while ``is_busy``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from quiver import protocol
from quiver.aio import TaskSet, run_eagerly
from quiver.broker.partition.producers.in_flight import unavailable
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import PEER
from quiver.edge.calls.call import Call, Turn
from quiver.edge.calls.connection import PEER_REQUESTS_MAX
from quiver.edge.calls.context import Answer, DirectContext, ReplyTurn, may_ask_others
from quiver.edge.calls.table import CALLS
from quiver.edge.messages.consumer_stream import ConsumerStreams
from quiver.edge.messages.dependents import Dependents
from quiver.edge.messages.failures import explained
from quiver.edge.messages.publish_order import PublishOrder
from quiver.edge.services import NodeServices
from quiver.errors import (
    LogClosed,
    LogFailed,
    ProtocolError,
    QuiverError,
    RequestTimeout,
    ShuttingDown,
)
from quiver.model.batch import Bytes

_REQUEST_OVERHEAD = 256
"""About what a request costs beside its bytes."""
_NO_BODY = memoryview(b"")


class Send(Protocol):
    def __call__(self, reply: protocol.AnyReply, body: Sequence[Bytes] = (), /) -> None: ...


class _Waiting(msgspec.Struct, eq=False):
    """A request without an answer, and the ``Context`` of the handler that carries it out.

    It has its own identity: a client may use its id again.
    """

    session: Session
    id: int
    began: float
    deadline: float
    size: int
    task: asyncio.Task[None] | None = None
    is_quiet: bool = False
    """Whether the client wants no answer."""
    body_bytes: int = 0
    is_under_way: bool = False
    """Whether a shutdown sees it to its end; what only waits for something is told at once."""
    went_well: bool = False
    """Whether the requests went well that it was to come after."""

    @property
    def services(self) -> NodeServices:
        return self.session._services

    @property
    def caller(self) -> Caller:
        return self.session.caller

    @property
    def is_wanted(self) -> bool:
        return self.session._is_wanted(self)

    @property
    def reply_turn(self) -> ReplyTurn:
        return self.session._fetch_turn

    async def until_writable(self) -> None:
        await self.session._writable.wait()

    def abandon(self, request_id: int) -> None:
        self.session.abandon(request_id)

    @property
    def streams(self) -> ConsumerStreams:
        return self.session._streams


class Session:
    """``send`` is called once for each request, in any order, and never after ``close``.

    ``caller`` is whose requests these are. Without one they are a stranger's, who may do nothing on
    a node with authentication. ``on_progress`` is called whenever there may be less to do.
    ``is_shared``: many programs use it, each with consumer sessions of its own.
    """

    def __init__(
        self,
        services: NodeServices,
        send: Send,
        caller: Caller | None = None,
        on_progress: Callable[[], object] = lambda: None,
        *,
        is_shared: bool = False,
    ) -> None:
        self._services = services
        self._send = send
        self._on_progress = on_progress
        self.caller = caller or Caller(
            services.authority, services.clock, services.authority.stranger
        )
        self._unanswered: dict[int, _Waiting] = {}
        self._unanswered_bytes = 0
        self._body_bytes = 0
        """Of these, what counts in the budget of all connections."""
        self._tasks = TaskSet()
        self._writable = asyncio.Event()
        self._writable.set()
        self._fetch_turn = ReplyTurn(self._writable)
        self._call_turn = ReplyTurn(self._writable)
        self._publishes = PublishOrder[_Waiting](
            services,
            answer=self._answer,
            fail=self._fail,
            is_wanted=self._is_wanted,
            start=self._tasks.start,
        )
        self._streams = ConsumerStreams(services, send, is_shared=is_shared)
        self._dependents = Dependents()
        self._held: list[tuple[protocol.AnyReply, Sequence[Bytes]]] = []
        """Answers that leave with the next other one: a request that comes after theirs has its own soon."""
        self._draining = False
        self._is_resting = False

    # ------------------------------------------------------------------ what the carrier sees

    @property
    def is_busy(self) -> bool:
        """Whether the carrier should stop reading until there is less to do."""
        limits = self._services.limits
        is_peer = self.caller.principal is PEER
        return (
            len(self._unanswered) >= (PEER_REQUESTS_MAX if is_peer else limits.requests_max)
            or self._unanswered_bytes >= limits.inflight_bytes_max
            or (self._services.inflight.is_full and bool(self._body_bytes) and not is_peer)
            or not self._writable.is_set()
            or self._is_resting
        )

    @property
    def is_idle(self) -> bool:
        return not self._unanswered and not self._streams

    def pause_sending(self) -> None:
        """The client is slow to read: take and produce nothing until ``resume_sending``."""
        self._writable.clear()
        self._streams.set_writable(False)

    def resume_sending(self) -> None:
        self._writable.set()
        self._streams.set_writable(True)
        self._on_progress()

    def receive(
        self, request: protocol.AnyRequest, body: memoryview, header_bytes: int = 0
    ) -> None:
        if request.id in self._unanswered:
            raise ProtocolError(
                f"the id {request.id} is used by a request that is not answered yet"
            )
        call = CALLS[type(request)]
        self._services.metrics.requests_of(request.__struct_config__.tag).inc()
        now, size = self._services.clock.monotonic(), header_bytes + len(body) + _REQUEST_OVERHEAD
        waiting = _Waiting(self, request.id, now, now + call.timeout_s(request), size)
        self._unanswered[request.id] = waiting
        self._unanswered_bytes += size
        waiting.body_bytes = len(body)
        self._body_bytes += waiting.body_bytes
        self._services.inflight.take(waiting.body_bytes)
        if self._draining:
            self._fail(waiting, ShuttingDown())
        elif not self._admit(waiting, request, call):
            return
        elif call.turn is Turn.PUBLISH:
            self._publishes.publish(waiting, request, body)  # type: ignore[arg-type]
        elif call.turn is Turn.AT_ONCE:
            self._answer(waiting, *_finished(call.handler(waiting, request, body)))
        elif call.turn is Turn.AFTER:
            go_on = partial(self._go_on, waiting, call, request)
            self._dependents.add(request.after, self._unanswered, go_on)  # type: ignore[union-attr]
        else:
            waiting.is_quiet = isinstance(request, protocol.Progress) and not request.answer
            self._start(waiting, call, request, body)

    def _start(
        self, waiting: _Waiting, call: Call, request: protocol.AnyRequest, body: memoryview
    ) -> None:
        waiting.is_under_way = not call.only_waits
        work = self._carry_out(waiting, call, request, body)
        is_eager = call.turn is Turn.EAGER or call.turn is Turn.AFTER
        # Asking others needs a task: it takes no longer than a time limit.
        if is_eager and (call.runs.is_here or not may_ask_others(waiting)):
            waiting.task = run_eagerly(work, self._tasks.start)
        else:
            waiting.task = self._tasks.start(work)

    def _go_on(
        self, waiting: _Waiting, call: Call, request: protocol.AnyRequest, went_well: bool
    ) -> None:
        """The requests that it comes after are answered, unless it was answered before them."""
        if self._is_wanted(waiting):
            waiting.went_well = went_well
            self._start(waiting, call, request, _NO_BODY)
        else:
            self._send_held()

    def _admit(self, waiting: _Waiting, request: protocol.AnyRequest, call: Call) -> bool:
        """Whether the caller may have this done now; who is over a rate rests after it."""
        try:
            rest_s = self.caller.admit(request, call, waiting.size)
        except QuiverError as error:
            self._fail(waiting, error)
            return False
        if rest_s and not self._is_resting:
            self._is_resting = True
            self._tasks.start(self._rest(rest_s))
        return True

    async def _rest(self, seconds: float) -> None:
        await self._services.clock.sleep(seconds)
        self._is_resting = False
        self._on_progress()

    async def _carry_out(
        self, waiting: _Waiting, call: Call, request: protocol.AnyRequest, body: memoryview
    ) -> None:
        try:
            if call.turn is Turn.CALL:
                async with self._call_turn:
                    answer = await call.answer(waiting, request, body)
            else:
                answer = await call.answer(waiting, request, body)
            self._answer(waiting, *answer)
        except Exception as error:
            self._fail(waiting, explained(error))

    def expire(self, now: float) -> None:
        """Answer what has waited too long, and let go of it where that is still possible."""
        overdue = [waiting for waiting in self._unanswered.values() if waiting.deadline <= now]
        for waiting in overdue:
            self._fail(waiting, RequestTimeout())
            if waiting.task is not None:
                waiting.task.cancel()
        if overdue:
            self._publishes.forget_unwanted()

    def abandon(self, request_id: int) -> None:
        """Nobody waits for this answer any more: what only waits ends, and takes nothing."""
        waiting = self._unanswered.get(request_id)
        if waiting is None or waiting.is_under_way or waiting.task is None:
            return
        self._end(waiting)
        waiting.task.cancel()
        self._on_progress()

    def drain(self) -> None:
        """Take nothing new and end waits. What is under way goes on: until ``is_idle``."""
        self._draining = True
        self._streams.end(ShuttingDown())
        self._publishes.clear()
        for waiting in list(self._unanswered.values()):
            if not waiting.is_under_way:
                self._fail(waiting, ShuttingDown())
                if waiting.task is not None:
                    waiting.task.cancel()

    def give_up(self) -> None:
        """Leave unfinished what draining did not see the end of."""
        for waiting in list(self._unanswered.values()):
            self._fail(waiting, ShuttingDown())

    def close(self) -> None:
        """The client is gone: whatever is still going on has nobody to answer."""
        if self.caller.node is not None and self._services.member is not None:
            self._services.member.on_broken(self.caller.node)
        if self.caller.is_forwarder:
            self._services.forwarders.leave(self.caller)
        for waiting in list(self._unanswered.values()):
            self._end(waiting)
        self._streams.close()
        self._publishes.clear()
        for task in self._tasks:
            task.cancel()

    def requeue(self, received: protocol.Received) -> None:
        """A reply did not leave the node: its messages are ready again at once."""
        if received.portions:
            self._tasks.start(self._requeue(received))

    async def _requeue(self, received: protocol.Received) -> None:
        taken = [protocol.Settlement(one.lease, one.offsets) for one in received.portions]
        context = DirectContext(self._services, self.caller)
        with contextlib.suppress(QuiverError):  # their leases end by themselves, later
            name = self._services.broker.leaders.named_in(received.portions[0].lease)
            request = protocol.Return(subscription=name, settlements=taken)
            await CALLS[protocol.Return].answer(context, request, memoryview(b""))

    # ------------------------------------------------------------------ answering

    def _end(self, waiting: _Waiting) -> None:
        """It is unanswered no more."""
        del self._unanswered[waiting.id]
        self._unanswered_bytes -= waiting.size
        self._body_bytes -= waiting.body_bytes
        self._services.inflight.give_back(waiting.body_bytes)

    def _is_wanted(self, waiting: _Waiting) -> bool:
        return self._unanswered.get(waiting.id) is waiting

    def _answer(
        self, waiting: _Waiting, reply: protocol.AnyReply, body: Sequence[Bytes] = ()
    ) -> None:
        if not self._is_wanted(waiting):
            return
        self._end(waiting)
        if waiting.is_quiet:
            return
        reply.id = waiting.id
        if body:
            self.caller.sent(sum(map(len, body)))
        if self._dependents.is_used and _went_well(reply):
            self._answer_well(reply, body)
        else:
            self._send_held()
            self._send(reply, body)
            if self._dependents.is_used:
                self._dependents.answered(reply.id, went_well=False)
        if isinstance(reply, protocol.Consuming):
            self._streams.run(reply.id)
        self._on_progress()

    def _answer_well(self, reply: protocol.AnyReply, body: Sequence[Bytes]) -> None:
        """If another request comes after this one, the client waits for that one's answer."""
        if self._dependents.awaits(reply.id):
            self._held.append((reply, body))
        else:
            self._send_held()
            self._send(reply, body)
        self._dependents.answered(reply.id, went_well=True)

    def _send_held(self) -> None:
        if self._held:
            held, self._held = self._held, []
            for reply, body in held:
                self._send(reply, body)

    def _fail(self, waiting: _Waiting, error: QuiverError) -> None:
        if isinstance(error, LogFailed | LogClosed):
            error = unavailable(error)
        self._services.metrics.errors.labels(error.code).inc()
        self._answer(waiting, protocol.failure(waiting.id, error))


def _went_well(reply: protocol.AnyReply) -> bool:
    """Whether all that was asked for is stored, durably: of a publish or a hold."""
    if isinstance(reply, protocol.Settled):
        return not reply.stale
    return isinstance(reply, protocol.Published)


def _finished(work: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer of a call that waits for nothing, without a task."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    raise AssertionError("a call that is answered at once has waited")
