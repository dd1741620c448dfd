"""The delivery of one partition to consumers with a session: push, start, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
from pyroaring import BitMap64

from quiver.broker.delivery.machine.machine import DeliveryMachine, Taken
from quiver.broker.delivery.machine.records import AnyRecord
from quiver.broker.delivery.machine.session_view import SessionView
from quiver.metrics.traffic import SubscriptionCounts
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds
from quiver.model.subscription import Guarantee

Stored = asyncio.Future[None]
Reserved = tuple[Taken, list[StoredBatch], int]
"""What was chosen, its messages, and how many bytes they have."""


class Commit(Protocol):
    def __call__(self, records: list[AnyRecord], *, at_leisure: bool = False) -> Stored | None: ...


class Partition(Protocol):
    """What this needs of the partition's delivery."""

    @property
    def machine(self) -> DeliveryMachine: ...

    async def prepare(self, limit: int) -> bool:
        """Learn of enough messages; whether the partition can be delivered from."""

    async def fetch(
        self, offsets: BitMap64, bytes_max: int
    ) -> tuple[list[StoredBatch], BitMap64, BitMap64]: ...


class SessionDelivery:
    def __init__(
        self,
        partition: Partition,
        commit: Commit,
        clock: Clock,
        lease_ids: Iterator[int],
        counts: SubscriptionCounts,
        count_time: Callable[[BitMap64], None],
    ) -> None:
        self.view = SessionView(partition.machine.state)
        self._partition = partition
        self._machine = partition.machine
        self._commit = commit
        self._clock = clock
        self._lease_ids = lease_ids
        self._counts = counts
        self._count_time = count_time

    @property
    def _guarantee(self) -> Guarantee:
        return self._machine.state.settings.guarantee

    async def reserve(
        self, limit: int, bytes_max: int, consumer: str, has_suspect: Callable[[], bool]
    ) -> Reserved | None:
        """Choose up to ``limit`` messages to push to a consumer, and read them.

        Waits for nothing if the messages are in memory. ``has_suspect``: whether the consumer has
        one already, of whichever partition.
        """
        if not await self._partition.prepare(limit):
            return None
        taken, records = self._machine.reserve(
            self._clock.time_us(),
            limit=limit,
            lease_id=next(self._lease_ids),
            consumer=consumer,
            may_be_suspect=not (self.view.has_suspects and has_suspect()),
        )
        self._commit(records, at_leisure=True)
        if taken is None:
            return None
        try:
            entries, kept, left = await self._partition.fetch(taken.offsets, bytes_max)
        except BaseException:
            self.unreserve(taken.lease_id, taken.offsets)
            raise
        if left:
            self.unreserve(taken.lease_id, left)
        if not kept:
            return None
        size = sum([entry.size() for entry in entries])
        self._counts.delivered_bytes += size
        return msgspec.structs.replace(taken, offsets=kept), entries, size

    def start(
        self, lease_id: int, offsets: BitMap64, consumer: str, visibility_us: int
    ) -> tuple[BitMap64, Stored | None]:
        """A program gets these; which of them were reserved, and when it may have them.

        ``None`` is now: unless the guarantee asks for it, nobody waits for the record.
        """
        held, records = self._machine.start(
            lease_id, offsets, self._clock.time_us(), consumer=consumer, visibility_us=visibility_us
        )
        waits = self._guarantee is not Guarantee.AT_LEAST_ONCE
        stored = self._commit(records, at_leisure=not waits)
        self._counts.delivered += len(held)
        for count, part in self._machine.view.deliveries_of(held).items() if held else ():
            self._counts.redelivered += len(part) if count > 1 else 0
        if self._guarantee is Guarantee.AT_MOST_ONCE:
            self._count_time(held)
        return held, stored if waits else None

    def unreserve(self, lease_id: int, offsets: BitMap64) -> None:
        """The consumer has not started these and will not."""
        self._commit(self._machine.unreserve(lease_id, offsets))

    def end(self, lease_id: int, *, is_silent: bool, reason: str) -> None:
        """The consumer of this lease is gone: what it had is ready again at once."""
        now = self._clock.time_us()
        self._commit(self._machine.end_session(lease_id, now, is_silent=is_silent, reason=reason))

    def keep_alive(
        self, lease_id: int, offsets: BitMap64, visibility_us: int, processing_us: int
    ) -> bool:
        """The consumer works on these: they stay leased, up to the longest time allowed.

        Whether the lease holds some of them.
        """
        now = self._clock.time_us()
        parts = [part for part in self.view.lease(lease_id) if part.offsets.intersect(offsets)]
        due = BitMap64()
        for part in parts:
            if part.deadline - now < visibility_us * 2 // 3 and now < part.granted + processing_us:
                due |= part.offsets & offsets
        if due:
            deadline = Microseconds(now + visibility_us)
            self._commit(self._machine.extend(lease_id, due, deadline)[1], at_leisure=True)
        return bool(parts)

    def cut(self, grace_us: int, *, may_shorten: bool) -> None:
        """Leases of sessions that were with another node, or another run of this one, end soon."""
        deadline = Microseconds(self._clock.time_us() + grace_us)
        records = self._machine.cut_sessions(deadline, may_shorten=may_shorten)
        self._commit(records, at_leisure=True)
