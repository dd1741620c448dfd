"""The nodes as a client sees them: routes calls, and caches the descriptions of topics.

A call goes to any node, or to a given one, and is repeated within its time limit if that is safe. A
topic's description is cached until an error shows that it has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from quiver.aio import SingleFlight
from quiver.client.transport.backoff import RetryBackoff
from quiver.client.transport.channel import Answer, Channel
from quiver.client.transport.pool import SOON_S, Pool
from quiver.errors import ConnectionLost, ProtocolError, QuiverError, RequestTimeout
from quiver.model.batch import Bytes
from quiver.model.clock import Clock
from quiver.model.ids import PartitionIndex
from quiver.model.key_hash import KeyRouter
from quiver.protocol import (
    AnyReply,
    AnyRequest,
    DescribeTopic,
    ListTopics,
    Reply,
    Topic,
    TopicInfo,
    Topics,
)

_TIMEOUT_S_MIN = 0.05

R = TypeVar("R", bound=Reply)


def expect(kind: type[R], reply: AnyReply) -> R:
    """The reply, if it is of the kind that answers the request."""
    if not isinstance(reply, kind):
        raise ProtocolError(f"the node answered with {type(reply).__name__}, not {kind.__name__}")
    return reply


def _asked_pause_s(error: QuiverError) -> float:
    """How long the node asked us to wait before the next attempt."""
    asked = error.details.get("retry_after_s")
    return max(0.0, float(asked)) if isinstance(asked, int | float) else 0.0


class TopicLayout:
    """A topic as it was described: its settings, who owns which key, and who leads what."""

    def __init__(self, info: TopicInfo, asked: str) -> None:
        self.info = info
        self.version = info.layout
        """Grows whenever partitions change."""
        ordered = sorted(info.partitions, key=lambda partition: partition.first_hash)
        try:
            self.router = KeyRouter(
                [partition.first_hash for partition in ordered],
                [PartitionIndex(partition.index) for partition in ordered],
            )
        except (AssertionError, IndexError) as error:
            raise ProtocolError(
                f"the description of topic {info.name!r} lacks key ranges"
            ) from error
        self._replicas = {partition.index: partition.in_sync for partition in info.partitions}
        self._leaders = {partition.index: partition.leader for partition in info.partitions}
        self.asked = asked

    @property
    def partitions(self) -> list[int]:
        return sorted(self._leaders)

    def is_newer_than(self, other: TopicLayout) -> bool:
        """Whether this is how the topic came to be after the other, or another topic."""
        return self.info.number != other.info.number or self.version > other.version

    def address(self, partition: int) -> str:
        """The node to ask about this partition."""
        return self._leaders.get(partition) or self.asked

    def nearest(self, partition: int, zone: str) -> str:
        """The node of this zone to read the partition from; without one there, its leader."""
        leader = self.address(partition)
        near = [one.address for one in self._replicas.get(partition, ()) if one.zone == zone]
        return leader if leader in near or not near else near[0]


class Cluster:
    """Calls and topics of one client, over one pool."""

    def __init__(
        self,
        pool: Pool,
        *,
        clock: Clock,
        timeout_s: float,
        backoff: RetryBackoff = RetryBackoff(),  # noqa: B008 - frozen
        chance: random.Random | None = None,
    ) -> None:
        self.pool = pool
        self.timeout_s = timeout_s
        self.clock = self._clock = clock
        self._backoff = backoff
        self._chance = chance or random.Random()
        self._layouts: dict[str, TopicLayout] = {}
        self._describing: SingleFlight[str, TopicLayout] = SingleFlight()
        self._names: dict[int, str] = {}

    async def call(
        self,
        request: AnyRequest,
        *,
        repeatable: bool,
        find_address: Callable[[], str] | None = None,
        near: str | None = None,
        timeout_s: float | None = None,
        attempt_s: float = float("inf"),
        about: str | None = None,
        body: Sequence[Bytes] = (),
    ) -> tuple[str, Answer]:
        """The answer and who gave it. ``about`` is the topic that the call concerns, if it is one's.

        Any node will do, without ``find_address``. The one that is ``near`` is asked first, as soon as
        there is a connection to it.

        Until its time is up a call is tried again after errors that may pass, but one that is not
        ``repeatable`` only while it has not been sent. Where no node was ever reached, one attempt
        is enough: a wrong address should be told at once.
        """
        deadline = self._clock.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        failures = 0
        while True:
            sent, address = False, ""
            try:
                known = None if near is None else self.pool.channel_for_later(near)
                if near is not None and known is not None:
                    address, channel = near, known
                else:
                    address, channel = await self._channel(
                        find_address, deadline - self._clock.monotonic()
                    )
                left_s = max(_TIMEOUT_S_MIN, deadline - self._clock.monotonic())
                sent = True
                return address, await channel.call(request, body, timeout_s=min(left_s, attempt_s))
            except QuiverError as error:
                failures += 1
                near = None
                may_repeat = error.retryable and (repeatable or not sent)
                left_s = deadline - self._clock.monotonic()
                if not may_repeat or left_s <= 0 or not self.pool.has_connected:
                    raise
                if find_address is None:
                    self.pool.doubt(address)
                pause_s = self._backoff.pause_s(failures, self._chance) + _asked_pause_s(error)
            await self._clock.sleep(min(left_s, pause_s))
            if about is not None:
                with contextlib.suppress(QuiverError):  # another node may lead it by now
                    self.doubt(about)
                    await self.refresh(about, max(_TIMEOUT_S_MIN, left_s - pause_s))

    async def _channel(
        self, find_address: Callable[[], str] | None, within_s: float
    ) -> tuple[str, Channel]:
        if find_address is None and (known := self.pool.any_open()) is not None:
            return known
        try:
            async with asyncio.timeout(max(_TIMEOUT_S_MIN, within_s)):
                if find_address is None:
                    return await self.pool.any_channel()
                address = find_address()
                return address, await self.pool.channel(address)
        except TimeoutError:
            raise ConnectionLost("no node could be reached in time") from None

    async def any_channel(self) -> tuple[str, Channel]:
        """A channel to any node, and its address."""
        return await self._channel(None, self.timeout_s)

    # ------------------------------------------------------------------ topics

    def known_layout(self, topic: str) -> TopicLayout | None:
        return self._layouts.get(topic)

    async def layout(self, topic: str, timeout_s: float | None = None) -> TopicLayout:
        """The topic as last described; asks if it is not known."""
        return self._layouts.get(topic) or await self.refresh(topic, timeout_s)

    async def topic_of(self, number: int) -> str | None:
        """The name of a topic by its number; ``None`` if there is none that the caller may see."""
        if number not in self._names:
            _, (reply, _) = await self.call(ListTopics(), repeatable=True)
            self._names = {one.number: one.name for one in expect(Topics, reply).topics}
        return self._names.get(number)

    async def refresh(self, topic: str, timeout_s: float | None = None) -> TopicLayout:
        """Describe the topic anew; those who ask at the same time share one answer."""
        return await self._describing.run(topic, lambda: self._describe(topic, timeout_s))

    def forget(self, topic: str) -> None:
        """The topic may have changed: describe it when it is next needed."""
        self._layouts.pop(topic, None)

    def doubt(self, topic: str) -> None:
        """Things are not as the topic was described: have another node describe it, if there is one.

        The node that did may be cut off from the others and not know it.
        """
        layout = self._layouts.get(topic)
        if layout is not None:
            self.pool.replace(layout.asked)
            self.pool.doubt(layout.asked)

    def keep(self, info: TopicInfo, asked: str) -> None:
        self._layouts[info.name] = TopicLayout(info, asked)

    async def _describe(self, topic: str, timeout_s: float | None) -> TopicLayout:
        try:
            asked, (reply, _) = await self.call(
                DescribeTopic(name=topic, extents=False),
                repeatable=True,
                timeout_s=timeout_s,
                attempt_s=SOON_S,
            )
        except QuiverError as error:
            if not isinstance(error, ConnectionLost | RequestTimeout):
                self.forget(topic)
            raise
        self.keep(expect(Topic, reply).topic, asked)
        return self._layouts[topic]

    async def close(self) -> None:
        await self._describing.cancel()
        await self.pool.close()
