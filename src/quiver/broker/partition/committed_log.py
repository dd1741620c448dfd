"""A partition's log as its readers see it: up to the first transaction that is still open.

Entries follow each other without gaps. Those that no reader may see, markers and messages of aborted
transactions, are there too, and say that they are hidden. Without transactions a read costs one
comparison more than a read of the log.
"""

from __future__ import annotations

from msgspec.structs import replace

from quiver.aio import Signal, first_of
from quiver.broker.partition.producers.open_transactions import OpenTransactions
from quiver.errors import LogFailed, OffsetOutOfRange
from quiver.log.delivery_index import DeliverySpan
from quiver.log.log import Log
from quiver.log.retention import RetentionLimits
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.envelope import MARKER
from quiver.model.ids import Microseconds, Offset


class CommittedLog:
    def __init__(self, log: Log, transactions: OpenTransactions, clock: Clock) -> None:
        self._log = log
        self._transactions = transactions
        self._clock = clock
        self._shown = Signal()

    @property
    def growth(self) -> Signal:
        """Woken whenever there may be more to read: the end of a transaction grows the log too."""
        return self._log.growth

    @property
    def start_offset(self) -> Offset:
        return self._log.start_offset

    @property
    def stored_from(self) -> Offset:
        return self._log.stored_from

    @property
    def next_offset(self) -> Offset:
        """Everything before it can be read: no transaction is open there."""
        return self._transactions.stable_offset(self._log.next_offset)

    @property
    def end_offset(self) -> Offset:
        return self._log.next_offset

    @property
    def size(self) -> int:
        return self._log.size

    @property
    def failure(self) -> LogFailed | None:
        return self._log.failure

    # ------------------------------------------------------------------ entries

    def read_tail(self, offset: Offset, bytes_max: int) -> list[StoredBatch] | None:
        if offset == self.next_offset:
            return []
        entries = self._log.read_tail(offset, bytes_max)
        return None if entries is None else self._visible(entries)

    async def read(
        self, offset: Offset, bytes_max: int = 1 << 20, *, stored: bool = False
    ) -> list[StoredBatch]:
        """Entries from the one that holds ``offset`` on; empty at the end.

        The log is asked also where there is nothing to see: one that a former leader has refuses.
        """
        entries = await self._log.read(
            offset, bytes_max if offset < self.next_offset else 1, stored=stored
        )
        end = self.next_offset
        if end < offset <= self._log.next_offset:
            raise OffsetOutOfRange(
                f"offset {offset:,} cannot be read yet: a transaction is open from offset {end:,} on",
                first_offset=self.start_offset,
                next_offset=end,
            )
        return self._visible(entries)

    def _visible(self, entries: list[StoredBatch]) -> list[StoredBatch]:
        """Without what is not stable; what is hidden says so."""
        end, count = self.next_offset, len(entries)
        while count and entries[count - 1].next_offset > end:
            count -= 1
        if count < len(entries):
            entries = entries[:count]
        hidden = self._transactions.hidden
        if not hidden:
            return entries
        return [
            replace(entry, flags=entry.flags | MARKER)
            if entry.flags and entry.base_offset in hidden
            else entry
            for entry in entries
        ]

    # ------------------------------------------------------------------ places

    async def delivery_span(self, offset: Offset) -> DeliverySpan:
        """What decides the delivery of messages from ``offset`` on, without those that are hidden."""
        span = await self._log.delivery_span(offset)
        span = span.before(max(offset, self.next_offset))
        hidden = self._transactions.hidden
        return replace(span, hidden=hidden) if hidden else span

    async def wait_beyond(self, offset: Offset, timeout_s: float) -> bool:
        """Wait until something at or after ``offset`` can be read; whether it can."""
        deadline = self._clock.monotonic() + timeout_s
        while self.next_offset <= offset:
            # Where a transaction is open, only a marker lets readers go on: that is yet to come.
            beyond = max(offset, self._log.next_offset)
            left_s = deadline - self._clock.monotonic()
            grown = self._log.wait_beyond(beyond, max(0.0, left_s))
            if self._log.is_alone and self.next_offset < self._log.next_offset:
                ended = (await first_of(grown, self._next_shown())).result()
            else:
                ended = await grown
            if not ended:
                break
        return self.next_offset > offset

    async def _next_shown(self) -> bool:
        await self._shown.wait()
        return True

    def shown(self) -> None:
        """Transactions have ended whose markers are yet to be stored."""
        self._shown.wake()
        self._log.growth.wake()

    async def offset_at(self, time: Microseconds) -> Offset:
        return min(self.next_offset, await self._log.offset_at(time))

    async def size_from(self, offset: Offset) -> int:
        return await self._log.size_from(offset)

    async def retain(self, limits: RetentionLimits, *, dry_run: bool = False) -> Offset:
        """Drop what the limits allow, and never what belongs to an open transaction."""
        return await self._log.retain(limits.capped(self.next_offset), dry_run=dry_run)
