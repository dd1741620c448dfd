"""The transactions of one partition: which are open, and which offsets no reader ever sees.

A pure machine over the entries of the log. ``record`` takes each entry that belongs to a transaction or
ends one, in order, as soon as it is staged. ``stable_offset`` says how far readers may go: to the first
batch of a transaction that has no marker yet. A marker counts once it can be read itself, so nobody has to
say when an entry was committed; or once it is shown, where a marker that is lost is written again before
anybody reads. The same fold over the stored entries rebuilds the state after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec
from pyroaring import BitMap64

from quiver.errors import Overloaded
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.envelope import COMMITTED, MARKER, ended_by
from quiver.model.ids import Microseconds, Offset
from quiver.model.transaction import TransactionId, transaction_id

OPEN_MAX = 100_000
"""How many transactions may be open in one partition."""


class OpenTransaction(msgspec.Struct, array_like=True):
    """Where the messages of a transaction are that has not ended here."""

    id: TransactionId
    time: Microseconds
    """When its first batch was stored."""
    ranges: list[tuple[Offset, Offset]]
    """In order: from an offset up to, but without, another."""

    @property
    def first(self) -> Offset:
        return self.ranges[0][0]


class OpenTransactions:
    """``hidden`` are the offsets of markers, and of messages that were aborted."""

    def __init__(
        self, opened: Iterable[OpenTransaction] = (), hidden: BitMap64 | None = None
    ) -> None:
        self.hidden = BitMap64() if hidden is None else hidden
        self._open = {one.id: one for one in sorted(opened, key=lambda one: one.first)}
        """Those without a marker, by their first offset."""
        self._ending: deque[tuple[Offset, OpenTransaction]] = deque()
        """Those whose marker, at this offset, may not be readable yet."""
        self._shown: set[Offset] = set()
        """Of these markers those that count already."""
        self._first = self._lowest()
        """Where the first message is of all of them."""

    def __len__(self) -> int:
        """How many have no marker."""
        return len(self._open)

    def refusal(self, batch: UnstoredBatch) -> Overloaded | None:
        """The error for a batch that would open one transaction too many."""
        transaction = transaction_id(batch.producer_id, batch.producer_epoch)
        if len(self._open) < OPEN_MAX or transaction in self._open:
            return None
        return Overloaded(
            f"{OPEN_MAX:,} transactions are open in the partition: end some, then try again"
        )

    def record(self, entry: StoredBatch) -> None:
        """Note the next entry of the log, if it belongs to a transaction."""
        if not entry.flags:
            return
        if entry.flags & MARKER:
            self.hidden.add_range(entry.base_offset, entry.next_offset)
            for ended in ended_by(entry):
                self._end(ended, entry)
            return
        transaction = transaction_id(entry.producer_id, entry.producer_epoch)
        one = self._open.get(transaction)
        if one is None:
            one = self._open[transaction] = OpenTransaction(transaction, entry.append_time, [])
            self._first = entry.base_offset if self._first is None else self._first
        if one.ranges and one.ranges[-1][1] == entry.base_offset:
            one.ranges[-1] = (one.ranges[-1][0], entry.next_offset)
        else:
            one.ranges.append((entry.base_offset, entry.next_offset))

    def _end(self, transaction: TransactionId, marker: StoredBatch) -> None:
        one = self._open.pop(transaction, None)
        if one is None:
            return
        self._ending.append((marker.base_offset, one))
        if not marker.flags & COMMITTED:
            for begin, end in one.ranges:
                self.hidden.add_range(begin, end)

    def stable_offset(self, end: Offset) -> Offset:
        """Up to where readers may go if the log can be read up to ``end``, which never goes back."""
        if self._first is None:
            return end
        if self._ending and self._ending[0][0] < end:
            self._forget_read(end)
            self._first = self._lowest()
        return end if self._first is None else min(end, self._first)

    def show(self, markers: Iterable[Offset], end: Offset) -> None:
        """These markers count from now on. The log can be read up to ``end``."""
        self._shown.update(markers)
        self._forget_read(end)
        self._first = self._lowest()

    def _forget_read(self, end: Offset) -> None:
        while self._ending and self._ending[0][0] < end:
            self._shown.discard(self._ending.popleft()[0])

    def _lowest(self) -> Offset | None:
        firsts = [one.first for marker, one in self._ending if marker not in self._shown]
        if self._open:
            firsts.append(next(iter(self._open.values())).first)
        return min(firsts, default=None)

    # ------------------------------------------------------------------ which are open

    def is_open(self, transaction: TransactionId) -> bool:
        """Whether it has messages here and no marker."""
        return transaction in self._open

    def marker_of(self, transaction: TransactionId) -> Offset | None:
        """Where a transaction has ended, if that may not be readable yet."""
        return next((marker for marker, one in self._ending if one.id == transaction), None)

    def older_than(self, time: Microseconds) -> list[TransactionId]:
        """Those that are open and began before a time."""
        return [one.id for one in self._open.values() if one.time < time]

    @property
    def oldest_time(self) -> Microseconds | None:
        """When the first of those began that are open; ``None`` if there is none."""
        return min((one.time for one in self._open.values()), default=None)

    def offsets(self, *, but: TransactionId | None = None) -> BitMap64:
        """The offsets of all that are open, but for those of one."""
        found = BitMap64()
        for one in self._open.values():
            if one.id != but:
                for begin, end in one.ranges:
                    found.add_range(begin, end)
        return found

    # ------------------------------------------------------------------ over a restart

    def forget_before(self, offset: Offset) -> None:
        """Nobody asks any more whether an offset before this one is hidden."""
        if self.hidden:
            self.hidden.remove_range(0, offset)

    @property
    def opened(self) -> list[OpenTransaction]:
        """Those without a marker: for a snapshot, which counts once the log can be read so far."""
        return list(self._open.values())
