"""A consumer for async programs: messages one by one, and what happens when the program leaves.

``async with client.consumer("emails") as messages`` gives an ``AsyncConsumer``. When an exception leaves
the block, the message in hand is nacked with the exception's text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self

from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.session.session import ConsumerSession
from quiver.client.consumer.settlement_kind import ACK, Kind
from quiver.errors import StaleReceipt
from quiver.model.subscription import Guarantee

_ERROR_LENGTH_MAX = 1000
LEFT = "the program left the loop without settling it"


def failure_kind(error: BaseException) -> Kind:
    """What becomes of the message in hand when this leaves the program's block."""
    if isinstance(error, Exception):
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Kind("nack", error=text[:_ERROR_LENGTH_MAX])
    text = LEFT if isinstance(error, GeneratorExit) else type(error).__name__
    return Kind("nack", delay_ms=0, error=text)


class Settling:
    """A settlement that is on its way. Awaiting it waits until it is stored.

    ``raises_stale``: with an error if it came too late.
    """

    __slots__ = ("_message", "_raises_stale", "_session")

    def __init__(
        self, session: ConsumerSession, message: ReceivedMessage, raises_stale: bool
    ) -> None:
        self._session = session
        self._message = message
        self._raises_stale = raises_stale

    def __await__(self) -> Generator[Any, Any, None]:
        if self._raises_stale:
            return self._session.confirm(self._message).__await__()
        return settle_by_default(self._session, self._message).__await__()


class AsyncConsumer:
    """Messages of a subscription, for as long as the program takes them."""

    def __init__(
        self,
        make: Callable[[AsyncConsumer], ConsumerSession],
        on_close: Callable[[ConsumerSession], object],
    ) -> None:
        self.session = self._session = make(self)
        self._on_close = on_close

    async def __aenter__(self) -> Self:
        try:
            await self._session.open()
        except BaseException:
            await self.close()
            raise
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        if (done := self._session.take_handled()) is not None:
            settling = self._settle_received(done, ACK, None)
            if self._session.guarantee == Guarantee.EXACTLY_ONCE:
                await settling
        return self._session.take() or await self._session.next()

    async def flush(self) -> None:
        """Wait until everything that was settled so far is stored."""
        await self._session.flush()

    async def close(self) -> None:
        """Store what was settled, return everything else, and disconnect."""
        self._on_close(self._session)
        await self._session.close()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            give_up_current(self._session, error)
        await self.close()

    # ------------------------------------------------------------------ asyncio's side of a session

    def call_soon(self, call: Callable[[], None]) -> None:
        call()

    def _settle_received(self, message: ReceivedMessage, kind: Kind, wait: bool | None) -> Settling:
        self._session.settle(message, kind)
        return Settling(self._session, message, wait is True)


def give_up_current(session: ConsumerSession, error: BaseException) -> None:
    """An error leaves the program's block: the message in hand is nacked with its text."""
    message = session.take_current()
    if message is not None and session.guarantee != Guarantee.AT_MOST_ONCE:
        session.settle(message, failure_kind(error))


async def settle_by_default(session: ConsumerSession, message: ReceivedMessage) -> None:
    """Wait until a settlement is stored. One that came too late ends nobody's loop."""
    with contextlib.suppress(StaleReceipt):  # it is counted, and ``on_stale`` knows
        await session.confirm(message)
