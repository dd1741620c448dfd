"""Settlements of a session from the program's word until they are stored.

They are collected, sent together, and counted until the nodes confirm them. A settlement whose
connection is gone goes to any other node, which passes it on. What came too late is counted, logged and
given to ``on_stale``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol

from pyroaring import BitMap64

from quiver.aio import Signal, TaskSet, report_unexpected
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.session.in_hand import InHand
from quiver.client.consumer.session.leases import Leases, settlements_of
from quiver.client.consumer.session.node_stream import NodeStream, stale_of
from quiver.client.consumer.session.settlement_buffer import SettlementBuffer
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.consumer.settlement_kind import RETURN, Kind
from quiver.client.logger import logger
from quiver.client.transport.channel import Answer
from quiver.client.transport.cluster import Cluster
from quiver.errors import QuiverError, StaleReceipt, Unavailable
from quiver.model.clock import Clock
from quiver.model.receipt import receipt
from quiver.protocol import AnyRequest, Return, Settlement

_FLUSH_S = 0.005
"""How long a settlement waits for others."""
UNCONFIRMED_MAX = 100_000
"""How many settlements may be on their way before no more messages are started."""
_STALE_LOG_S = 10.0


class Observer(Protocol):
    """Who hears of settlements that failed."""

    def came_late(self, stale: list[Settlement]) -> None: ...

    def not_delivered(self, error: BaseException, request: AnyRequest | None) -> None: ...


class Settlements:
    """Add to ``buffer``, from any thread: ``call_soon`` gets from there into the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        terms: SessionTerms,
        in_hand: InHand,
        call_soon: Callable[[Callable[[], None]], None],
        observer: Observer | None = None,
    ) -> None:
        self._stale_count = 0
        self.buffer = SettlementBuffer(lambda: call_soon(self._send_later))
        self.tasks = TaskSet()
        self._cluster = cluster
        self._clock = clock
        self._terms = terms
        self._in_hand = in_hand
        self._observer = observer
        self._timer: asyncio.TimerHandle | None = None
        self._numbers = count()
        self._unconfirmed: dict[int, int] = {}
        """By request: how many messages it settles."""
        self._confirmations = Signal(clock)
        self._watched: dict[tuple[bytes, int], bool] = {}
        """Messages whose settlement somebody waits for, and whether it came too late."""
        self._flushing = 0
        """How many wait for what was settled: each of them is told what was lost."""
        self._lost: QuiverError | None = None
        """Why settlements could not be delivered, until somebody is told."""
        self._stale_logged = float("-inf")

    # ------------------------------------------------------------------ waiting

    @property
    def is_full(self) -> bool:
        """Whether so many are on their way that no more messages are started."""
        return sum(self._unconfirmed.values()) >= UNCONFIRMED_MAX

    async def until_some_confirmed(self) -> None:
        await self._confirmations.wait()

    async def until_confirmed(self) -> None:
        """Wait until all that was sent by now is confirmed, or lost."""
        sent = set(self._unconfirmed)
        while sent & self._unconfirmed.keys():
            await self._confirmations.wait()

    async def flush(self) -> None:
        """Wait until everything that was settled so far is stored; an error if that cannot be had."""
        self.send_buffered()
        self._flushing += 1
        try:
            await self.until_confirmed()
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

    async def store_all(self) -> None:
        """``flush`` for a session that ends: within the time of a call."""
        try:
            async with asyncio.timeout(self._cluster.timeout_s):
                await self.flush()
        except TimeoutError:
            late = Unavailable("the nodes did not answer in time: some settlements may be lost")
            self._not_delivered(late)
            raise late from None

    async def close(self) -> None:
        """Give up what is still on its way."""
        await self.tasks.cancel()

    # ------------------------------------------------------------------ sending

    def _send_later(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FLUSH_S, self.send_buffered)

    def send_buffered(self) -> None:
        """Send what was settled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.buffer:
            return
        for kind, leases in self.buffer.take().items():
            if kind.name != "extend":
                self._in_hand.forget(leases)
            self._send(leases, kind)

    def give_back(self, leases: Leases) -> None:
        """The program has not got these: they are ready again, and no delivery counts."""
        self._in_hand.forget(leases)
        self._send(leases, RETURN)

    def _send(self, leases: Leases, kind: Kind) -> None:
        """Send settlements to the nodes that pushed the messages, or else to any node."""
        by_stream: dict[NodeStream | None, Leases] = {}
        for lease, offsets in leases.items():
            by_stream.setdefault(self._in_hand.stream_of(lease), {})[lease] = offsets
        for stream, part in by_stream.items():
            request = kind.request(self._terms.subscription, settlements_of(part))
            number = next(self._numbers)
            self._unconfirmed[number] = sum(map(len, part.values()))
            if stream is None:
                self.tasks.start(self._send_anywhere(number, request))
            else:
                answer = stream.send(request)
                answer.add_done_callback(partial(self._confirmed, number, request))

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

    # ------------------------------------------------------------------ answers

    def _confirmed(self, number: int, request: AnyRequest, done: asyncio.Future[Answer]) -> None:
        error = Unavailable("the answer was given up") if done.cancelled() else done.exception()
        if isinstance(error, QuiverError) and error.retryable:
            self.tasks.start(self._send_anywhere(number, request))
            return
        if error is not None:
            self._not_delivered(error, request)
        else:
            self._note_stale(request, stale_of(done.result()))
        self._count_confirmed(number)

    def _count_confirmed(self, number: int) -> None:
        self._unconfirmed.pop(number, None)
        self._confirmations.wake()

    def _not_delivered(self, error: BaseException, request: AnyRequest | None = None) -> None:
        if isinstance(error, QuiverError):
            self._lost = error
        logger.warning(
            "settlements could not be delivered: the messages come again",
            subscription=self._terms.subscription,
            error=str(error),
        )
        if self._observer is not None:
            self._observer.not_delivered(error, request)

    def _note_stale(self, request: AnyRequest, stale: list[Settlement]) -> None:
        """Settlements came too late: the messages are with other consumers, or were."""
        if not stale or isinstance(request, Return):
            return
        late = [(one.lease, at) for one in stale for at in BitMap64.deserialize(one.offsets)]
        self._watched.update(dict.fromkeys(self._watched.keys() & late, True))
        self._report_stale([receipt(lease, offset) for lease, offset in late])
        if self._observer is not None:
            self._observer.came_late(stale)

    def _report_stale(self, receipts: list[str]) -> None:
        self._stale_count += len(receipts)
        now = self._clock.monotonic()
        if now - self._stale_logged > _STALE_LOG_S:
            self._stale_logged = now
            logger.warning(
                "messages were settled too late: others may have handled them too",
                subscription=self._terms.subscription,
                messages=self._stale_count,
            )
        if self._terms.on_stale is not None:
            try:
                self._terms.on_stale(receipts)
            except Exception as error:
                report_unexpected("on_stale failed", error)
