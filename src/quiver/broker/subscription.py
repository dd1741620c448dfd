"""A subscription at work: consumers share its messages, from all its partitions.

A receive takes what is ready, partition by partition in turn, or waits for something to become so.
Those who wait are served in the order in which they came, and each message that arrives wakes one of
them, not all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

import msgspec
from pyroaring import BitMap64

from quiver.broker.delivery.machine import Depth
from quiver.broker.inbox import Inbox, Portion
from quiver.broker.lease_token import LeaseToken, TokenSigner
from quiver.broker.subscription_catalog import SubscriptionRecord
from quiver.errors import InvalidReceipt, InvalidRequest, Overloaded
from quiver.model.clock import Clock
from quiver.model.subscription import RECEIVE_MAX, VISIBILITY_S_MAX

WAIT_S_MAX = 20.0
WAITERS_MAX = 10_000


Change = Callable[[Inbox, int, BitMap64], tuple[BitMap64, asyncio.Future[None] | None]]


class Settlement(msgspec.Struct, frozen=True):
    """Messages of one lease to settle."""

    token: bytes
    offsets: BitMap64


class Subscription:
    def __init__(self, record: SubscriptionRecord, signer: TokenSigner, clock: Clock) -> None:
        self.record = record
        self.inboxes: dict[tuple[int, int], Inbox] = {}
        self.topics_version = -1
        self._signer = signer
        self._clock = clock
        self._order: deque[Inbox] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()

    def alter(self, record: SubscriptionRecord) -> None:
        """It has other settings, perhaps other topics: whoever uses it next brings it up to date."""
        self.record = record
        self.topics_version = -1
        self.notify_all()

    def replace(self, inboxes: dict[tuple[int, int], Inbox], topics_version: int) -> None:
        """From now on these are its partitions."""
        self.topics_version = topics_version
        if inboxes != self.inboxes:
            self.inboxes = inboxes
            self._order = deque(inboxes.values())
            self.notify()

    @property
    def depth(self) -> Depth:
        depths = [msgspec.structs.astuple(box.machine.depth) for box in self.inboxes.values()]
        return Depth(*map(sum, zip(*depths, strict=True))) if depths else Depth(0, 0, 0, 0, 0)

    @property
    def unseen(self) -> int:
        """Messages that are stored and have not been looked at."""
        boxes = self.inboxes.values()
        return sum(box.state.data.next_offset - box.machine.observed_to for box in boxes)

    # ------------------------------------------------------------------ receiving

    async def receive(
        self, limit: int, *, bytes_max: int, consumer: str, visibility_s: float | None
    ) -> list[Portion]:
        """Up to ``limit`` messages, leased to the consumer; none if nothing is ready."""
        if not 1 <= limit <= RECEIVE_MAX:
            raise InvalidRequest(f"a receive asks for 1 to {RECEIVE_MAX:,} messages, not {limit:,}")
        visibility_us = None if visibility_s is None else _visibility_us(visibility_s)
        portions: list[Portion] = []
        try:
            await self._take(portions, limit, max(1, bytes_max), consumer, visibility_us)
        except BaseException:
            self.put_back(portions)
            raise
        finally:
            if self._waiters and (self._has_ready() or self._lapses_soon(portions)):
                self.notify()
        return portions

    def put_back(self, portions: Iterable[Portion]) -> None:
        """What was received and reached no consumer is ready again at once."""
        for portion in portions:
            inbox = self.inboxes.get((portion.topic_number, portion.partition))
            if inbox is not None:
                inbox.put_back(portion.taken.lease_id, portion.taken.offsets)
        self.notify()

    async def wait(self, seconds: float) -> None:
        """Wait until something may be ready, in line with all who wait, or the time is over."""
        if self._has_ready():
            return  # since the caller looked
        if len(self._waiters) >= WAITERS_MAX:
            raise Overloaded(f"{WAITERS_MAX:,} receives wait on {self.record.name!r} already")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        pause = min(seconds, self._until_next_event())
        timer = asyncio.ensure_future(self._clock.sleep(pause))
        try:
            await asyncio.wait([waiter, timer], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if waiter.done():
                self.notify()  # another one: this one will not look
            raise
        finally:
            timer.cancel()
            if not waiter.done():
                waiter.cancel()
                self._waiters.remove(waiter)

    async def _take(
        self,
        portions: list[Portion],
        limit: int,
        bytes_max: int,
        consumer: str,
        visibility_us: int | None,
    ) -> None:
        order = self._order
        for _ in range(len(order)):
            inbox = order[0]
            order.rotate(-1)
            portion = await inbox.take(limit, bytes_max, consumer, visibility_us)
            if portion is not None:
                portions.append(portion)
                limit -= len(portion.taken.offsets)
                bytes_max -= sum(entry.size() for entry in portion.entries)
                if limit <= 0 or bytes_max <= 0:
                    break

    def notify(self) -> None:
        """Something may be ready: wake the one who has waited longest."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def notify_all(self) -> None:
        """Nothing is as it was: whoever waits is to look again."""
        for _ in range(len(self._waiters)):
            self.notify()

    def tick(self) -> None:
        """Do what is due, also for those who went to wait before it was known."""
        now = self._clock.time_us()
        for inbox in self._order:
            event = inbox.machine.next_event()
            if inbox.is_open and (inbox.machine.condemned or (event is not None and event <= now)):
                inbox.tick()
        if self._waiters and self._has_ready():
            self.notify()

    def _until_next_event(self) -> float:
        now = self._clock.time_us()
        events = [box.machine.next_event() for box in self._order]
        soonest = min((event for event in events if event is not None), default=None)
        if soonest is None:
            return WAIT_S_MAX
        return min(WAIT_S_MAX, max(0.001, (soonest - now) / 1e6))

    def _has_ready(self) -> bool:
        return any(box.machine.ready_count for box in self._order if box.is_open)

    def _lapses_soon(self, portions: list[Portion]) -> bool:
        """Whether those who wait might sleep through the end of these leases."""
        soon = self._clock.time_us() + WAIT_S_MAX * 1e6
        return any(portion.taken.deadline < soon for portion in portions)

    # ------------------------------------------------------------------ settling

    async def ack(self, settlements: Iterable[Settlement]) -> list[Settlement]:
        """Acknowledge messages, durably; those whose lease had ended."""
        return await self._settle(
            settlements, lambda inbox, lease_id, offsets: inbox.ack(lease_id, offsets)
        )

    async def nack(
        self, settlements: Iterable[Settlement], *, delay_s: float | None, error: str | None
    ) -> list[Settlement]:
        """Give messages back to be tried again; those whose lease had ended."""
        delay_us = None if delay_s is None else _visibility_us(delay_s)
        stale = await self._settle(
            settlements,
            lambda inbox, lease_id, offsets: inbox.nack(lease_id, offsets, delay_us, error),
        )
        self.notify()
        return stale

    async def extend(
        self, settlements: Iterable[Settlement], *, visibility_s: float
    ) -> list[Settlement]:
        """Hold messages for longer, from now on; those whose lease had ended."""
        visibility_us = _visibility_us(visibility_s)
        return await self._settle(
            settlements,
            lambda inbox, lease_id, offsets: inbox.extend(lease_id, offsets, visibility_us),
        )

    async def _settle(self, settlements: Iterable[Settlement], change: Change) -> list[Settlement]:
        stale: list[Settlement] = []
        stored: set[asyncio.Future[None]] = set()
        for settlement, token, inbox in [self._find(one) for one in settlements]:
            if inbox is None:
                stale.append(settlement)
                continue
            held, durable = change(inbox, token.lease_id, settlement.offsets)
            if durable is not None:
                stored.add(durable)
            if len(held) < len(settlement.offsets):
                stale.append(Settlement(settlement.token, settlement.offsets - held))
        for durable in stored:
            await asyncio.shield(durable)  # others wait for it too
        return stale

    def _find(self, settlement: Settlement) -> tuple[Settlement, LeaseToken, Inbox | None]:
        token = self._signer.verify(settlement.token)
        if token.subscription != self.record.number:
            raise InvalidReceipt(f"the receipt is not of {self.record.name!r}")
        return settlement, token, self.inboxes.get((token.topic, token.partition))

    def token(self, portion: Portion) -> bytes:
        """What the consumer shows to settle this portion."""
        return self._signer.sign(
            LeaseToken(
                self.record.number,
                portion.topic_number,
                portion.partition,
                portion.taken.lease_id,
            )
        )


def _visibility_us(seconds: float) -> int:
    if not 0 <= seconds <= VISIBILITY_S_MAX:
        raise InvalidRequest(f"a visibility is 0 s to 12 h, not {seconds:,} s")
    return round(seconds * 1_000_000)
