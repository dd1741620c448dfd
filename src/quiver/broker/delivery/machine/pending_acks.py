"""Pending acknowledgements: messages that wait for the end of a transaction.

Whoever held the lease has done with them. They are finished if the transaction is committed, and ready
again if it is aborted. Until then they are nobody's: no deadline and no consumer ends this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from pyroaring import BitMap64

from quiver.model.ids import Microseconds
from quiver.model.transaction import TransactionId


class PendingAck(msgspec.Struct, kw_only=True, eq=False):
    """What one transaction has of one lease. ``since`` is when it got the first of it."""

    transaction: TransactionId
    lease_id: int
    since: Microseconds
    offsets: BitMap64


class PendingAcks:
    """``members`` is the union of all; no offset is in two."""

    def __init__(self) -> None:
        self.members = BitMap64()
        self._parts: dict[TransactionId, dict[int, PendingAck]] = {}
        self._of_lease: dict[int, set[TransactionId]] = {}

    def __iter__(self) -> Iterator[PendingAck]:
        return (one for parts in self._parts.values() for one in parts.values())

    def of(self, transaction: TransactionId) -> list[PendingAck]:
        """What waits for a transaction, lease by lease."""
        return list(self._parts.get(transaction, {}).values())

    def since(self, before: Microseconds) -> set[TransactionId]:
        """The transactions that messages have been waiting for since before a moment."""
        return {one.transaction for one in self if one.since < before}

    def waits_for(self, transactions: Iterable[TransactionId]) -> bool:
        """Whether something waits for one of these."""
        return bool(self._parts) and any(one in self._parts for one in transactions)

    def valid(self, transaction: TransactionId, lease_id: int, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that the transaction has of this lease."""
        known = self._parts.get(transaction, {}).get(lease_id)
        return BitMap64() if known is None else known.offsets & offsets

    def overlapping(self, offsets: BitMap64) -> list[PendingAck]:
        """The parts that have some of the offsets."""
        if not self.members.intersect(offsets):
            return []
        return [one for one in self if one.offsets.intersect(offsets)]

    def add(self, one: PendingAck) -> None:
        assert one.offsets.isdisjoint(self.members), "no message waits for two transactions"
        self.members |= one.offsets
        known = self._parts.setdefault(one.transaction, {}).setdefault(one.lease_id, one)
        if known is not one:
            known.offsets |= one.offsets
        self._of_lease.setdefault(one.lease_id, set()).add(one.transaction)

    def release(self, lease_id: int, offsets: BitMap64) -> None:
        """These were taken under the lease, and wait no more."""
        if not self.members.intersect(offsets):
            return
        transactions = self._of_lease.get(lease_id, set())
        for transaction in list(transactions):
            parts = self._parts[transaction]
            self.members -= parts[lease_id].offsets & offsets
            parts[lease_id].offsets -= offsets
            if not parts[lease_id].offsets:
                del parts[lease_id]
                transactions.discard(transaction)
            if not parts:
                del self._parts[transaction]
        if not transactions:
            self._of_lease.pop(lease_id, None)
