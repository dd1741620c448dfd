"""Handles each message once, even if it is delivered more than once.

``quiver.idempotent("handled.db")`` remembers which messages were handled, and a handler's own writes can
share that transaction. After a crash before the commit nothing is stored and the message is handled when
it is delivered again; after the commit it is not handled again. Side effects elsewhere (a call to a bank)
cannot be part of that transaction: pass the message's key to the other side, so that it can detect a
duplicate.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from quiver.aio import finish
from quiver.client.api.settings import duration_s
from quiver.client.idempotent.open_store import open_store
from quiver.client.idempotent.store import HandledStore, HandledTransaction
from quiver.errors import InvalidRequest
from quiver.model.clock import Clock, SystemClock
from quiver.model.message import Message
from quiver.model.units import Duration

_YEAR_S = 365 * 86_400.0


class _HandledMeanwhile(BaseException):
    """Another consumer was quicker: leaves the ``with`` block, and goes no further.

    Not an error, so that a handler that catches all errors does not go on with it.
    """


def idempotent(
    store: str | os.PathLike[str] | HandledStore,
    *,
    key: Callable[[Any], str | int] | None = None,
    keep: Duration = "14d",
    clock: Clock | None = None,
) -> Idempotent:
    """Handle each message once: remember handled messages in ``store``.

    ``store`` is the path of an SQLite file, which the processes of one machine share, or the URL of a
    database that several machines share (``postgresql://…``, ``redis://…``), or your own store.

    A message is identified by its ``dedup_id`` within its topic, or else by its id, also after it was
    a dead letter and was redriven; ``key`` computes another identity, as
    ``key=lambda message: message.json()["payment"]``. Subscriptions are independent. A message is
    remembered for ``keep``, which must be longer than any redelivery takes.
    """
    kept = open_store(store) if isinstance(store, str | os.PathLike) else store
    return Idempotent(kept, key=key, keep_s=duration_s("keep", keep, 1, 100 * _YEAR_S), clock=clock)


class Idempotent:
    """The result of ``quiver.idempotent``: a decorator for handlers, and a context manager.

    ``@once`` makes a handler skip messages that were handled before. A second argument of the handler
    gets the ``Work``. ``with once(message) as work`` (or ``async with``) does the same without a
    function: do the work if ``work.is_new``.
    """

    def __init__(
        self,
        store: HandledStore,
        *,
        key: Callable[[Any], str | int] | None,
        keep_s: float,
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self._key = key
        self._keep_us = round(keep_s * 1_000_000)
        self._clock = clock or SystemClock()
        # Of the coroutines of a program one at a time waits for the store, in a thread.
        self.turn = asyncio.Lock()

    def __call__(self, target: Any) -> Any:
        """A handler made idempotent, or the work on a message."""
        if isinstance(target, Message):
            return Work(self, target)
        if callable(target):
            return self._decorated(target)
        raise InvalidRequest("call it with a message, or decorate a function that takes one")

    def key_of(self, message: Message) -> str:
        """The key that identifies the message within its subscription."""
        if self._key is not None:
            key = self._key(message)
            if not isinstance(key, str | int) or key == "":
                raise InvalidRequest(
                    f"the key of a message must be a text or a number, not {key!r}"
                )
            return str(key)
        return message.identity

    def is_handled(self, message: Message) -> bool:
        """Whether the message was handled before."""
        return self.store.has(_scope(message), self.key_of(message))

    def begin(self, message: Message) -> HandledTransaction | None:
        """A transaction that remembers the message, or ``None`` if it was handled before."""
        now_us = self._clock.time_us()
        return self.store.begin(
            _scope(message), self.key_of(message), now_us, now_us - self._keep_us
        )

    def _decorated(self, handler: Callable[..., Any]) -> Callable[[Any], Any]:
        wants_work = _arguments_needed(handler) > 1

        @functools.wraps(handler)
        def handle(message: Any) -> Any:
            with self(message) as work:
                if work.is_new:
                    return handler(message, work) if wants_work else handler(message)
            return None

        @functools.wraps(handler)
        async def handle_async(message: Any) -> Any:
            async with self(message) as work:
                if work.is_new:
                    return await (handler(message, work) if wants_work else handler(message))
            return None

        return handle_async if inspect.iscoroutinefunction(handler) else handle

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Work:
    """The handling of one message. The message is remembered when the block ends without an error."""

    def __init__(self, once: Idempotent, message: Message) -> None:
        self._once = once
        self._message = message
        self._transaction: HandledTransaction | None = None
        self._is_async = False
        self.key = once.key_of(message)
        self.is_new = False
        """Whether the message was not handled before."""

    def begin(self) -> Any:
        """Begin the transaction and return its connection, for writes that must happen exactly once.

        In an ``async with`` block, await it. From here to the end of the block nobody else can write
        to the store, so do slow work before. If another consumer has handled the message meanwhile,
        the block ends here. The block commits or rolls back; do not do it yourself.
        """
        return self._begin_async() if self._is_async else self._connection(self._began())

    def _began(self) -> HandledTransaction | None:
        if not self.is_new:
            raise InvalidRequest("this message was handled before: check work.is_new first")
        return self._transaction or self._once.begin(self._message)

    def _connection(self, transaction: HandledTransaction | None) -> Any:
        self._transaction = transaction
        if transaction is None:
            self.is_new = False
            raise _HandledMeanwhile
        return transaction.connection

    async def _begin_async(self) -> Any:
        if self._transaction is None:
            await self._once.turn.acquire()
            try:
                self._connection(await _in_thread(self._began, self._abandon))
            except BaseException:
                self._once.turn.release()
                raise
        return self._connection(self._transaction)

    # ------------------------------------------------------------------ the block

    def __enter__(self) -> Self:
        self.is_new = not self._once.is_handled(self._message)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None and self.is_new:
            transaction = self._began()
            if transaction is not None:
                transaction.commit()
        elif self._transaction is not None:
            self._transaction.roll_back()
        return isinstance(error, _HandledMeanwhile)

    async def __aenter__(self) -> Self:
        self._is_async = True
        self.is_new = not await asyncio.to_thread(self._once.is_handled, self._message)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, _HandledMeanwhile):
            return True
        if error is None and self.is_new and self._transaction is None:
            try:
                await self._begin_async()
            except _HandledMeanwhile:
                return False
        if self._transaction is not None:
            ended = self._transaction.commit if error is None else self._transaction.roll_back
            try:
                await _in_thread(ended)
            finally:
                self._once.turn.release()
        return False

    @staticmethod
    def _abandon(transaction: HandledTransaction | None) -> None:
        if transaction is not None:
            transaction.roll_back()


async def _in_thread(call: Callable[[], Any], abandon: Callable[[Any], None] | None = None) -> Any:
    """The call in a thread, seen through to its end even if whoever waits is cancelled.

    ``abandon`` gets the result that nobody is there to take any more.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await finish(running)
    except asyncio.CancelledError:
        if not running.cancelled() and running.exception() is None and abandon is not None:
            abandon(running.result())
        raise


def _arguments_needed(handler: Callable[..., Any]) -> int:
    """How many arguments a call must have by place."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        one.kind in by_place and one.default is inspect.Parameter.empty
        for one in inspect.signature(handler).parameters.values()
    )


def _scope(message: Message) -> str:
    """Whose memory it is: the subscription's, or of a message that was only read, nobody's."""
    return str(getattr(message, "subscription", ""))
