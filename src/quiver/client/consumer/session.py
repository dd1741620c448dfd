"""A consumer's session with a subscription: one stream to each node that leads partitions of it.

Nodes push messages, and the session starts them as the program asks for them: then they are deliveries,
and their leases begin. Settlements are collected and sent together. While the session is open its
heartbeats keep the leases alive. It follows the partitions when other nodes lead them, and connects
again when a connection breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

import msgspec
import structlog
from pyroaring import BitMap64

from quiver.aio import Signal, TaskSet, cancel_and_wait, finish, report_unexpected
from quiver.client.consumer.node_stream import NodeStream, stale_of
from quiver.client.consumer.pace import HandlerPace
from quiver.client.consumer.pushed import PushedBatch, PushedMessages
from quiver.client.consumer.received import ReceivedMessage, leases_of, messages_in
from quiver.client.consumer.settlement_buffer import RETURN, Kind, Leases, SettlementBuffer
from quiver.client.transport.backoff import RetryBackoff
from quiver.client.transport.channel import Answer
from quiver.client.transport.cluster import Cluster, expect
from quiver.errors import InvalidRequest, QuiverError, StaleReceipt, Unavailable
from quiver.model.clock import Clock
from quiver.model.receipt import receipt
from quiver.model.subscription import Guarantee, Ordering
from quiver.protocol import (
    AnyRequest,
    Consume,
    Consuming,
    GroupMembership,
    Heartbeat,
    Received,
    Return,
    Settlement,
)

_FLUSH_S = 0.005
"""How long a settlement waits for others."""
_BUSY_S = 0.1
"""A program that has been busy for so long returns what waits for it: others may be idle."""
UNCONFIRMED_MAX = 100_000
"""How many settlements may be on their way before no more messages are started."""
_MEMBERSHIP_S, _MOVING_S = 1.0, 0.1
"""How often, in a cluster, the member of a group asks which partitions it reads: also while they move."""
_MOVING_ASKS = 30
"""So many times it asks more often, after each change."""
_BEAT_S_MIN = 0.1
_ANSWERED = 3
"""Of the heartbeats of an idle consumer, every such one asks the node whether it is there."""
_STALE_LOG_S = 10.0
_BACKOFF = RetryBackoff()

logger = structlog.get_logger()


OnStale = Callable[[list[str]], object]


class SessionTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a program asks for when it consumes."""

    subscription: str
    consumer: str
    prefetch: int | None = None
    """How many messages may wait for the program; as its pace allows if not given."""
    bytes_max: int = 16 << 20
    visibility_ms: int | None = None
    on_stale: OnStale | None = None


class Program(Protocol):
    """Whose messages these are."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run something in the session's event loop. Called from the program's thread."""


class ConsumerSession:
    """``open`` it, ``close`` it whatever happens. ``settler`` settles the messages for the program."""

    def __init__(
        self, cluster: Cluster, clock: Clock, terms: SessionTerms, program: Program, settler: Any
    ) -> None:
        self.terms = terms
        self.stale_count = 0
        self._cluster = cluster
        self._clock = clock
        self._program = program
        self._settler = settler
        self._pace = HandlerPace(terms.prefetch)
        self._streams: dict[str, NodeStream] = {}
        self._wanted: set[str] | None = None
        """The nodes to have streams to; ``None``: any one."""
        self._consuming = Consuming()
        self._partitions: list[str] | None = None
        self._pushed: deque[PushedMessages | PushedBatch] = deque()
        self._started: deque[ReceivedMessage] = deque()
        """Messages that the program may have. The program takes them from the left."""
        self._in_hand: Leases = {}
        """What was started and is not settled."""
        self._lease_streams: dict[bytes, NodeStream] = {}
        self._current: ReceivedMessage | None = None
        self._handed = (0, 0.0)
        """How many messages were started last, and when."""
        self._window = 0
        self._asking = 0
        """How many wait for a message."""
        self._is_busy = self._is_closed = False
        self._busy_check: asyncio.TimerHandle | None = None
        self._buffer = SettlementBuffer(lambda: program.call_soon(self._flush_later))
        self._flush_timer: asyncio.TimerHandle | None = None
        self._numbers = count()
        self._unconfirmed: dict[int, int] = {}
        """By request: how many messages it settles."""
        self._watched: dict[tuple[bytes, int], bool] = {}
        """Messages whose settlement somebody waits for, and whether it came too late."""
        self._changed = Signal(clock)
        """There may be a message for the program, or there never will be."""
        self._moved = Signal(clock)
        """The streams may not be those that there should be."""
        self._confirmations = Signal(clock)
        self._tasks = TaskSet()
        self._failure: QuiverError | None = None
        self._flushing = 0
        """How many wait for what was settled: each of them is told what was lost."""
        self._lost: QuiverError | None = None
        """Why settlements could not be delivered, until somebody is told."""
        self._stale_logged = float("-inf")
        self._chance = random.Random()
        self._background: list[asyncio.Task[None]] = []
        self._is_silent = False
        """Whether, at the end, the nodes are told that the program ended without a word."""

    @property
    def guarantee(self) -> str:
        return self._consuming.guarantee

    async def open(self) -> None:
        """Connect. Raises what keeps the consumer from being one, such as ``SubscriptionNotFound``."""
        deadline = self._clock.monotonic() + self._cluster.timeout_s
        failures = 0
        while not self._streams:
            try:
                await self._open_stream(*await self._cluster.any_channel())
            except QuiverError as error:
                failures += 1
                is_late = self._clock.monotonic() >= deadline
                if not error.retryable or is_late or not self._cluster.pool.has_connected:
                    raise
                await self._clock.sleep(_BACKOFF.pause_s(failures, self._chance))
        work = [self._follow(), self._beat()]
        if self._consuming.ordering == Ordering.PARTITION:
            work.append(self._stay_member())
        self._background = [asyncio.create_task(one) for one in work]

    # ------------------------------------------------------------------ messages for the program

    def take(self) -> ReceivedMessage | None:
        """A message that is started already. May be called from the program's thread."""
        try:
            message = self._current = self._started.popleft()
        except IndexError:
            return None
        return message

    async def next(self) -> ReceivedMessage:
        """The next message, when there is one."""
        self._is_busy = False
        self._measure()
        self._asking += 1
        try:
            while (message := self.take()) is None:
                await self._get_ready()
        finally:
            self._asking -= 1
        if self._asking and self._started:
            self._changed.wake()  # there is one for the next of those who wait
        return message

    async def _get_ready(self) -> None:
        """Start messages, or wait for some."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._is_closed:
            raise InvalidRequest("the consumer is closed")
        if sum(self._unconfirmed.values()) >= UNCONFIRMED_MAX:
            await self._confirmations.wait()
        elif not await self._start_some():
            self._set_window(self._pace.window)
            if self._consuming.ordering != Ordering.NONE:
                self._flush()  # the next may wait for these
            if not self._pushed:  # a node in this process has pushed already
                await self._changed.wait()

    def _measure(self) -> None:
        count, at = self._handed
        if count:
            self._pace.handled(count, self._clock.monotonic() - at)
            self._handed = (0, 0.0)

    async def _start_some(self) -> bool:
        """Start the next messages; whether there were any."""
        chosen: dict[NodeStream, list[ReceivedMessage]] = {}
        is_final = self._consuming.guarantee == Guarantee.AT_MOST_ONCE
        left = 1 if is_final else self._pace.started  # what is final cannot be returned
        while left and self._pushed:
            pushed = self._pushed[0]
            assert isinstance(pushed, PushedMessages)
            if not pushed.messages:
                self._pushed.popleft()
                continue
            message = pushed.messages[0]
            if message.deliveries > 1 and chosen:
                break  # it may be what ended its last consumer: it gets no company
            chosen.setdefault(pushed.stream, []).append(pushed.messages.popleft())
            left = 0 if message.deliveries > 1 else left - 1
        if not chosen:
            return False
        # What is final waits for who asks next, if whoever asked for it is gone.
        await (finish(self._hand_over(chosen)) if is_final else self._hand_over(chosen))
        return True

    async def _hand_over(self, chosen: dict[NodeStream, list[ReceivedMessage]]) -> None:
        """Start these: the program may have them from now on."""
        started = [message for messages in chosen.values() for message in messages]
        try:
            started = await self._start(chosen, started)
        except BaseException:
            self._return(started)  # whoever waited for them is gone
            raise
        self._started.extend(started)
        self._handed = (len(started), self._clock.monotonic())
        self._is_busy = True
        if self._busy_check is None and self._pace.is_adaptive:
            self._busy_check = asyncio.get_running_loop().call_later(_BUSY_S, self._check_busy)

    async def _start(
        self, chosen: dict[NodeStream, list[ReceivedMessage]], messages: list[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """Tell the nodes that the program gets these; those that it may have."""
        window = self._next_window()
        if window is not None:
            for stream in self._streams.values():
                if stream not in chosen:
                    stream.tell(window=window)
        begun = [self._begin(stream, leases_of(part), window) for stream, part in chosen.items()]
        answers = [answer for answer in begun if answer is not None]
        if answers:
            return await self._allowed(messages, answers)
        for _ in range(2):
            await asyncio.sleep(0)  # it is written to the socket before the program has them
        return messages

    def _begin(
        self, stream: NodeStream, leases: Leases, window: int | None
    ) -> asyncio.Future[Answer] | None:
        """Tell a node that the program gets these; the answer to wait for, if there is one."""
        guarantee = self._consuming.guarantee
        for lease, offsets in leases.items():
            self._lease_streams[lease] = stream
            if guarantee != Guarantee.AT_MOST_ONCE:
                self._in_hand.setdefault(lease, BitMap64()).update(offsets)
        if guarantee != Guarantee.AT_LEAST_ONCE:
            return stream.start(settlements_of(leases), window)
        stream.tell(started=settlements_of(leases), window=window)
        return None

    async def _allowed(
        self, messages: list[ReceivedMessage], answers: Sequence[asyncio.Future[Answer]]
    ) -> list[ReceivedMessage]:
        """Those of the messages that the nodes say the program may have."""
        lost: dict[bytes, BitMap64] = {}
        try:
            for answer in answers:
                for one in stale_of(await answer):
                    lost[one.lease] = BitMap64.deserialize(one.offsets)
        except QuiverError:
            self._return(messages)  # whether they were started is not known
            return []
        if not lost:
            return messages
        self._forget(lost)
        none = BitMap64()
        return [one for one in messages if one.offset not in lost.get(one.lease, none)]

    def _next_window(self) -> int | None:
        """The window to tell the nodes, if it is another one."""
        window = self._pace.window
        if window == self._window:
            return None
        self._window = window
        return window

    def _set_window(self, window: int) -> None:
        if window != self._window:
            self._window = window
            for stream in self._streams.values():
                stream.tell(window=window)

    def _check_busy(self) -> None:
        """Return what waits for a program that has been busy for long: others may be idle."""
        self._busy_check = None
        if not self._is_busy or self._asking or self._is_closed:
            return
        left_s = self._handed[1] + _BUSY_S - self._clock.monotonic()
        if left_s > 0:
            self._busy_check = asyncio.get_running_loop().call_later(left_s, self._check_busy)
            return
        self._return_started()
        released = self._take_pushed()
        if released or self._window:
            self._window = 0
            for stream in self._streams.values():
                leases = released.get(stream, {})
                stream.tell(released=settlements_of(leases), window=0)

    def _return_started(self) -> None:
        """Return what was started and not taken, as if it had not been."""
        if self._consuming.guarantee == Guarantee.AT_MOST_ONCE:
            return  # it is finished, and can go to nobody else
        back: list[ReceivedMessage] = []
        with contextlib.suppress(IndexError):
            while True:
                back.append(self._started.pop())
        if back:
            self._handed = (max(1, self._handed[0] - len(back)), self._handed[1])
            self._return(back)

    def _return(self, messages: Sequence[ReceivedMessage]) -> None:
        """The program has not got these: they are ready again, and no delivery counts."""
        leases = leases_of(messages)
        self._forget(leases)
        self._send(leases, RETURN)

    def _take_pushed(self) -> dict[NodeStream, Leases]:
        """What waits for the program, which will not get it."""
        found: dict[NodeStream, Leases] = {}
        while self._pushed:
            pushed = self._pushed.popleft()
            for lease, offsets in pushed.leases().items():
                found.setdefault(pushed.stream, {}).setdefault(lease, BitMap64()).update(offsets)
        return found

    # ------------------------------------------------------------------ settling

    def settle(self, message: ReceivedMessage, kind: Kind) -> None:
        """Record what the program did with a message. May be called from the program's thread."""
        if message is self._current:
            self._current = None
        self._buffer.add(kind, message.lease, message.offset)

    def take_current(self) -> ReceivedMessage | None:
        """The message that the program has taken last, if it is not settled."""
        message, self._current = self._current, None
        return message

    async def flush(self) -> None:
        """Wait until everything that was settled so far is stored; an error if that cannot be had."""
        self._flush()
        sent = self._unconfirmed.keys() | set()
        self._flushing += 1
        try:
            while sent & self._unconfirmed.keys():
                await self._confirmations.wait()
        finally:
            error = self._lost
            self._flushing -= 1
            if not self._flushing:
                self._lost = None
        if error is not None:
            raise error

    async def confirm(self, message: ReceivedMessage) -> None:
        """Wait until the settlement of a message is stored; ``StaleReceipt`` if it came too late."""
        key = (message.lease, message.offset)
        self._watched[key] = False
        try:
            await asyncio.sleep(0)  # settlements of the same moment are sent together
            await self.flush()
        finally:
            is_stale = self._watched.pop(key, False)
        if is_stale:
            raise StaleReceipt(
                "the lease had ended: another consumer may have the message",
                stale=[message.receipt],
            )

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """These were settled in another way."""
        leases = {
            one.lease: BitMap64.deserialize(one.offsets)
            for one in settlements
            if one.lease in self._in_hand
        }
        current = self._current
        if current is not None and current.offset in leases.get(current.lease, ()):
            self._current = None
        self._forget(leases)

    def _flush_later(self) -> None:
        if self._flush_timer is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(_FLUSH_S, self._flush)

    def _flush(self) -> None:
        """Send what was settled."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if not self._buffer:
            return
        for kind, leases in self._buffer.take().items():
            if kind.name != "extend":
                self._forget(leases)
            self._send(leases, kind)

    def _send(self, leases: Leases, kind: Kind) -> None:
        """Send settlements to the nodes that pushed the messages, or else to any node."""
        by_stream: dict[NodeStream | None, Leases] = {}
        for lease, offsets in leases.items():
            stream = self._lease_streams.get(lease)
            if stream is not None and not stream.is_open:
                stream = None
            by_stream.setdefault(stream, {})[lease] = offsets
        for stream, part in by_stream.items():
            request = kind.request(self.terms.subscription, settlements_of(part))
            number = next(self._numbers)
            self._unconfirmed[number] = sum(map(len, part.values()))
            if stream is None:
                self._tasks.start(self._send_anywhere(number, request))
            else:
                answer = stream.send(request)
                answer.add_done_callback(partial(self._confirmed, number, request))

    def _confirmed(self, number: int, request: AnyRequest, done: asyncio.Future[Answer]) -> None:
        error = Unavailable("the answer was given up") if done.cancelled() else done.exception()
        if isinstance(error, QuiverError) and error.retryable:
            self._tasks.start(self._send_anywhere(number, request))
            return
        if error is not None:
            self._not_delivered(error, request)
        else:
            self._note_stale(request, stale_of(done.result()))
        self._count_confirmed(number)

    async def _send_anywhere(self, number: int, request: AnyRequest) -> None:
        """The connection is gone: any node passes settlements on to where they belong."""
        try:
            _, answer = await self._cluster.call(request, repeatable=True)
            self._note_stale(request, stale_of(answer))
        except QuiverError as error:
            self._not_delivered(error, request)
        except asyncio.CancelledError:
            self._not_delivered(Unavailable("the consumer was closed before it was stored"))
            raise
        finally:
            self._count_confirmed(number)

    def _count_confirmed(self, number: int) -> None:
        self._unconfirmed.pop(number, None)
        self._confirmations.wake()

    def _not_delivered(self, error: BaseException, request: AnyRequest | None = None) -> None:
        if isinstance(error, QuiverError):
            self._lost = error
        logger.warning(
            "settlements could not be delivered: the messages come again",
            subscription=self.terms.subscription,
            error=str(error),
        )

    def _note_stale(self, request: AnyRequest, stale: list[Settlement]) -> None:
        """Settlements came too late: the messages are with other consumers, or were."""
        if not stale or isinstance(request, Return):
            return
        late = [(one.lease, at) for one in stale for at in BitMap64.deserialize(one.offsets)]
        self._watched.update(dict.fromkeys(self._watched.keys() & late, True))
        receipts = [receipt(lease, offset) for lease, offset in late]
        self.stale_count += len(receipts)
        now = self._clock.monotonic()
        if now - self._stale_logged > _STALE_LOG_S:
            self._stale_logged = now
            logger.warning(
                "messages were settled too late: others may have handled them too",
                subscription=self.terms.subscription,
                messages=self.stale_count,
            )
        if self.terms.on_stale is not None:
            try:
                self.terms.on_stale(receipts)
            except Exception as error:
                report_unexpected("on_stale failed", error)

    def _forget(self, leases: Leases) -> None:
        """These are not in hand any more."""
        for lease, offsets in leases.items():
            held = self._in_hand.get(lease)
            if held is not None:
                held -= offsets
                self._in_hand[lease] = held
                if not held:
                    del self._in_hand[lease]

    # ------------------------------------------------------------------ streams

    def arrived(self, stream: NodeStream, reply: Received, body: memoryview) -> None:
        messages = messages_in(reply, body, self.terms.subscription, self._settler)
        self._pushed.append(PushedMessages(stream, messages))
        if self._is_closed or self._window == 0:
            released = self._take_pushed()
            # With the window: a node that does not know of it would push the same again.
            stream.tell(released=settlements_of(released.get(stream, {})), window=0)
        else:
            self._changed.wake()

    def told(self, stream: NodeStream, consuming: Consuming) -> None:
        self._consuming = consuming
        others = set(consuming.leaders)
        self._wanted = others | {stream.address} if consuming.leads or not others else others
        if self._in_hand:
            self._hold_on()
        self._moved.wake()

    def lost(self, stream: NodeStream, error: QuiverError) -> None:
        """What waited for the program is with others now. What it works on is still its own."""
        self._pushed = deque(one for one in self._pushed if one.stream is not stream)
        if self._streams.get(stream.address) is stream:
            del self._streams[stream.address]
        if not error.retryable:
            self._failure = error
            self._changed.wake()
        self._moved.wake()

    async def _open_stream(self, address: str, channel: Any) -> None:
        stream = NodeStream(self, address, channel)
        if not self._is_busy:
            self._window = self._window or self._pace.window
        window, partitions = self._window, self._partitions
        consuming = await stream.open(
            Consume(
                subscription=self.terms.subscription,
                consumer=self.terms.consumer,
                window=window,
                bytes_max=self.terms.bytes_max,
                visibility_ms=self.terms.visibility_ms,
                partitions=partitions,
            )
        )
        self._streams[address] = stream
        if self._window != window:  # since it was asked for
            stream.tell(window=self._window)
        if self._partitions != partitions:
            stream.tell(partitions=self._partitions)
        self.told(stream, consuming)

    async def _follow(self) -> None:
        """Have a stream to each node that leads partitions, again after each failure."""
        failures = 0
        while not self._is_closed and self._failure is None:
            moved = self._moved.next_wake()
            try:
                await self._open_missing()
                await self._close_unwanted()
                failures = 0
            except QuiverError as error:
                if not error.retryable:
                    self._failure = error
                    self._changed.wake()
                    return
                failures += 1
                if not moved.done():
                    await self._moved.wait(_BACKOFF.pause_s(failures, self._chance))
                continue
            await moved

    async def _open_missing(self) -> None:
        if not self._streams:
            self._wanted = None
            address, channel = await self._cluster.any_channel()
            await self._open_stream(address, channel)
        failed: QuiverError | None = None
        for address in sorted((self._wanted or set()) - self._streams.keys()):
            try:
                await self._open_stream(address, await self._cluster.pool.channel(address))
            except QuiverError as error:  # the others may be there
                failed = error
        if failed is not None:
            # It may not have heard of the subscription yet. If that is gone, others say so.
            raise Unavailable(failed.message) from failed

    async def _close_unwanted(self) -> None:
        for address in sorted(self._streams.keys() - (self._wanted or self._streams.keys())):
            if any(
                self._lease_streams.get(lease) is self._streams[address] for lease in self._in_hand
            ):
                continue  # it may lead after all: the leases need its heartbeats
            stream = self._streams.pop(address)
            released = [one for one in self._pushed if one.stream is stream]
            self._pushed = deque(one for one in self._pushed if one.stream is not stream)
            with contextlib.suppress(QuiverError):
                leases = [settlements_of(one.leases()) for one in released]
                await stream.close([one for part in leases for one in part], is_moved=True)
            if self._in_hand:
                self._hold_on()  # the same node may be known by another address

    @property
    def _is_member_elsewhere(self) -> bool:
        """Whether the consumer is one of a group whose coordinator may be another node."""
        is_alone = self._consuming.leads and not self._consuming.leaders
        is_alone = is_alone and self._partitions is None  # else the node goes by what it was told
        return self._consuming.ordering == Ordering.PARTITION and not is_alone

    async def _stay_member(self) -> None:
        """Ask for the partitions that a member of a group reads: often while they move."""
        asks = _MOVING_ASKS
        while True:
            moved = self._moved.next_wake()
            if self._is_member_elsewhere and await self._ask_membership():
                asks = _MOVING_ASKS
            if not moved.done():
                await self._moved.wait(_MOVING_S if asks else _MEMBERSHIP_S)
            asks = _MOVING_ASKS if moved.done() else max(0, asks - 1)

    async def _ask_membership(self) -> bool:
        """Whether it reads other partitions than before."""
        request = Heartbeat(subscription=self.terms.subscription, consumer=self.terms.consumer)
        try:
            _, (reply, _) = await self._cluster.call(
                request, repeatable=True, timeout_s=_MEMBERSHIP_S
            )
        except QuiverError:
            return False
        partitions = expect(GroupMembership, reply).partitions
        if partitions == self._partitions:
            return False
        self._partitions = partitions
        for stream in self._streams.values():
            stream.tell(partitions=partitions)
        return True

    async def _beat(self) -> None:
        """Say that the consumer is there, and what it works on."""
        for number in count(1):
            await self._clock.sleep(max(_BEAT_S_MIN, self._consuming.visibility_ms / 3000))
            self._hold_on(is_quiet=not self._in_hand and number % _ANSWERED != 0)

    def _hold_on(self, *, is_quiet: bool = False) -> None:
        held = settlements_of(self._in_hand)
        self._lease_streams = {
            lease: stream for lease, stream in self._lease_streams.items() if lease in self._in_hand
        }
        for stream in self._streams.values():
            if stream.is_open:
                if is_quiet:
                    stream.tell()
                else:
                    stream.beat(held)

    # ------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Store what was settled and return everything else. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        for timer in (self._busy_check, self._flush_timer):
            if timer is not None:
                timer.cancel()
        self._busy_check = self._flush_timer = None
        self._set_window(0)
        self._return_started()
        try:
            async with asyncio.timeout(self._cluster.timeout_s):
                await self.flush()
        except TimeoutError:
            late = Unavailable("the nodes did not answer in time: some settlements may be lost")
            self._not_delivered(late)
            raise late from None
        finally:
            await cancel_and_wait(*self._background)
            released = self._take_pushed()
            closing = [
                stream.close(settlements_of(released.get(stream, {})), is_silent=self._is_silent)
                for stream in self._streams.values()
            ]
            await asyncio.gather(*closing, return_exceptions=True)  # who is gone knows of nothing
            self._streams.clear()
            await self._tasks.cancel()
            self._changed.wake()


def settlements_of(leases: Leases) -> list[Settlement]:
    """Messages as the wire has them."""
    return [Settlement(lease, offsets.serialize()) for lease, offsets in leases.items()]
