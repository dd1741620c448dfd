"""Transactions by their ids.

A transaction is the producer that writes it and that producer's epoch: each transaction of a producer has
an epoch of its own, one above the last. Both are in the envelope of every batch, so a partition knows the
transaction of a batch without looking into it. The id is one number with both.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

from quiver.errors import InvalidRequest
from quiver.model.ids import ProducerEpoch, ProducerId

TransactionId = NewType("TransactionId", int)

_EPOCH_BITS = 20
EPOCHS_MAX = 1 << _EPOCH_BITS
"""A producer has this many transactions; then another id is due."""
PARTICIPANTS_MAX = 1_000
"""How many partitions one transaction may write to and take messages from."""
PARTS_MAX = 10_000
"""How many open parts a shared transaction may have."""
TIMEOUT_S = 60.0
TIMEOUT_S_MAX = 900.0
"""How long a transaction may be open: as a rule, and at most."""


COMMITTED_ONLY, UNCOMMITTED = "committed", "uncommitted"
"""What a reader sees: what counts, or also messages of transactions that are open or were aborted."""


def require_isolation(isolation: str) -> None:
    """``InvalidRequest`` unless it is one of the two."""
    if isolation not in (COMMITTED_ONLY, UNCOMMITTED):
        raise InvalidRequest(
            f"isolation is {COMMITTED_ONLY!r} or {UNCOMMITTED!r}, not {str(isolation)[:80]!r}"
        )


class TransactionState(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """It never was, or its outcome is forgotten."""


def transaction_id(producer: ProducerId, epoch: ProducerEpoch) -> TransactionId:
    return TransactionId(producer << _EPOCH_BITS | epoch)


def producer_of(transaction: TransactionId) -> tuple[ProducerId, ProducerEpoch]:
    """The producer that writes a transaction, and its epoch."""
    return ProducerId(transaction >> _EPOCH_BITS), ProducerEpoch(transaction & EPOCHS_MAX - 1)
