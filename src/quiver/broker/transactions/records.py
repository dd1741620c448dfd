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


class PartJoined(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """A transaction is part of the shared one of this name and number. Those of lower numbers have ended."""

    name: str
    number: int
    transaction: TransactionId
    timeout_us: int
    time_us: Microseconds


class Decided(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """A transaction has ended. Its participants are told from now on."""

    transaction: TransactionId
    outcome: Outcome
    participants: list[Participant]
    time_us: Microseconds


class SharedEnded(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """Parts of a shared transaction have ended together: these count, those do not."""

    name: str
    number: int
    committed: list[TransactionId]
    aborted: list[TransactionId]
    reason: Outcome
    """Why the others do not count."""
    participants: list[Participant]
    """Of all parts."""
    time_us: Microseconds
    is_last: bool = False
    """Nobody uses the name any more."""

    @property
    def decisions(self) -> list[Decided]:
        ended = [(one, Outcome.COMMITTED) for one in self.committed]
        ended += [(one, self.reason) for one in self.aborted]
        return [Decided(one, outcome, self.participants, self.time_us) for one, outcome in ended]


class Completed(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """All participants of these transactions know how they ended."""

    transactions: list[TransactionId]


class SavedName(msgspec.Struct, frozen=True, array_like=True):
    owner: str
    producer: ProducerId
    used_us: Microseconds


class SavedShared(msgspec.Struct, frozen=True, array_like=True):
    """The shared transactions of one name: the last that was committed, and the parts of the present one."""

    committed: int
    number: int
    timeout_us: int
    parts: list[TransactionId]


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
    shared: dict[str, SavedShared] = {}
    ended_names: dict[str, Microseconds] = {}
    """Of shared transactions: when each was used for the last time. Nobody begins under it again."""


AnyTransactionRecord = (
    Named | NamesForgotten | Joined | PartJoined | Decided | SharedEnded | Completed | Checkpoint
)

encode_record = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[AnyTransactionRecord] = msgspec.msgpack.Decoder(
    AnyTransactionRecord
)


def decode_record(data: bytes) -> AnyTransactionRecord:
    return _decoder.decode(data)
