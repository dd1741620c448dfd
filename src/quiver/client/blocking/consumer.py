"""A consumer for programs without an event loop; see ``AsyncConsumer``."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from quiver.client.blocking.loop_thread import LoopThread
from quiver.client.consumer.consumer import give_up_current, settle_by_default
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.session.session import ConsumerSession
from quiver.client.consumer.settlement_kind import ACK, Kind
from quiver.model.subscription import Guarantee


class Consumer:
    """Messages of a subscription, for as long as the program takes them. Belongs to one thread."""

    def __init__(
        self,
        make: Callable[[Consumer], ConsumerSession],
        on_close: Callable[[ConsumerSession], object],
        thread: LoopThread,
    ) -> None:
        self._thread = thread
        self._on_close = on_close
        self.session = self._session = make(self)
        self._is_open = False

    def __enter__(self) -> Self:
        self._is_open = True
        try:
            self._thread.run(self._session.open)
        except BaseException:
            self.close()
            raise
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        if (done := self._session.take_handled()) is not None:
            self._settle_received(done, ACK, None)
        return self._session.take() or self._thread.run(self._session.next)

    def flush(self) -> None:
        """Wait until everything that was settled so far is stored."""
        self._thread.run(self._session.flush)

    def close(self) -> None:
        """Store what was settled, return everything else, and disconnect."""
        if not self._is_open:
            return
        self._is_open = False
        self._on_close(self._session)
        if self._thread.is_running:
            self._thread.run(self._session.close)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            give_up_current(self._session, error)
        self.close()

    # ------------------------------------------------------------------ the thread's side of a session

    def call_soon(self, call: Callable[[], None]) -> None:
        self._thread.call_soon(call)

    def _settle_received(self, message: ReceivedMessage, kind: Kind, wait: bool | None) -> None:
        session = self._session
        session.settle(message, kind)
        if wait:
            self._thread.run(lambda: session.confirm(message))
        elif wait is None and session.guarantee == Guarantee.EXACTLY_ONCE:
            self._thread.run(lambda: settle_by_default(session, message))
