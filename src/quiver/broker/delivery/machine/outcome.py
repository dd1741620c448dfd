"""What became of one message, told by the records of the state log. A pure fold.

It is for messages that are finished: what is pending is in the state. The records come in the order of
the log, each with the time at which it was stored.
"""

from __future__ import annotations

import msgspec

from quiver.broker.delivery.machine.records import (
    NO_LEASE,
    PURGED,
    AnyRecord,
    DeadLettered,
    Finished,
    Leased,
    Returned,
    Sought,
)
from quiver.model.ids import Microseconds, Offset

ACKNOWLEDGED, DEAD, SKIPPED, FINISHED = "acknowledged", "dead-lettered", "skipped", "finished"


class Outcome(msgspec.Struct, frozen=True):
    """``consumer`` had the message last, if it ended with one; ``time`` is when it ended."""

    state: str
    consumer: str | None = None
    deliveries: int = 0
    time: Microseconds | None = None


class OutcomeSearch:
    """``outcome`` is what the records so far say; ``None`` as long as they tell of no end."""

    def __init__(self, offset: Offset) -> None:
        self._offset = offset
        self._begin()

    def _begin(self) -> None:
        self.outcome: Outcome | None = None
        self._consumer: str | None = None
        self._deliveries = 0

    def apply(self, record: AnyRecord, time: Microseconds) -> None:
        if isinstance(record, Sought):
            if record.start <= self._offset:
                self._begin()
            elif self.outcome is None:
                self._end(PURGED if record.is_purge else SKIPPED, time, with_consumer=False)
        elif self.outcome is None and self._offset in record.bitmap:
            self._change(record, time)

    def _change(self, record: AnyRecord, time: Microseconds) -> None:
        match record:
            case Leased():
                self._consumer = record.consumer
                self._deliveries += 1
            case Returned() if not record.counted:
                self._deliveries -= 1
            case Finished() if record.reason:
                self._end(record.reason, time, with_consumer=False)
            case Finished() if record.lease_id == NO_LEASE:
                self._end(FINISHED, time, with_consumer=False)  # an earlier version did not say why
            case Finished():
                self._end(ACKNOWLEDGED, time)
            case DeadLettered():
                self._end(DEAD, time)

    def _end(self, state: str, time: Microseconds, *, with_consumer: bool = True) -> None:
        consumer = self._consumer if with_consumer else None
        self.outcome = Outcome(state, consumer or None, self._deliveries, time)
