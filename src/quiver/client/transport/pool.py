"""One channel for each node, opened when first needed and again after it broke.

Whoever needs a channel asks each time and gets the open one. Openings are shared by all who wait,
and after a failure nobody tries that node again before its pause is over. The pool itself never
retries: how long to go on is the caller's to decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

from quiver.aio import SingleFlight, TaskSet
from quiver.client.transport.backoff import RetryBackoff
from quiver.client.transport.channel import Channel, Dialer
from quiver.errors import AccessRefused, ConnectionLost, QuiverError
from quiver.model.clock import Clock

SOON_S = 3.0
"""How long one node is waited for while there may be another to ask."""
_DOUBT_S = 10.0


class _Node:
    """What the pool knows of one address."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.failures = 0
        self.not_before = 0.0
        self.retired: Channel | None = None
        """The channel before, which others may still use."""
        self.replaced = float("-inf")


class Pool:
    """Channels by address. ``bootstrap`` are the nodes to ask when any will do."""

    def __init__(
        self,
        dialer: Dialer,
        bootstrap: Sequence[str],
        *,
        clock: Clock,
        backoff: RetryBackoff = RetryBackoff(),  # noqa: B008 - frozen
        chance: random.Random | None = None,
    ) -> None:
        assert bootstrap, "there is a node to begin with"
        self._dialer = dialer
        self._bootstrap = list(bootstrap)
        self._clock = clock
        self._backoff = backoff
        self._chance = chance or random.Random()
        self._nodes: dict[str, _Node] = {}
        self._dialing: SingleFlight[str, Channel] = SingleFlight()
        self._closed = False
        self._doubts: dict[str, float] = {}
        self._opening = TaskSet()
        self._closing = TaskSet()
        self.has_connected = False
        """Whether any node ever answered: if not, the address is more likely wrong than down."""

    def open_channel(self, address: str) -> Channel | None:
        """The channel to ``address`` if it is open already."""
        node = self._nodes.get(address)
        if node is None or node.channel is None or not node.channel.is_open:
            return None
        return node.channel

    def channel_for_later(self, address: str) -> Channel | None:
        """The channel to ``address`` if it is open; else it is being opened from now on."""
        known = self.open_channel(address)
        if known is None and not self._closed and address not in self._dialing:
            self._opening.start(self._try_to_open(address))
        return known

    async def _try_to_open(self, address: str) -> None:
        with contextlib.suppress(QuiverError):  # another node is asked until it can be reached
            await self.channel(address)

    async def channel(self, address: str) -> Channel:
        """The channel to ``address``, opened if need be, with one attempt."""
        if self._closed:
            raise ConnectionLost("the client is closed")
        known = self.open_channel(address)
        if known is not None:
            return known
        node = self._nodes.setdefault(address, _Node())
        return await self._dialing.run(address, lambda: self._dial(address, node))

    def any_open(self) -> tuple[str, Channel] | None:
        """A channel that is open already to one of the nodes to begin with, and its address."""
        for address in self._bootstrap:
            known = self.open_channel(address)
            if known is not None and not self._is_doubted(address):
                return address, known
        return None

    async def any_channel(self) -> tuple[str, Channel]:
        """A channel to one of the nodes to begin with, and its address; each is tried once."""
        known = self.any_open()
        if known is not None:
            return known
        failures: list[QuiverError] = []
        for address in list(self._bootstrap):
            try:
                return address, await self._soon(address)
            except QuiverError as error:
                failures.append(error)
                self._ask_last(address)
        refusals = [error for error in failures if isinstance(error, AccessRefused)]
        if refusals or len(failures) == 1:
            raise (refusals or failures)[0]
        raise ConnectionLost("; ".join(error.message for error in failures))

    def doubt(self, address: str) -> None:
        """What this node said did not hold: ask the others for a while, if there are any."""
        if address in self._bootstrap:
            self._ask_last(address)
            self._doubts[address] = self._clock.monotonic() + _DOUBT_S

    def replace(self, address: str) -> None:
        """What this node said of others did not hold: through a forwarder, ask another one next.

        At most one channel at a time is kept for those who still use it.
        """
        node, now = self._nodes.get(address), self._clock.monotonic()
        # Only a channel over a socket can be one through a forwarder, and says so.
        if node is None or node.channel is None or not getattr(node.channel, "is_forwarded", False):
            return
        if node.channel.is_open and now - node.replaced >= _DOUBT_S:
            if node.retired is not None:
                self._closing.start(node.retired.close())
            node.retired, node.channel, node.replaced = node.channel, None, now

    def _is_doubted(self, address: str) -> bool:
        return self._doubts.get(address, 0.0) > self._clock.monotonic()

    def _ask_last(self, address: str) -> None:
        self._bootstrap.append(self._bootstrap.pop(self._bootstrap.index(address)))

    async def _soon(self, address: str) -> Channel:
        """The channel, unless another node might answer sooner; opening it goes on then."""
        if len(self._bootstrap) == 1:
            return await self.channel(address)
        try:
            async with asyncio.timeout(SOON_S):
                return await self.channel(address)
        except TimeoutError:
            raise ConnectionLost(f"{address} did not answer within {SOON_S:g} s") from None

    async def close(self) -> None:
        self._closed = True
        nodes, self._nodes = list(self._nodes.values()), {}
        await self._opening.cancel()
        await self._dialing.cancel()
        for node in nodes:
            for channel in (node.channel, node.retired):
                if channel is not None:
                    await channel.close()
        await self._closing.wait()

    async def _dial(self, address: str, node: _Node) -> Channel:
        try:
            await self._clock.sleep(node.not_before - self._clock.monotonic())
            old, node.channel = node.channel, None
            if old is not None:
                await old.close()
            channel = await self._dialer.dial(address)
        except QuiverError as error:
            self.has_connected = self.has_connected or not isinstance(error, ConnectionLost)
            node.failures += 1
            pause_s = self._backoff.pause_s(node.failures, self._chance)
            node.not_before = self._clock.monotonic() + pause_s
            raise
        else:
            node.failures = 0
            node.channel = channel
            self.has_connected = True
            return channel
