"""A consumer's session with a subscription: nodes push messages, and the program gets them one by one.

The session starts messages as the program asks for them: then they are deliveries, and their leases
begin. It starts and prefetches as many as the pace of the program allows. What waits for a program that
is busy for long is returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from pyroaring import BitMap64

from quiver.aio import finish
from quiver.client.consumer.received import ReceivedMessage, leases_of, messages_in
from quiver.client.consumer.session.in_hand import InHand
from quiver.client.consumer.session.leases import Leases, leases_from, settlements_of
from quiver.client.consumer.session.node_stream import NodeStream, lost_in
from quiver.client.consumer.session.pace import HandlerPace
from quiver.client.consumer.session.push_queue import PushQueue
from quiver.client.consumer.session.pushed import PushedMessages
from quiver.client.consumer.session.settlements import Settlements
from quiver.client.consumer.session.start_backoff import StartBackoff
from quiver.client.consumer.session.streams import NodeStreams
from quiver.client.consumer.session.terms import Holder, Program, SessionTerms
from quiver.client.consumer.session.work_watch import WorkWatch
from quiver.client.consumer.settlement_kind import ACK, RETURN, Kind
from quiver.client.transport.channel import Answer
from quiver.client.transport.cluster import Cluster
from quiver.errors import InvalidRequest, QuiverError
from quiver.model.clock import Clock
from quiver.model.subscription import Guarantee, Ordering
from quiver.protocol import Received, Settlement


class ConsumerSession:
    """``open`` it, ``close`` it whatever happens. ``settler`` settles the messages for the program."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        terms: SessionTerms,
        program: Program,
        settler: Any,
        *,
        chance: random.Random | None = None,
    ) -> None:
        self._terms = terms
        self._settler = settler
        self._pace = HandlerPace(terms.prefetch)
        self._watch = WorkWatch(clock, self._pace, self._return_waiting)
        self._pushed = PushQueue()
        self._in_hand = InHand(clock)
        self._settlements = Settlements(cluster, clock, terms, self._in_hand, program.call_soon)
        self._buffer = self._settlements.buffer
        self._streams = NodeStreams(
            cluster,
            clock,
            terms,
            self,
            pushed=self._pushed,
            in_hand=self._in_hand,
            chance=chance,
        )
        self._start_backoff = StartBackoff(clock, terms.subscription, chance)
        self._started: deque[ReceivedMessage] = deque()
        """Messages that the program may have. The program takes them from the left."""
        self._nacked: set[bytes] = set()
        """Leases of which the program gets nothing more: what is left follows a nacked message."""
        self._current: ReceivedMessage | None = None
        self._holders: set[Holder] = set()
        """Transactions that acknowledge messages of this session."""

    @property
    def guarantee(self) -> str:
        return self._streams.guarantee

    async def open(self) -> None:
        """Connect. Raises what keeps the consumer from being one, such as ``SubscriptionNotFound``."""
        self._streams.window = self._pace.window
        await self._streams.open()

    async def close(self) -> None:
        """Store what was settled and return everything else. May be called twice."""
        if self._streams.is_closed:
            return
        self._streams.is_closed = True
        self._watch.stop()
        self._streams.set_window(0)
        self._return_started()
        try:
            for holder in list(self._holders):
                await holder.hold()  # else the messages would go back with the session
            await self._settlements.store_all()
        finally:
            await self._streams.close()
            await self._settlements.close()

    # ------------------------------------------------------------------ messages for the program

    def take(self) -> ReceivedMessage | None:
        """A message that is started already. May be called from the program's thread."""
        try:
            message = self._current = self._started.popleft()
        except IndexError:
            return None
        return self._take_other(message) if self._nacked else message

    def _take_other(self, message: ReceivedMessage) -> ReceivedMessage | None:
        """The next message that follows none that was nacked. Those that do are returned."""
        try:
            while message.lease in self._nacked:
                self._buffer.add(RETURN, message.lease, message.offset)
                message = self._started.popleft()
        except IndexError:
            self._current = None
            return None
        self._current = message
        return message

    async def next(self) -> ReceivedMessage:
        """The next message, when there is one."""
        self._watch.asked()
        try:
            while (message := self.take()) is None:
                await self._get_ready()
        finally:
            self._watch.answered()
        if self._watch.is_asked and self._started:
            self._streams.changed.wake()  # there is one for the next of those who wait
        return message

    async def _get_ready(self) -> None:
        """Start messages, or wait for some."""
        self._streams.check()
        if self._nacked:
            self._streams.release(self._pushed.remove_leases(self._nacked))
            self._nacked &= self._in_hand.leases.keys()
        if self._settlements.is_full:
            await self._settlements.until_some_confirmed()
        elif (pause_s := self._start_backoff.left_s) > 0:
            await self._streams.changed.wait(pause_s)
        elif not await self._start_some():
            self._streams.set_window(self._pace.window)
            if self._streams.consuming.ordering != Ordering.NONE:
                self._settlements.send_buffered()  # the next may wait for these
            if not self._pushed:  # a node in this process has pushed already
                await self._streams.changed.wait()

    # ------------------------------------------------------------------ starting

    async def _start_some(self) -> bool:
        """Start the next messages; whether there were any."""
        chosen: dict[NodeStream, list[ReceivedMessage]] = {}
        is_final = self.guarantee == Guarantee.AT_MOST_ONCE
        waits = self.guarantee != Guarantee.AT_LEAST_ONCE
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
            if waits and chosen and pushed.stream not in chosen:
                break  # a node that cannot answer now keeps nothing of another's waiting
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
            self._settlements.give_back(leases_of(started))  # whoever waited for them is gone
            raise
        self._started.extend(started)
        self._watch.gave(len(started))

    async def _start(
        self, chosen: dict[NodeStream, list[ReceivedMessage]], messages: list[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """Tell the nodes that the program gets these; those that it may have."""
        streams = self._streams
        window = self._pace.window if streams.set_window(self._pace.window, apart=chosen) else None
        begun = [streams.begin(stream, leases_of(part), window) for stream, part in chosen.items()]
        answers = [answer for answer in begun if answer is not None]
        if answers:
            return await self._allowed(messages, answers)
        for _ in range(2):
            await asyncio.sleep(0)  # it is written to the socket before the program has them
        return messages

    async def _allowed(
        self, messages: list[ReceivedMessage], answers: Sequence[asyncio.Future[Answer]]
    ) -> list[ReceivedMessage]:
        """Those of the messages that the nodes say the program may have."""
        try:
            lost = await lost_in(answers)
        except QuiverError as error:
            # Whether they were started is not known. What waits comes after them.
            self._start_backoff.failed(error)
            self._release_pushed()
            self._settlements.give_back(leases_of(messages))
            return []
        self._start_backoff.succeeded()
        if not lost:
            return messages
        self._in_hand.forget(lost)
        none = BitMap64()
        return [one for one in messages if one.offset not in lost.get(one.lease, none)]

    # ------------------------------------------------------------------ what nodes push

    def arrived(self, stream: NodeStream, reply: Received, body: memoryview) -> None:
        messages = messages_in(reply, body, self._terms.subscription, self._settler)
        self._pushed.append(PushedMessages(stream, messages))
        if self._streams.is_closed or self._streams.window == 0:
            released = self._pushed.take_all()
            # With the window: a node that does not know of it would push the same again.
            stream.tell(released=settlements_of(released.get(stream, {})), window=0)
        else:
            self._streams.changed.wake()

    def opened(self, stream: NodeStream) -> None:
        if stream.window != self._streams.window:
            stream.tell(window=self._streams.window)

    def _return_waiting(self) -> None:
        """Return what waits for a program that has been busy for long: others may be idle."""
        if not self._streams.is_closed:
            self._return_started()
            self._release_pushed()

    def _release_pushed(self) -> None:
        """Return what waits, and have nothing pushed before the program asks for more."""
        released = self._pushed.take_all()
        if released or self._streams.window:
            self._streams.window = 0
            for stream in self._streams:
                leases = released.get(stream, {})
                stream.tell(released=settlements_of(leases), window=0)

    def _return_started(self) -> None:
        """Return what was started and not taken, as if it had not been."""
        if self.guarantee == Guarantee.AT_MOST_ONCE:
            return  # it is finished, and can go to nobody else
        back: list[ReceivedMessage] = []
        with contextlib.suppress(IndexError):
            while True:
                back.append(self._started.pop())
        if back:
            self._watch.returned(len(back))
            self._settlements.give_back(leases_of(back))

    # ------------------------------------------------------------------ settling

    def settle(self, message: ReceivedMessage, kind: Kind) -> None:
        """Record what the program did with a message. May be called from the program's thread."""
        if message is self._current and kind.name != "extend":
            self._current = None
        if kind is not ACK and kind.name == "nack" and self._streams.blocks_on_nack:
            self._nacked.add(message.lease)  # of one partition, it has messages of one lease only
        self._buffer.add(kind, message.lease, message.offset)

    def take_current(self) -> ReceivedMessage | None:
        """The message that the program has taken last, if it is not settled."""
        message, self._current = self._current, None
        return message

    def take_handled(self) -> ReceivedMessage | None:
        """The message to acknowledge for the program, as it asks for the next one."""
        if self._terms.ack == "manual" or self.guarantee == Guarantee.AT_MOST_ONCE:
            return None
        return self.take_current()

    # ------------------------------------------------------------------ transactions

    def join(self, message: ReceivedMessage, holder: Holder) -> None:
        """A transaction acknowledges a message. May be called from the program's thread."""
        if self.guarantee == Guarantee.AT_MOST_ONCE:
            raise InvalidRequest("a message with at-most-once is acknowledged when it is delivered")
        if message is self._current:
            self._current = None
        self._holders.add(holder)

    def leave(self, holder: Holder) -> None:
        """The transaction has ended."""
        self._holders.discard(holder)

    def by_stream(self, leases: Leases) -> dict[NodeStream | None, Leases]:
        """The streams over which messages came, as far as they are open."""
        found: dict[NodeStream | None, Leases] = {}
        for lease, offsets in leases.items():
            found.setdefault(self._in_hand.stream_of(lease), {})[lease] = offsets
        return found

    def held(self, leases: Leases) -> None:
        """The nodes keep these for a transaction: their leases need no heartbeats."""
        self._in_hand.forget(leases)

    def undone(self, leases: Leases, kind: Kind | None) -> None:
        """A transaction was aborted: its messages are back. ``kind``: or go back now, like this."""
        if self._streams.blocks_on_nack:
            self._nacked.update(leases)
        if kind is not None:
            self._buffer.add_all(kind, leases)

    # ------------------------------------------------------------------ until it is stored

    async def flush(self) -> None:
        """Wait until everything that was settled so far is stored; an error if that cannot be had."""
        await self._settlements.flush()

    async def confirm(self, message: ReceivedMessage) -> None:
        """Wait until the settlement of a message is stored; ``StaleReceipt`` if it came too late."""
        await self._settlements.confirm(message)

    def settled(self, settlements: Sequence[Settlement], *, is_nack: bool) -> None:
        """These were settled in another way."""
        held = self._in_hand.leases
        leases = leases_from(one for one in settlements if one.lease in held)
        current = self._current
        if current is not None and current.offset in leases.get(current.lease, ()):
            self._current = None
        if is_nack and self._streams.blocks_on_nack:
            self._nacked.update(leases)
        self._in_hand.forget(leases)
