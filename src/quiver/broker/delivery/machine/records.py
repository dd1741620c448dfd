"""The records of the state log: each change of a subscription's state in one partition.

The state is a fold over these records and the messages. Sets of offsets are stored as serialised
bitmaps, so acknowledging ten thousand messages in a row takes a few dozen bytes.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from quiver.model.ids import Microseconds, Offset
from quiver.model.transaction import TransactionId

NO_LEASE = 0
EXPIRED, CANCELLED, PURGED, DROPPED = "expired", "cancelled", "purged", "dropped-unread"
"""Why messages are finished that nobody acknowledged. Users read these words."""


class Record(msgspec.Struct, frozen=True, array_like=True, tag="Record"):
    """``offsets`` is a serialised ``BitMap64``."""

    offsets: bytes

    @property
    def bitmap(self) -> BitMap64:
        return BitMap64.deserialize(self.offsets)


class Leased(Record, frozen=True, array_like=True, tag="l"):
    """Delivered to a consumer under a lease, for the first time or again."""

    lease_id: int
    consumer: str
    granted: Microseconds
    deadline: Microseconds
    is_session: bool = False
    """Whether the consumer has a session, which keeps the lease alive."""


class Extended(Record, frozen=True, array_like=True, tag="e"):
    """The lease holds these until another deadline."""

    lease_id: int
    deadline: Microseconds


class Finished(Record, frozen=True, array_like=True, tag="f"):
    """Acknowledged, or at its end for another reason: not to be delivered any more."""

    lease_id: int = NO_LEASE
    reason: str = ""
    """``EXPIRED`` and the like; empty if it was acknowledged, or by an earlier version."""


class Returned(Record, frozen=True, array_like=True, tag="r"):
    """Came back without acknowledgement, to be delivered again from ``due`` on."""

    lease_id: int
    due: Microseconds
    counted: bool = True
    """Whether the delivery counts as an attempt."""
    is_suspect: bool = False
    """Whether the consumer ended without a word while it had these: they may be the reason."""


class Held(Record, frozen=True, array_like=True, tag="h"):
    """Acknowledged in a transaction: the lease has ended, and these wait until the transaction does.

    Then they are ``Finished``, or ``Returned`` uncounted.
    """

    lease_id: int
    transaction: TransactionId
    time: Microseconds


class DeadLetterPending(Record, frozen=True, array_like=True, tag="c"):
    """Failed too often, or rejected: on the way to the dead-letter topic."""

    lease_id: int
    error: str = ""
    """What the consumer said of the last failure."""


class DeadLettered(Record, frozen=True, array_like=True, tag="d"):
    """Stored in the dead-letter topic."""


class Sought(Record, frozen=True, array_like=True, tag="s"):
    """Everything before ``start`` is done with, and everything from there on is to be delivered.

    Whatever was so before, leases included. ``offsets`` is empty.
    """

    start: Offset
    is_purge: bool = False


AnyRecord = (
    Leased | Extended | Finished | Returned | Held | DeadLetterPending | DeadLettered | Sought
)


class StateEntry(msgspec.Struct, frozen=True, array_like=True):
    """What one subscription adds to the state log in one go."""

    subscription: int
    records: list[AnyRecord]


encode_entries = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[list[StateEntry]] = msgspec.msgpack.Decoder(list[StateEntry])


def decode_entries(data: bytes | memoryview) -> list[StateEntry]:
    return _decoder.decode(data)
