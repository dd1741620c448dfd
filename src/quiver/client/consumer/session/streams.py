"""The streams of a session: one to each node that leads partitions of the subscription.

They follow the partitions when other nodes lead them, and are opened again when a connection breaks.
While they are open, heartbeats keep the leases of what the program works on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Container, Iterator
from functools import partial
from typing import Any, Protocol

from quiver.aio import Signal, SingleFlight, cancel_and_wait
from quiver.client.consumer.session.group_member import GroupMember
from quiver.client.consumer.session.heartbeats import Heartbeats
from quiver.client.consumer.session.in_hand import InHand
from quiver.client.consumer.session.leases import Leases, settlements_of
from quiver.client.consumer.session.node_stream import NodeStream
from quiver.client.consumer.session.push_queue import PushQueue
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.transport.backoff import RetryBackoff
from quiver.client.transport.channel import Answer
from quiver.client.transport.cluster import Cluster
from quiver.errors import InvalidRequest, QuiverError
from quiver.model.clock import Clock
from quiver.model.subscription import Guarantee, Ordering
from quiver.protocol import Consume, Consuming, Received

_BACKOFF = RetryBackoff()


class Receiver(Protocol):
    """Where the messages go: they belong into the queue of what was pushed."""

    def arrived(self, stream: NodeStream, reply: Received, body: memoryview) -> None: ...

    def opened(self, stream: NodeStream) -> None:
        """The stream may have been opened with another window than it should have by now."""


class NodeStreams:
    """``open`` them, ``close`` them whatever happens.

    What waits in ``pushed`` leaves it with its stream. What is in ``in_hand`` stays with the program.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        terms: SessionTerms,
        receiver: Receiver,
        *,
        pushed: PushQueue,
        in_hand: InHand,
        chance: random.Random | None = None,
    ) -> None:
        self.consuming = Consuming()
        """What a node said last."""
        self.window = 0
        """How many messages each node may push that are not started."""
        self.is_closed = False
        self.changed = Signal(clock)
        """There may be a message for the program, or there never will be."""
        self.moved = Signal(clock)
        """The streams may not be those that there should be."""
        self._cluster = cluster
        self._clock = clock
        self._terms = terms
        self._receiver = receiver
        self._pushed = pushed
        self._in_hand = in_hand
        self._chance = chance or random.Random()
        self._member = GroupMember(cluster, terms, self)
        self._heartbeats = Heartbeats(clock, terms, self, in_hand)
        self._streams: dict[str, NodeStream] = {}
        self._wanted: set[str] | None = None
        """The nodes to have streams to; ``None``: any one."""
        self._failure: QuiverError | None = None
        self._opening: SingleFlight[str, None] = SingleFlight()
        """By address."""
        self._openers: dict[str, asyncio.Task[None]] = {}
        self._background: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[NodeStream]:
        return iter(self._streams.values())

    @property
    def guarantee(self) -> str:
        return self.consuming.guarantee

    @property
    def blocks_on_nack(self) -> bool:
        """Whether a nacked message comes again before anything that follows it in its partition."""
        is_final = self.consuming.guarantee == Guarantee.AT_MOST_ONCE
        return self.consuming.ordering == Ordering.PARTITION and not is_final

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
        work = [self._follow(), self._heartbeats.run()]
        if self.consuming.ordering == Ordering.PARTITION:
            work.append(self._member.stay())
        self._background = [asyncio.create_task(one) for one in work]

    def check(self) -> None:
        """Raise why there will never be a message again, if so."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self.is_closed:
            raise InvalidRequest("the consumer is closed")

    async def close(self, *, is_silent: bool = False) -> None:
        """Return what was not started. ``is_silent``: the program ended without a word."""
        self.is_closed = True
        await cancel_and_wait(*self._background, *self._openers.values())
        await self._opening.cancel()
        released = self._pushed.take_all()
        closing = [
            stream.close(settlements_of(released.get(stream, {})), is_silent=is_silent)
            for stream in self
        ]
        ends = await asyncio.gather(*closing, return_exceptions=True)
        has_failed = any(isinstance(end, BaseException) for end in ends)
        if not is_silent and (has_failed or (self._wanted or set()) - self._streams.keys()):
            await self._member.leave()  # a node that has not heard of the end may coordinate
        self._streams.clear()
        self.changed.wake()

    # ------------------------------------------------------------------ what the nodes are told

    def begin(
        self, stream: NodeStream, leases: Leases, window: int | None
    ) -> asyncio.Future[Answer] | None:
        """Tell a node that the program gets these; the answer to wait for, if there is one."""
        guarantee = self.consuming.guarantee
        self._in_hand.add(stream, leases, is_final=guarantee == Guarantee.AT_MOST_ONCE)
        if guarantee != Guarantee.AT_LEAST_ONCE:
            return stream.start(settlements_of(leases), window)
        stream.tell(started=settlements_of(leases), window=window)
        return None

    def set_window(self, window: int, *, apart: Container[NodeStream] = ()) -> bool:
        """Tell the nodes the window if it is another one, all but those ``apart``; whether it is."""
        if window == self.window:
            return False
        self.window = window
        for stream in self:
            if stream not in apart:
                stream.tell(window=window)
        return True

    def release(self, released: dict[NodeStream, Leases]) -> None:
        """Return what was pushed and will not be started."""
        for stream, leases in released.items():
            stream.tell(released=settlements_of(leases))

    def tell_partitions(self, partitions: list[str]) -> None:
        for stream in self:
            stream.tell(partitions=partitions)

    # ------------------------------------------------------------------ what the nodes say

    def arrived(self, stream: NodeStream, reply: Received, body: memoryview) -> None:
        self._receiver.arrived(stream, reply, body)

    def told(self, stream: NodeStream, consuming: Consuming) -> None:
        self.consuming = consuming
        others = set(consuming.leaders)
        self._wanted = others | {stream.address} if consuming.leads or not others else others
        if self._in_hand:
            self._heartbeats.beat()
        self.moved.wake()

    def lost(self, stream: NodeStream, error: QuiverError) -> None:
        """What waited for the program is with others now. What it works on is still its own."""
        self._pushed.remove_all_of(stream)
        if self._streams.get(stream.address) is stream:
            del self._streams[stream.address]
        if not error.retryable:
            self._fail(error)
        self.moved.wake()

    def _fail(self, error: QuiverError) -> None:
        self._failure = error
        self.changed.wake()

    # ------------------------------------------------------------------ to the leaders

    async def _open_stream(self, address: str, channel: Any) -> None:
        if address in self._streams:
            return
        stream = NodeStream(self, address, channel)
        partitions = self._member.partitions
        consuming = await stream.open(
            Consume(
                subscription=self._terms.subscription,
                consumer=self._terms.consumer,
                window=self.window,
                bytes_max=self._terms.bytes_max,
                visibility_ms=self._terms.visibility_ms,
                partitions=partitions,
            )
        )
        self._streams[address] = stream
        self._receiver.opened(stream)
        if self._member.partitions != partitions:  # since it was asked for
            stream.tell(partitions=self._member.partitions)
        self.told(stream, consuming)

    async def _follow(self) -> None:
        """Have a stream to each node that leads partitions, again after each failure."""
        failures = 0
        while not self.is_closed and self._failure is None:
            moved = self.moved.next_wake()
            try:
                if not self._streams:
                    await self._open_any()
                self._open_missing()
                await self._close_unwanted()
                failures = 0
            except QuiverError as error:
                if not error.retryable:
                    self._fail(error)
                    return
                failures += 1
                if not moved.done():
                    await self.moved.wait(_BACKOFF.pause_s(failures, self._chance))
                continue
            await moved

    async def _open_any(self) -> None:
        self._wanted = None
        address, channel = await self._cluster.any_channel()
        await self._opening.run(address, partial(self._open_stream, address, channel))

    def _open_missing(self) -> None:
        """Each by itself: a node that does not answer keeps no other waiting."""
        for address in sorted(self._missing):
            opener = self._openers.get(address)
            if opener is None or opener.done():
                self._openers[address] = asyncio.create_task(self._open_until_there(address))

    @property
    def _missing(self) -> set[str]:
        """The nodes that lead partitions, and to which there is no stream."""
        return (self._wanted or set()) - self._streams.keys()

    async def _open_until_there(self, address: str) -> None:
        failures = 0
        while address in self._missing:
            try:
                await self._opening.run(address, partial(self._open_at, address))
            except QuiverError:
                # It may not have heard of the subscription yet. If that is gone, others say so.
                failures += 1
                await self.moved.wait(_BACKOFF.pause_s(failures, self._chance))

    async def _open_at(self, address: str) -> None:
        await self._open_stream(address, await self._cluster.pool.channel(address))

    async def _close_unwanted(self) -> None:
        for address in sorted(self._streams.keys() - (self._wanted or self._streams.keys())):
            if self._in_hand.has_some_of(self._streams[address]):
                continue  # it may lead after all: the leases need its heartbeats
            stream = self._streams.pop(address)
            released = self._pushed.remove_all_of(stream)
            with contextlib.suppress(QuiverError):
                await stream.close(settlements_of(released), is_moved=True)
            if self._in_hand:
                self._heartbeats.beat()  # the same node may be known by another address
