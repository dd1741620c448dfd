"""One consumer at work on one subscription, from its first receive until it ends.

While it is there its group knows that it is alive and, if it wants so, the leases of the messages it
has in hand are kept alive, however long the work takes. When it ends, what it received and has not
given to anybody goes back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from quiver.aio import cancel_and_wait
from quiver.client.consumer.received import ReceivedMessage
from quiver.errors import QuiverError
from quiver.model.clock import Clock
from quiver.model.subscription import Ordering, SubscriptionSettings
from quiver.model.units import Duration

WAIT_S = 20.0
_PULSES = 3
"""How often, in the time until somebody would be given up, it says that it is there."""


class Consumer(Protocol):
    """What a consumer session needs of the client."""

    async def receive(
        self,
        subscription: str,
        max_messages: int,
        *,
        wait: Duration,
        visibility: Duration | None,
        consumer: str,
    ) -> list[ReceivedMessage]: ...

    async def extend(self, subscription: str, messages: Any, visibility: Duration) -> None: ...

    async def give_back(self, subscription: str, messages: Any) -> None: ...

    async def heartbeat(self, subscription: str, consumer: str) -> list[str]: ...

    async def leave(self, subscription: str, consumer: str) -> None: ...


class ConsumerSession:
    def __init__(
        self,
        client: Consumer,
        settings: SubscriptionSettings,
        clock: Clock,
        *,
        subscription: str,
        consumer: str,
        prefetch: int,
        visibility_s: float | None,
        keep_alive_s: float,
    ) -> None:
        self._client = client
        self._clock = clock
        self._subscription = subscription
        self._consumer = consumer
        self._prefetch = prefetch
        self._visibility_s = settings.visibility_s if visibility_s is None else visibility_s
        self._keep_alive_s = keep_alive_s
        self._in_group = settings.ordering is Ordering.PARTITION
        self._in_hand: dict[tuple[bytes, int], tuple[ReceivedMessage, float]] = {}
        """Messages that are not settled, and until when their leases are kept alive."""
        self._received: list[ReceivedMessage] = []
        self._given = 0
        self._tasks: list[asyncio.Task[None]] = []
        if self._in_group:
            self._every(float(settings.session_timeout) / _PULSES, self._beat)
        if keep_alive_s:
            self._every(max(0.05, self._visibility_s / _PULSES), self._keep_alive)

    # ------------------------------------------------------------------ messages

    async def receive(self) -> list[ReceivedMessage]:
        """The next messages; none if there were none for a while."""
        messages = await self._client.receive(
            self._subscription,
            self._prefetch,
            wait=WAIT_S,
            visibility=self._visibility_s,
            consumer=self._consumer,
        )
        self._received, self._given = messages, 0
        if self._keep_alive_s:
            until = self._clock.monotonic() + self._keep_alive_s
            self._in_hand |= {(one.lease, one.offset): (one, until) for one in messages}
        return messages

    def given(self) -> None:
        """Whoever consumes has the next of those that were received now."""
        self._given += 1

    def settled(self, messages: Any) -> None:
        """These are in nobody's hands any more."""
        if self._in_hand:
            for message in messages if isinstance(messages, list | tuple) else [messages]:
                if isinstance(message, ReceivedMessage):
                    self._in_hand.pop((message.lease, message.offset), None)

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)
        unseen, self._received = self._received[self._given :], []
        with contextlib.suppress(QuiverError):
            if self._in_group:
                await self._client.leave(self._subscription, self._consumer)
            elif unseen:
                await self._client.give_back(self._subscription, unseen)

    # ------------------------------------------------------------------ being there

    def _every(self, seconds: float, act: Callable[[], Awaitable[object]]) -> None:
        self._tasks.append(asyncio.create_task(self._repeat(seconds, act)))

    async def _repeat(self, seconds: float, act: Callable[[], Awaitable[object]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            with contextlib.suppress(QuiverError):  # the next time may go better
                await act()

    async def _beat(self) -> None:
        await self._client.heartbeat(self._subscription, self._consumer)

    async def _keep_alive(self) -> None:
        now = self._clock.monotonic()
        self._in_hand = {at: one for at, one in self._in_hand.items() if one[1] > now}
        messages = [message for message, _ in self._in_hand.values()]
        if messages:
            await self._client.extend(self._subscription, messages, self._visibility_s)
