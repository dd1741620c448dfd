"""How a message ended, as the records of the state log tell it."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from quiver.broker.delivery.machine.outcome import Outcome, OutcomeSearch
from quiver.broker.delivery.machine.records import (
    CANCELLED,
    DROPPED,
    EXPIRED,
    NO_LEASE,
    PURGED,
    AnyRecord,
    DeadLettered,
    DeadLetterPending,
    Finished,
    Leased,
    Returned,
    Sought,
)
from quiver.model.ids import Microseconds, Offset

OURS = BitMap64([3, 4, 5]).serialize()
OTHERS = BitMap64([1, 2]).serialize()
NONE = BitMap64().serialize()
T = Microseconds(7)


def leased(consumer: str, lease: int = 1, offsets: bytes = OURS) -> Leased:
    return Leased(offsets, lease, consumer, T, T)


def outcome(*records: AnyRecord) -> Outcome | None:
    """What they tell of message 4. They are stored a microsecond apart."""
    search = OutcomeSearch(Offset(4))
    for time, record in enumerate(records):
        search.apply(record, Microseconds(time))
    return search.outcome


def test_an_acknowledged_message_names_its_consumer() -> None:
    found = outcome(leased("ann"), Finished(OURS, 1))
    assert found == Outcome("acknowledged", "ann", 1, Microseconds(1))


def test_the_last_consumer_is_the_one_that_acknowledged() -> None:
    found = outcome(leased("ann"), Returned(OURS, 1, T), leased("bob", 2), Finished(OURS, 2))
    assert found == Outcome("acknowledged", "bob", 2, Microseconds(3))


def test_a_delivery_that_was_given_back_does_not_count() -> None:
    given_back = Returned(OURS, 1, T, counted=False)
    found = outcome(leased("ann"), given_back, leased("bob", 2), Finished(OURS, 2))
    assert found == Outcome("acknowledged", "bob", 1, Microseconds(3))


@pytest.mark.parametrize("reason", [EXPIRED, CANCELLED, PURGED, DROPPED])
@pytest.mark.parametrize("lease", [NO_LEASE, 1])
def test_an_end_with_a_reason_is_no_acknowledgement(reason: str, lease: int) -> None:
    found = outcome(leased("ann"), Finished(OURS, lease, reason))
    assert found == Outcome(reason, None, 1, Microseconds(1))


def test_a_record_of_an_earlier_version_does_not_say_why() -> None:
    assert outcome(Finished(OURS)) == Outcome("finished", None, 0, Microseconds(0))


def test_a_dead_letter_names_who_failed_with_it() -> None:
    found = outcome(leased("ann"), DeadLetterPending(OURS, 1, "no"), DeadLettered(OURS))
    assert found == Outcome("dead-lettered", "ann", 1, Microseconds(2))


def test_records_of_other_messages_tell_nothing() -> None:
    assert outcome(leased("ann", offsets=OTHERS), Finished(OTHERS, 1)) is None
    assert outcome(leased("ann")) is None


def test_what_a_seek_or_a_purge_passes_over_is_told_apart() -> None:
    assert outcome(Sought(NONE, Offset(5))) == Outcome("skipped", None, 0, Microseconds(0))
    purged = Sought(NONE, Offset(5), is_purge=True)
    assert outcome(purged) == Outcome("purged", None, 0, Microseconds(0))


def test_what_was_acknowledged_stays_so_if_a_seek_passes_over_it() -> None:
    found = outcome(leased("ann"), Finished(OURS, 1), Sought(NONE, Offset(5)))
    assert found == Outcome("acknowledged", "ann", 1, Microseconds(1))


def test_a_seek_back_makes_a_message_pending_again() -> None:
    seek = Sought(NONE, Offset(4))
    assert outcome(leased("ann"), Finished(OURS, 1), seek) is None
    again = outcome(leased("ann"), Finished(OURS, 1), seek, leased("bob", 2), Finished(OURS, 2))
    assert again == Outcome("acknowledged", "bob", 1, Microseconds(4))
