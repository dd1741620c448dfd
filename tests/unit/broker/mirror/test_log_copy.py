"""The copy of a log: a prefix of its source but for gaps, whatever the source answers."""

from __future__ import annotations

import pytest

from quiver.broker.mirror.log_copy import FETCH_BYTES_MAX, FETCH_BYTES_MIN, NO_EPOCH, LogCopy
from quiver.errors import CorruptLog
from quiver.model.batch import StoredBatch
from quiver.model.envelope import seal_batch, store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.mirror.entry_mark import mark_of
from quiver.model.schema import PAYLOAD


def entry(offset: int, count: int = 1, body: bytes = b"body", epoch: int = 0) -> StoredBatch:
    return store_batch(
        seal_batch(body, count, PAYLOAD),
        base_offset=Offset(offset),
        epoch=LeaderEpoch(epoch),
        append_time=Microseconds(offset),
        durable_offset=Offset(0),
    )


def answered(
    copy: LogCopy, start: int, end: int, entries: list[StoredBatch], left: int = 0
) -> tuple[int, int] | None:
    read_to = entries[-1].next_offset if entries else Offset(max(start, copy.next_fetch))
    copy.on_answer(Offset(start), Offset(end), read_to, 3, left)
    return copy.on_entries(Offset(start), read_to, entries).gap


def test_the_next_fetch_begins_where_an_answer_ends_before_its_entries_are_stored() -> None:
    copy = LogCopy(Offset(4), mark_of(entry(3)))
    copy.on_answer(Offset(0), Offset(9), Offset(6), 3, 1000)
    assert (copy.next_fetch, copy.end, copy.epoch, copy.last) == (6, 4, 3, None)
    copy.on_entries(Offset(0), Offset(6), [entry(4), entry(5)])
    assert copy.end == 6


def test_the_first_fetch_names_the_last_entry_and_no_epoch() -> None:
    mark = mark_of(entry(3))
    copy = LogCopy(Offset(4), mark)
    assert (copy.last, copy.epoch) == (mark, NO_EPOCH)


def test_what_the_source_has_no_more_is_a_gap_with_its_offsets() -> None:
    copy = LogCopy(Offset(4), None)
    assert answered(copy, 10, 12, [entry(10), entry(11)]) == (4, 10)
    assert copy.end == copy.source_end


def test_a_source_that_is_empty_from_a_later_offset_on_is_a_gap_too() -> None:
    copy = LogCopy(Offset(4), None)
    assert answered(copy, 10, 10, []) == (4, 10)


def test_a_batch_that_the_source_begins_inside_of_is_copied_whole() -> None:
    copy = LogCopy(Offset(4), None)
    assert answered(copy, 10, 12, [entry(8, 4)]) == (4, 8)


@pytest.mark.parametrize(
    "entries",
    [[entry(5)], [entry(3)], [entry(4), entry(6)], [entry(4), entry(4)]],
    ids=["hole", "before", "hole inside", "twice"],
)
def test_entries_that_do_not_follow_are_refused(entries: list[StoredBatch]) -> None:
    copy = LogCopy(Offset(4), None)
    with pytest.raises(CorruptLog):
        answered(copy, 0, 9, entries)


def test_an_answer_that_goes_back_is_refused() -> None:
    copy = LogCopy(Offset(4), None)
    with pytest.raises(CorruptLog):
        copy.on_answer(Offset(0), Offset(9), Offset(3), 1, 0)
    with pytest.raises(CorruptLog):
        copy.on_answer(Offset(0), Offset(5), Offset(6), 1, 0)


def test_more_is_asked_for_at_once_while_there_is_more() -> None:
    copy = LogCopy(Offset(0), None)
    answered(copy, 0, 9, [entry(0)], left=5 << 20)
    assert copy.bytes_max == 5 << 20
    answered(copy, 0, 9, [entry(1)], left=1 << 40)
    assert copy.bytes_max == FETCH_BYTES_MAX
    answered(copy, 0, 3, [entry(2)], left=0)
    assert copy.bytes_max == FETCH_BYTES_MIN


def test_a_mark_is_the_same_whatever_a_leader_stamps_and_another_for_other_messages() -> None:
    assert mark_of(entry(3, epoch=1)) == mark_of(entry(3, epoch=7))
    assert mark_of(entry(3)) != mark_of(entry(3, body=b"other"))
    assert mark_of(entry(3)) != mark_of(entry(4))
