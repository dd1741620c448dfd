"""The consumers with a session on a subscription: messages are pushed to them as they become ready.

Ready messages are shared among those that have room, in turn. A push costs no task while the messages
are in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

import structlog

from quiver.aio import TaskSet, report_unexpected, run_eagerly
from quiver.broker.delivery.lease_token import LeaseToken
from quiver.broker.delivery.partition_delivery import PartitionDelivery, Portion
from quiver.broker.group.coordinator import GroupCoordinator
from quiver.broker.subscription.catalog import SubscriptionRecord
from quiver.broker.subscription.consumer import (
    COUNT_S_MIN,
    Connection,
    Consumer,
    ConsumerTerms,
    SessionEnd,
)
from quiver.broker.subscription.settlement import Settlement, visibility_us_of
from quiver.errors import ConsumerSilent, Overloaded, QuiverError
from quiver.model.clock import Clock
from quiver.model.subscription import SubscriptionSettings

SESSIONS_MAX = 10_000
_PUSH_MAX = 1000
"""Messages in one push: the consumer begins with the first while the next are on their way."""
_PUSH_BYTES_MAX = 1 << 20
_TICK_US = 1_000_000
"""How often ``tick`` is called."""
_PAUSE_S_MIN = 0.001

logger = structlog.get_logger()


class Host(Protocol):
    """The subscription that the sessions are of."""

    record: SubscriptionRecord
    membership: GroupCoordinator | None
    is_resting: bool

    def notify(self) -> None:
        """Something may be ready."""


class ConsumerSessions:
    """``find`` reads a lease; ``may_take`` says which partitions are for a consumer."""

    def __init__(
        self,
        subscription: Host,
        clock: Clock,
        find: Callable[[bytes], tuple[LeaseToken, PartitionDelivery | None]],
        may_take: Callable[
            [str | None, Collection[str] | None], Callable[[PartitionDelivery], bool]
        ],
    ) -> None:
        self._host = subscription
        self._clock = clock
        self._find = find
        self._may_take = may_take
        self._consumers: dict[Consumer, None] = {}
        """In the order in which they are served."""
        self._order: deque[PartitionDelivery] = deque()
        self._tasks = TaskSet()
        self._is_held_up = False
        """Whether a consumer gets nothing before it settles something."""
        self._is_pushing = False
        self._push_again = False
        self._waking: asyncio.Task[None] | None = None
        self._waking_at = 0

    def __iter__(self) -> Iterator[Consumer]:
        return iter(list(self._consumers))

    def __len__(self) -> int:
        return len(self._consumers)

    def alter(self, settings: SubscriptionSettings) -> None:
        """The subscription has other settings."""
        for consumer in self._consumers:
            consumer.settings = settings

    def replace(self, deliveries: Iterable[PartitionDelivery]) -> None:
        """From now on these are the partitions to push from."""
        self._order = deque(deliveries)

    # ------------------------------------------------------------------ from the first to the last

    def open(self, terms: ConsumerTerms, connection: Connection) -> Consumer:
        """A consumer to which messages are pushed from now on, as far as its window goes."""
        record, membership = self._host.record, self._host.membership
        if terms.visibility_us is not None:
            visibility_us_of(terms.visibility_us / 1e6)
        if len(self._consumers) >= SESSIONS_MAX:
            raise Overloaded(
                f"{SESSIONS_MAX:,} consumers already read {record.name!r}, the most allowed"
            )
        if membership is not None and terms.partitions is None:
            membership.seen(terms.name)
        consumer = Consumer(terms, record.settings, self._clock, connection)
        self._consumers[consumer] = None
        self._host.is_resting = False
        return consumer

    def start(
        self, consumer: Consumer, settlements: Iterable[Settlement]
    ) -> tuple[list[Settlement], list[asyncio.Future[None]]]:
        """A program gets these; those it may not have, and what has to be stored before it may."""
        lost: list[Settlement] = []
        stored: set[asyncio.Future[None]] = set()
        for one in settlements:
            token, delivery = self._find(one.token)
            held, durable = consumer.start(delivery, token.lease_id, one.offsets)
            if durable is not None:
                stored.add(durable)
            if len(held) < len(one.offsets):
                lost.append(Settlement(one.token, one.offsets - held))
        return lost, list(stored)

    def keep(self, consumer: Consumer, settlements: Iterable[Settlement]) -> None:
        """The consumer works on these, those of them that this node has."""
        for one in settlements:
            token, delivery = self._find(one.token)
            if delivery is not None:
                consumer.keep(delivery, token.lease_id, one.offsets)

    def release(self, consumer: Consumer, settlements: Iterable[Settlement]) -> None:
        """The consumer returns what it has not started."""
        for one in settlements:
            token, delivery = self._find(one.token)
            consumer.release(delivery, token.lease_id, one.offsets)

    def close(self, consumer: Consumer, how: SessionEnd) -> None:
        """The session is over: what the consumer had is ready again, unless it is to keep it."""
        if consumer not in self._consumers:
            return
        del self._consumers[consumer]
        consumer.end(how)
        is_last = all(other.name != consumer.name for other in self._consumers)
        is_gone = how is SessionEnd.CLOSED or (
            how is SessionEnd.SILENT and not self._host.record.settings.trusts_silence
        )
        if self._host.membership is not None and is_last and is_gone:
            self._host.membership.leave(consumer.name)
        if self._waking is not None and not self._consumers:
            self._waking.cancel()
        self._host.notify()

    def end_all(self, error: QuiverError) -> None:
        """End every session from this side."""
        for consumer in list(self._consumers):
            self._end(consumer, error)

    def _end(self, consumer: Consumer, error: QuiverError) -> None:
        self.close(consumer, SessionEnd.SILENT)
        consumer.connection.ended(error)

    def tick(self) -> None:
        """Do what is due: who fell silent is taken for dead."""
        for consumer in list(self._consumers):
            if consumer.is_silent:
                self._end(consumer, ConsumerSilent())
            else:
                consumer.tidy()
                consumer.connection.tick()
        self._wake_when_due()

    # ------------------------------------------------------------------ pushing

    def push(self) -> None:
        """Something may be ready, or somebody has room: push what there is."""
        if self._is_pushing:
            self._push_again = True
            return
        self._is_pushing = True
        run_eagerly(self._push(), self._tasks.start)

    async def _push(self) -> None:
        try:
            self._push_again = True
            while self._push_again:
                self._push_again = False
                while await self._push_round():
                    pass
            self._wake_when_due()
        except QuiverError as error:
            logger.warning("push failed", subscription=self._host.record.name, code=error.code)
        except Exception as error:
            report_unexpected("push failed", error)
        finally:
            self._is_pushing = False

    async def _push_round(self) -> bool:
        """Give every consumer with room its share; whether anybody got something."""
        self._is_held_up = False
        waiting = self._waiting_count() if self._consumers else 0
        if not waiting:
            return False
        share = min(_PUSH_MAX, -(-waiting // len(self._consumers)))
        pushed = False
        for consumer in list(self._consumers):
            if not (room := consumer.room):
                self._is_held_up = self._is_held_up or consumer.is_full
                continue
            portions = await self._reserve(consumer, min(share, room))
            if portions and consumer in self._consumers:
                pushed = True
                del self._consumers[consumer]
                self._consumers[consumer] = None
                consumer.connection.deliver(portions)
                if not self._waiting_count():
                    break
        return pushed

    def _waiting_count(self) -> int:
        """How many messages could be pushed, as far as that is known without a look at them."""
        return sum(
            delivery.view.ready_count
            + max(0, delivery.state.data.next_offset - delivery.view.observed_to)
            for delivery in self._order
            if delivery.is_open
        )

    async def _reserve(self, consumer: Consumer, limit: int) -> list[Portion]:
        """Up to ``limit`` messages for one consumer, from the partitions in turn."""
        may_take = self._may_take(consumer.name, consumer.partitions)
        portions: list[Portion] = []
        bytes_max = min(_PUSH_BYTES_MAX, consumer.room_bytes)
        order = self._order
        for _ in range(len(order)):
            delivery = order[0]
            order.rotate(-1)
            if not may_take(delivery):
                continue
            reserved = await delivery.sessions.reserve(
                limit, bytes_max, consumer.name, lambda: self._has_suspect(consumer)
            )
            if reserved is None:
                continue
            taken, entries, size = reserved
            if consumer not in self._consumers:  # it has ended meanwhile
                delivery.sessions.unreserve(taken.lease_id, taken.offsets)
                break
            portion = Portion(
                delivery.topic, delivery.topic_number, delivery.partition, taken, entries, size
            )
            consumer.pushed(delivery, portion)
            portions.append(portion)
            limit -= len(portion.taken.offsets)
            bytes_max -= portion.size
            if limit <= 0 or bytes_max <= 0:
                break
        return portions

    def _has_suspect(self, consumer: Consumer) -> bool:
        """Whether the consumer has a suspect, or another one that would end with it."""
        client = consumer.connection.client
        names = {one.name for one in self._consumers if one.connection.client is client}
        views = [delivery.sessions.view for delivery in self._order]
        return any(view.has_suspect(name) for view in views if view.has_suspects for name in names)

    # ------------------------------------------------------------------ later

    def _wake_when_due(self) -> None:
        """Push when the next delay ends, if that is before the next tick."""
        now = self._clock.time_us()
        moments = [box.view.next_delayed for box in self._order if self._consumers and box.is_open]
        due = min((moment for moment in moments if moment is not None), default=None)
        if due is not None and due <= now + _TICK_US:
            self._wake_at(due, now)

    def settled(self) -> None:
        """A consumer that had too much in hand may get more, once that was counted again."""
        if self._is_held_up:
            now = self._clock.time_us()
            self._wake_at(now + round(COUNT_S_MIN * 1e6), now)

    def _wake_at(self, due: int, now: int) -> None:
        if self._waking is not None and not self._waking.done():
            if self._waking_at <= due:
                return
            self._waking.cancel()
        self._waking_at = due
        self._waking = self._tasks.start(self._wake_after((due - now) / 1e6))

    async def _wake_after(self, seconds: float) -> None:
        await self._clock.sleep(max(_PAUSE_S_MIN, seconds))
        self._waking = None
        for delivery in list(self._order):
            if delivery.is_open:
                delivery.tick()
        self._host.notify()
