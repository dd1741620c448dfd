"""The producers of a client's transactions, and the transactions that are open.

There is one producer for each transaction that is open at the same time, kept for the next. A name has
one producer, and so one open transaction in a client. Once a second, the nodes are told to keep messages
without a session that were acknowledged, or received since the transaction began: their leases do not end
while it is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Protocol

from quiver.client.transaction.coordinator import Coordinator
from quiver.client.transaction.received_leases import ReceivedLeases
from quiver.client.transaction.transaction_producer import MakeProducer, TransactionProducer
from quiver.errors import InvalidRequest, QuiverError, TransactionFenced
from quiver.protocol import Received

IDLE_MAX = 256
"""So many producers without a transaction are kept, and so many with a name."""
_FENCED_MAX = 10_000
HOLD_AFTER_S = 1.0


class OpenTransaction(Protocol):
    def tick(self) -> bool:
        """Keep the leases of what was acknowledged; whether the transaction is still open."""

    async def abort(self) -> None: ...


class TransactionProducers:
    """``take_idle``, ``opened``, ``received`` and ``tick_soon`` may be called from any thread,
    everything else on the event loop."""

    def __init__(
        self, coordinator: Coordinator, make: MakeProducer, leases: ReceivedLeases
    ) -> None:
        self.coordinator = coordinator
        self._make = make
        self._leases = leases
        self._lock = threading.Lock()
        self._idle: deque[TransactionProducer] = deque()
        self._named: dict[str, TransactionProducer] = {}
        self._taken_names: set[str] = set()
        self._fenced: dict[str, TransactionFenced] = {}
        self._open: dict[OpenTransaction, int] = {}
        """Each with its number, in the order in which they began."""
        self._numbers = count(1)
        self._newest = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_ticking = False

    def take_idle(self, name: str | None) -> TransactionProducer | None:
        """A producer that has no transaction. A name is taken, whether there is one or not."""
        if name is None:
            try:
                return self._idle.pop()
            except IndexError:
                return None
        with self._lock:
            if (fenced := self._fenced.get(name)) is not None:
                raise TransactionFenced(fenced.message, **fenced.details)
            if name in self._taken_names:
                raise InvalidRequest(
                    f"a transaction named {name!r} is open in this client: end it first"
                )
            self._taken_names.add(name)
            return self._named.pop(name, None)

    async def begin(self, name: str | None) -> TransactionProducer:
        """A producer, when there was none. The name is taken."""
        self._loop = asyncio.get_running_loop()
        try:
            begun = await self.coordinator.begin(name)
        except BaseException:
            self._taken_names.discard(name or "")
            raise
        return TransactionProducer(begun, name, self._make)

    def release(self, producer: TransactionProducer, *, is_clean: bool) -> None:
        """Its transaction has ended. ``is_clean``: in all partitions, and nothing is under way."""
        if is_clean and producer.has_next:
            producer.next()
            self._keep(producer)
        else:
            producer.close()
        if producer.name is not None:
            self._taken_names.discard(producer.name)

    def _keep(self, producer: TransactionProducer) -> None:
        if producer.name is None:
            self._idle.append(producer)
            if len(self._idle) > IDLE_MAX:
                self._idle.popleft().close()
            return
        with self._lock:
            self._named[producer.name] = producer
            oldest = next(iter(self._named)) if len(self._named) > IDLE_MAX else None
            dropped = None if oldest is None else self._named.pop(oldest)
        if dropped is not None:
            dropped.close()

    def fence(self, name: str, error: TransactionFenced) -> None:
        """Another client has the name: this one must not take it back."""
        with self._lock:
            self._fenced[name] = error
            if len(self._fenced) > _FENCED_MAX:
                del self._fenced[next(iter(self._fenced))]

    # ------------------------------------------------------------------ those that are open

    def opened(self, transaction: OpenTransaction) -> None:
        with self._lock:
            self._open[transaction] = self._newest = next(self._numbers)
            starts = not self._is_ticking and self._loop is not None
            self._is_ticking |= starts
        if starts:
            self._call_soon(self._tick_later)

    def ended(self, transaction: OpenTransaction) -> None:
        self._open.pop(transaction, None)

    def received(self, subscription: str, received: Received) -> None:
        """Messages without a session have come: they are kept while what is open now is open."""
        if self._open and self._leases.add(subscription, received, self._newest):
            self._call_soon(self._keep_leases)

    def tick_soon(self, transaction: OpenTransaction) -> None:
        """It has acknowledged what may not be leased until the next tick."""
        self._call_soon(transaction.tick)

    def _call_soon(self, call: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all with it
                self._loop.call_soon_threadsafe(call)

    def _tick_later(self) -> None:
        assert self._loop is not None, "it is known since the first transaction"
        self._timer = self._loop.call_later(HOLD_AFTER_S, self._tick)

    def _tick(self) -> None:
        for transaction in list(self._open):
            if not transaction.tick():
                self._open.pop(transaction, None)
        self._keep_leases()
        with self._lock:
            ticks = self._is_ticking = bool(self._open)
        if ticks:
            self._tick_later()

    def _keep_leases(self) -> None:
        with self._lock:
            oldest = min(self._open.values(), default=self._newest + 1)
        self._leases.keep(oldest)

    async def close(self) -> None:
        """Abort what is open, and stop everything."""
        for transaction in list(self._open):
            with contextlib.suppress(QuiverError):  # it has ended, or is being ended
                await transaction.abort()
        if self._timer is not None:
            self._timer.cancel()
        for producer in (*self._idle, *self._named.values()):
            producer.close()
        self._idle.clear()
        self._named.clear()
