"""The life of a transaction in its client: new, open, ending, then committed, aborted or in doubt.

A pure machine. It says what the program may still do, and how long the transaction has been open.
"""

from __future__ import annotations

from enum import Enum

from quiver.errors import InvalidRequest, TransactionError, TransactionTimedOut
from quiver.model.transaction import TransactionId, TransactionState


class _Stage(Enum):
    NEW = "new"
    OPEN = "open"
    ENDING = "ending"
    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_DOUBT = "in doubt"


_STATES = {
    _Stage.COMMITTED: TransactionState.COMMITTED,
    _Stage.ABORTED: TransactionState.ABORTED,
    _Stage.IN_DOUBT: TransactionState.UNKNOWN,
}


class Lifecycle:
    """``timeout_s`` is the time limit of the transaction. ``now`` is in seconds of any clock."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._stage = _Stage.NEW
        self._id: TransactionId | None = None
        self._began = 0.0

    @property
    def id(self) -> TransactionId:
        if self._id is None:
            raise InvalidRequest("the transaction has not begun: use it in a with block")
        return self._id

    @property
    def state(self) -> TransactionState:
        return _STATES.get(self._stage, TransactionState.OPEN)

    @property
    def is_open(self) -> bool:
        return self._stage is _Stage.OPEN

    def age_ms(self, now: float) -> int:
        return round((now - self._began) * 1000)

    def is_overdue(self, now: float) -> bool:
        return now - self._began >= self.timeout_s

    def require_new(self) -> None:
        if self._stage is not _Stage.NEW:
            raise InvalidRequest("a transaction begins once: call transaction() again for another")

    def begin(self, transaction: TransactionId, now: float) -> None:
        self.require_new()
        self._stage, self._id, self._began = _Stage.OPEN, transaction, now

    def require_open(self, now: float) -> None:
        """Raise why the transaction takes nothing more, if so."""
        if self._stage is not _Stage.OPEN:
            what = "is being ended" if self._stage is _Stage.ENDING else f"is {self._stage.value}"
            raise TransactionError(
                f"transaction {self.id} {what}: begin another", transaction=self.id
            )
        if self.is_overdue(now):
            raise self.timed_out()

    def timed_out(self) -> TransactionTimedOut:
        return TransactionTimedOut(
            f"transaction {self.id} was open for longer than its time limit of "
            f"{self.timeout_s:g} s: commit sooner, or give it a longer timeout",
            transaction=self.id,
        )

    def start_ending(self) -> None:
        assert self._stage is _Stage.OPEN, "an open transaction is ended"
        self._stage = _Stage.ENDING

    def end(self, *, is_committed: bool) -> None:
        self._stage = _Stage.COMMITTED if is_committed else _Stage.ABORTED

    def end_in_doubt(self) -> None:
        """Nobody said what became of it."""
        self._stage = _Stage.IN_DOUBT
