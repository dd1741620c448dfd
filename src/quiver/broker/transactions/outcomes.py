"""How transactions ended, for an hour at least: bitmaps of their ids, by ten minutes.

A producer's transactions follow one another, and so do the ids of producers. Ids are arranged so that
both make dense bitmaps: a transaction takes a few bits where producers have many, and two bytes or so
where each has one.
"""

from __future__ import annotations

from pyroaring import BitMap64

from quiver.broker.transactions.records import Outcome, SavedWindow
from quiver.model.ids import Microseconds, ProducerId
from quiver.model.transaction import TransactionId, producer_of

WINDOW_US = 600 * 1_000_000
KEPT_US = 3600 * 1_000_000
WINDOWS = KEPT_US // WINDOW_US + 1
"""The window that is not over yet, and those of the hour before it."""
SAVED_BYTES_MAX = 40 << 20
"""Of outcomes in a checkpoint. 5,000 transactions a second take less, each with its own producer."""
_LOW_BITS, _PRODUCER_BITS = 8, 43


class _Window:
    __slots__ = ("fenced", "number", "outcomes")

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcomes: dict[Outcome, BitMap64] = {}
        self.fenced = BitMap64()

    def saved(self) -> SavedWindow:
        outcomes = {outcome: ids.serialize() for outcome, ids in self.outcomes.items()}
        return SavedWindow(self.number, outcomes, self.fenced.serialize())


class OutcomeHistory:
    """A time that goes back counts as the latest one."""

    def __init__(self) -> None:
        self._windows: list[_Window] = []
        """Oldest first."""

    def add(self, transaction: TransactionId, outcome: Outcome, time_us: Microseconds) -> None:
        outcomes = self._window(time_us).outcomes
        if outcome not in outcomes:
            outcomes[outcome] = BitMap64()
        outcomes[outcome].add(arranged(transaction))

    def of(self, transaction: TransactionId) -> Outcome | None:
        place = arranged(transaction)
        for window in reversed(self._windows):
            for outcome, ids in window.outcomes.items():
                if place in ids:
                    return outcome
        return None

    def fence(self, producer: ProducerId, time_us: Microseconds) -> None:
        """Another has taken the name of this producer."""
        self._window(time_us).fenced.add(producer)

    def is_fenced(self, producer: ProducerId) -> bool:
        return any(producer in window.fenced for window in self._windows)

    def expire(self, now_us: Microseconds) -> None:
        """Forget what ended more than an hour before this."""
        first = now_us // WINDOW_US - WINDOWS + 1
        if self._windows and self._windows[0].number < first:
            self._windows = [one for one in self._windows if one.number >= first]

    def saved(self, bytes_max: int = SAVED_BYTES_MAX) -> list[SavedWindow]:
        """What a checkpoint has: the newest windows first, as many as there is room for."""
        kept: list[SavedWindow] = []
        for window in reversed(self._windows):
            one = window.saved()
            bytes_max -= one.size
            if bytes_max < 0 and kept:
                break
            kept.append(one)
        return kept[::-1]

    @classmethod
    def restored(cls, saved: list[SavedWindow]) -> OutcomeHistory:
        history = cls()
        for one in saved:
            window = _Window(one.number)
            for outcome, ids in one.outcomes.items():
                window.outcomes[outcome] = BitMap64.deserialize(ids)
            window.fenced = BitMap64.deserialize(one.fenced)
            history._windows.append(window)
        return history

    def _window(self, time_us: Microseconds) -> _Window:
        number = time_us // WINDOW_US
        if not self._windows or self._windows[-1].number < number:
            if self._windows:
                _compact(self._windows[-1])
            self._windows.append(_Window(number))
            self.expire(time_us)
        return self._windows[-1]


def _compact(window: _Window) -> None:
    """Nothing is added to it any more."""
    for ids in window.outcomes.values():
        ids.run_optimize()
        ids.shrink_to_fit()


def arranged(transaction: TransactionId) -> int:
    """The same id with the low bits of the epoch last, and the high bits of it first."""
    producer, epoch = producer_of(transaction)
    low = epoch & (1 << _LOW_BITS) - 1
    return epoch >> _LOW_BITS << _PRODUCER_BITS + _LOW_BITS | producer << _LOW_BITS | low
