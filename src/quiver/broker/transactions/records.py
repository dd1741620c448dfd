"""The records of a coordinator: the messages of its partition of ``__transactions``.

The state of a coordinator is a fold over these. A checkpoint holds all of it, so what is before the last
checkpoint may be dropped.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from quiver.errors import QuiverError, TransactionAborted, TransactionFenced, TransactionTimedOut
from quiver.model.ids import Microseconds, ProducerId
from quiver.model.transaction import TransactionId
from quiver.protocol import Participant


class Outcome(StrEnum):
    """What became of a transaction. The last three are all aborted, each for its reason."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    TIMED_OUT = "timed_out"
    FENCED = "fenced"

    @property
    def is_committed(self) -> bool:
        return self is Outcome.COMMITTED

    def error(self) -> QuiverError | None:
        """What whoever wants to commit is told; ``None`` if it is committed."""
        kind = _ERRORS.get(self)
        return None if kind is None else kind()


_ERRORS: dict[Outcome, type[QuiverError]] = {
    Outcome.ABORTED: TransactionAborted,
    Outcome.TIMED_OUT: TransactionTimedOut,
    Outcome.FENCED: TransactionFenced,
}


class Named(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """From now on a name is this producer's. Whoever had it before is fenced."""

    name: str
    owner: str
    producer: ProducerId
    time_us: Microseconds


class NamesForgotten(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """These names were not used for long."""

    names: list[str]


class Joined(msgspec.Struct, frozen=True, array_like=True, tag="j"):
    """A transaction is open that may stay open for longer than most."""

    transaction: TransactionId
    begun_us: Microseconds
    timeout_us: int


class Decided(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """A transaction has ended. Its participants are told from now on."""

    transaction: TransactionId
    outcome: Outcome
    participants: list[Participant]
    time_us: Microseconds


class Completed(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """All participants of these transactions know how they ended."""

    transactions: list[TransactionId]


class SavedName(msgspec.Struct, frozen=True, array_like=True):
    owner: str
    producer: ProducerId
    used_us: Microseconds


class SavedWindow(msgspec.Struct, frozen=True, array_like=True):
    """What was decided in ten minutes: serialised bitmaps by outcome, and producers that were fenced."""

    number: int
    outcomes: dict[Outcome, bytes]
    fenced: bytes

    @property
    def size(self) -> int:
        return len(self.fenced) + sum(map(len, self.outcomes.values()))


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """The whole state. What is before it does not count any more."""

    names: dict[str, SavedName]
    joined: list[Joined]
    unfinished: list[Decided]
    windows: list[SavedWindow]


AnyTransactionRecord = Named | NamesForgotten | Joined | Decided | Completed | Checkpoint

encode_record = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[AnyTransactionRecord] = msgspec.msgpack.Decoder(
    AnyTransactionRecord
)


def decode_record(data: bytes) -> AnyTransactionRecord:
    return _decoder.decode(data)
