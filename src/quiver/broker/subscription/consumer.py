"""A consumer's session with a subscription, as one node sees it: what it may get and what it has.

The consumer has a window: so many messages may be pushed to it before it starts them. When it starts a
message, a program gets it: that is the delivery, and the lease begins. While the session lives its
leases do too. When it ends, everything it has is ready again at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from enum import Enum
from typing import Protocol

import msgspec
from pyroaring import BitMap64

from quiver.broker.delivery.partition_delivery import PartitionDelivery, Portion
from quiver.errors import QuiverError
from quiver.model.clock import Clock
from quiver.model.subscription import SubscriptionSettings

WINDOW_MAX = 10_000
BYTES_MAX = 16 << 20
VISIBILITY_US_MIN = 1_000_000
"""A consumer is trusted for at least so long: it has to say something in that time."""
IN_HAND_MAX = 100_000
"""How many messages a consumer may have started and not settled before it gets no more."""
COUNT_S_MIN, _COUNT_SHARE = 0.01, 5
"""They are counted again after so long at least, and so many times as long as the count took."""
UNSETTLED = "the consumer ended without settling it"

Stored = asyncio.Future[None]


class SessionEnd(Enum):
    """How a session ended."""

    CLOSED = "closed"
    """The consumer said so."""
    SILENT = "silent"
    """Without a word: its process may have died of a message."""
    MOVED = "moved"
    """The consumer is there, and goes on with what it has at another node."""


class ConsumerTerms(msgspec.Struct, kw_only=True):
    """What a consumer asks for when it opens its session."""

    name: str
    window: int
    bytes_max: int = BYTES_MAX
    visibility_us: int | None = None
    partitions: Collection[str] | None = None
    """Of a group: what the consumer reads, if the group's coordinator is another node."""


class Connection(Protocol):
    """Where a consumer's messages go."""

    @property
    def client(self) -> object:
        """Whose connection it is: consumers of one client end together."""

    def room(self, wanted: int) -> int:
        """How many of so many messages the consumer may hold besides those that it has."""

    def deliver(self, portions: list[Portion]) -> None: ...

    def tick(self) -> None:
        """Called about once a second."""

    def ended(self, error: QuiverError) -> None:
        """The session is over, and this is why."""


class _Pushed(msgspec.Struct, eq=False):
    """One lease of the session."""

    delivery: PartitionDelivery
    unstarted: int
    message_bytes: float
    """How many bytes a message of it has, on average."""


class Consumer:
    """The subscription decides when something is pushed over its ``connection``."""

    def __init__(
        self,
        terms: ConsumerTerms,
        settings: SubscriptionSettings,
        clock: Clock,
        connection: Connection,
    ) -> None:
        self.name = terms.name
        self.partitions = terms.partitions
        self.connection = connection
        self.is_writable = True
        """Whether its connection takes more now."""
        self.window = min(terms.window, WINDOW_MAX)
        self.settings = settings
        self._bytes_max = min(terms.bytes_max, BYTES_MAX)
        self._visibility_us = terms.visibility_us
        self._clock = clock
        self._leases: dict[int, _Pushed] = {}
        self._unstarted = 0
        self._unstarted_bytes = 0.0
        self._in_hand = 0
        self._counted_again_at = 0.0
        self._heard = clock.monotonic()

    # ------------------------------------------------------------------ what it may get

    @property
    def room(self) -> int:
        """How many messages may be pushed to it now."""
        if not self.is_writable or self.is_full:
            return 0
        wanted = self.window - self._unstarted
        return self.connection.room(wanted) if wanted > 0 and self.room_bytes > 0 else 0

    @property
    def is_full(self) -> bool:
        """Whether it has so many in hand that it gets no more before it settles some."""
        if self._in_hand >= IN_HAND_MAX and self._clock.monotonic() >= self._counted_again_at:
            began = self._clock.monotonic()
            self.tidy()
            now = self._clock.monotonic()
            self._counted_again_at = now + max(COUNT_S_MIN, _COUNT_SHARE * (now - began))
        return self._in_hand >= IN_HAND_MAX

    @property
    def room_bytes(self) -> int:
        return int(self._bytes_max - self._unstarted_bytes)

    @property
    def visibility_us(self) -> int:
        """How long the consumer may be silent before its messages go to others."""
        given = self._visibility_us
        return max(VISIBILITY_US_MIN, self.settings.visibility_us if given is None else given)

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard of it for as long as it is trusted."""
        return (self._clock.monotonic() - self._heard) * 1e6 > self.visibility_us

    def pushed(self, delivery: PartitionDelivery, portion: Portion) -> None:
        """These are on their way to it."""
        count = len(portion.taken.offsets)
        self._leases[portion.taken.lease_id] = _Pushed(delivery, count, portion.size / count)
        self._unstarted += count
        self._unstarted_bytes += portion.size

    # ------------------------------------------------------------------ what it says

    def heard(self) -> None:
        """The consumer is there."""
        self._heard = self._clock.monotonic()

    def tidy(self) -> None:
        """Forget leases that hold nothing any more, and count what the others hold."""
        in_hand = 0
        for lease_id, pushed in list(self._leases.items()):
            parts = pushed.delivery.sessions.view.lease(lease_id) if pushed.delivery.is_open else []
            in_hand += sum(len(part.offsets) for part in parts)
            if not parts and (not pushed.unstarted or not pushed.delivery.is_open):
                self._count_started(pushed, pushed.unstarted)
                del self._leases[lease_id]
        self._in_hand = in_hand

    def start(
        self, delivery: PartitionDelivery | None, lease_id: int, offsets: BitMap64
    ) -> tuple[BitMap64, Stored | None]:
        """A program gets these; which of them it may have, and when, if not at once."""
        pushed = self._leases.get(lease_id)
        if pushed is not None:
            self._count_started(pushed, len(offsets))
        if delivery is None or not delivery.is_open:
            return BitMap64(), None
        held, stored = delivery.sessions.start(lease_id, offsets, self.name, self.visibility_us)
        self._in_hand += len(held)
        return held, stored

    def release(self, delivery: PartitionDelivery | None, lease_id: int, offsets: BitMap64) -> None:
        """The consumer has not started these and will not."""
        pushed = self._leases.get(lease_id)
        if pushed is not None:
            self._count_started(pushed, len(offsets))
        if delivery is not None and delivery.is_open:
            delivery.sessions.unreserve(lease_id, offsets)

    def keep(self, delivery: PartitionDelivery, lease_id: int, offsets: BitMap64) -> None:
        """The consumer works on these, be it since an earlier session: their leases go on."""
        if delivery.is_open and delivery.sessions.keep_alive(
            lease_id, offsets, self.visibility_us, self.settings.max_processing_us
        ):
            self._leases.setdefault(lease_id, _Pushed(delivery, 0, 0.0))

    def _count_started(self, pushed: _Pushed, count: int) -> None:
        count = min(count, pushed.unstarted)
        pushed.unstarted -= count
        self._unstarted -= count
        self._unstarted_bytes -= count * pushed.message_bytes

    # ------------------------------------------------------------------ the end

    def end(self, how: SessionEnd) -> None:
        """What was pushed to it is ready again. What it had started is too, and counts, unless it
        stays leased to the consumer."""
        self.window = 0
        leases, self._leases = self._leases, {}
        is_kept = how is SessionEnd.MOVED or (
            how is SessionEnd.SILENT and self.settings.trusts_silence
        )
        for lease_id, pushed in leases.items():
            sessions = pushed.delivery.sessions
            if not pushed.delivery.is_open:
                continue
            if is_kept:
                sessions.unreserve(lease_id, sessions.view.reserved(lease_id))
            else:
                is_silent = how is SessionEnd.SILENT
                sessions.end(lease_id, is_silent=is_silent, reason=UNSETTLED)
