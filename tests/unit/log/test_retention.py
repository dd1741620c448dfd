"""Retention: which messages go, and what a log does when they do."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import OffsetOutOfRange
from quiver.log.retention import Reached, RetentionLimits, first_kept
from quiver.log.segmented_log import SegmentedLog
from quiver.model.ids import Microseconds, Offset
from quiver.testing.disk import SimulatedCrash, SimulatedDisk
from tests.unit.log.small_logs import (
    FOLDER,
    SECOND_US,
    SetClock,
    batch,
    open_log,
    read_all,
    segment_count,
)

START, END = Offset(100), Offset(160)


def kept(reached: Reached | None = None, **limits: int) -> int:
    """Where a log from 100 to 160 begins."""
    chosen = RetentionLimits(**{name: Offset(value) for name, value in limits.items()})
    return first_kept(START, END, chosen, reached or Reached())


# ---------------------------------------------------------------------- the decision


def test_without_limits_everything_stays() -> None:
    assert kept() == 100


@pytest.mark.parametrize(
    ("messages", "start"), [(61, 100), (60, 100), (10, 150), (1, 159), (0, 160)]
)
def test_a_cap_in_messages_keeps_exactly_that_many(messages: int, start: int) -> None:
    assert kept(messages=messages) == start


@pytest.mark.parametrize(("before", "start"), [(0, 100), (109, 109), (160, 160), (170, 160)])
def test_what_every_subscription_has_passed_goes_exactly(before: int, start: int) -> None:
    assert kept(before=before) == start


def test_each_limit_alone_is_enough_for_a_message_to_go() -> None:
    assert kept(Reached(age=Offset(120), bytes=Offset(110)), messages=50) == 120
    assert kept(Reached(age=Offset(110), bytes=Offset(120)), messages=50) == 120
    assert kept(Reached(age=Offset(90)), messages=30, before=105) == 130


@pytest.mark.parametrize(("first", "start"), [(90, 100), (100, 100), (109, 109), (200, 160)])
def test_an_unfinished_message_stays_whatever_the_limits(first: int, start: int) -> None:
    assert kept(Reached(age=END, bytes=END), messages=0, unfinished_from=first) == start


@pytest.mark.parametrize(
    ("limits", "reached", "start"),
    [
        ({}, Reached(unfinished_age=Offset(130)), 130),
        ({}, Reached(unfinished_age=Offset(105)), 100),
        ({}, Reached(unfinished_bytes=Offset(130)), 130),
        ({}, Reached(unfinished_age=Offset(120), unfinished_bytes=Offset(130)), 130),
        ({"scheduled_from": 115}, Reached(unfinished_age=END), 115),
        ({"scheduled_from": 115}, Reached(unfinished_bytes=END), 160),
        ({"not_beyond": 115}, Reached(unfinished_bytes=END), 115),
    ],
)
def test_unfinished_messages_go_by_their_own_limits(
    limits: dict[str, int], reached: Reached, start: int
) -> None:
    assert kept(reached, unfinished_from=110, **limits) == start


def test_a_cap_holds_beside_another() -> None:
    assert RetentionLimits().capped(Offset(9)).not_beyond == 9
    assert RetentionLimits(not_beyond=Offset(5)).capped(Offset(9)).not_beyond == 5
    assert RetentionLimits(not_beyond=Offset(9)).capped(Offset(5)).not_beyond == 5


@pytest.mark.parametrize(("not_beyond", "start"), [(90, 100), (100, 100), (129, 129), (170, 160)])
def test_nothing_goes_beyond_what_is_committed(not_beyond: int, start: int) -> None:
    everything = Reached(age=END, bytes=END)
    assert kept(everything, messages=0, before=160, not_beyond=not_beyond) == start


offsets = st.none() | st.integers(50, 200).map(Offset)


@given(st.builds(Reached, age=offsets, bytes=offsets), offsets, offsets, offsets)
def test_the_start_stays_in_the_log_and_never_goes_back(
    reached: Reached, before: Offset | None, first: Offset | None, beyond: Offset | None
) -> None:
    limits = RetentionLimits(before=before, unfinished_from=first, not_beyond=beyond)
    start = first_kept(START, END, limits, reached)
    assert START <= start <= END
    for cap in (first, beyond):
        assert cap is None or start <= max(START, cap)


# ---------------------------------------------------------------------- what a log does


def log_of_segments(count: int, clock: SetClock, disk: SimulatedDisk) -> SegmentedLog:
    """Segments of two messages each, two seconds apart."""
    log = open_log(disk, clock)
    for seed in range(count):
        log.append([batch(count=2, seed=seed)])
        clock.now_us += 2 * SECOND_US
    assert segment_count(log) == count
    return log


def test_reading_what_retention_removed_names_the_first_offset_still_there() -> None:
    log = log_of_segments(4, SetClock(), SimulatedDisk(1))
    log.retain(RetentionLimits(before=Offset(5)))
    log.checkpoint()
    with pytest.raises(OffsetOutOfRange, match="first offset is 5, the next will be 8") as gone:
        log.read(Offset(4))
    assert gone.value.details == {"first_offset": 5, "next_offset": 8}


def test_what_is_kept_is_read_as_before() -> None:
    log = log_of_segments(4, SetClock(), SimulatedDisk(1))
    everything = read_all(log)
    log.retain(RetentionLimits(before=Offset(4)))
    log.checkpoint()
    assert read_all(log) == everything[2:]


def test_files_go_only_after_a_checkpoint_that_no_longer_names_them() -> None:
    disk = SimulatedDisk(1)
    log = log_of_segments(4, SetClock(), disk)
    log.retain(RetentionLimits(before=Offset(4)))
    assert f"{0:020d}.log" in disk.list_folder(FOLDER)
    log.checkpoint()
    left = [
        name for name in disk.list_folder(FOLDER) if name.startswith((f"{0:020d}", f"{2:020d}"))
    ]
    assert left == []


def test_a_removed_start_is_not_forgotten_by_a_crash_after_the_commit() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = log_of_segments(4, clock, disk)
    log.retain(RetentionLimits(before=Offset(4)))
    log.checkpoint()
    disk.crash()
    assert open_log(disk, clock).start_offset == 4


def test_the_newest_segment_goes_too_once_nothing_in_it_is_kept() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = log_of_segments(3, clock, disk)
    assert log.retain(RetentionLimits(messages=0)) == 6
    log.checkpoint()
    assert (log.start_offset, log.next_offset, log.size) == (6, 6, 0)
    assert disk.list_folder(FOLDER)[0] == f"{6:020d}.log"


def test_a_log_that_retention_emptied_goes_on_at_its_next_offset() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = log_of_segments(3, clock, disk)
    log.retain(RetentionLimits(messages=0))
    log.close()
    log = open_log(disk, clock)
    assert log.append([batch(seed=9)])[0].base_offset == 6


def test_retention_by_age_follows_the_clock() -> None:
    clock = SetClock()
    log = log_of_segments(4, clock, SimulatedDisk(1))
    assert log.retain(RetentionLimits(age_us=60 * SECOND_US)) == 0
    clock.now_us += 54 * SECOND_US
    assert log.retain(RetentionLimits(age_us=60 * SECOND_US)) == 2


def test_retention_by_age_goes_by_each_entry_of_a_segment() -> None:
    clock = SetClock()
    log = open_log(SimulatedDisk(1), clock, segment_age_s=1000)
    for seed in range(10):
        log.append([batch(count=3, seed=seed)])
        clock.now_us += 10 * SECOND_US
    assert segment_count(log) == 1
    for age_s, start in ((200, 0), (55, 15), (55, 15), (15, 27), (5, 30)):
        assert log.retain(RetentionLimits(age_us=age_s * SECOND_US)) == start
        log.checkpoint()
        assert log.start_offset == start


def test_retention_twice_in_one_commit_removes_both() -> None:
    disk = SimulatedDisk(1)
    log = log_of_segments(4, SetClock(), disk)
    log.retain(RetentionLimits(before=Offset(2)))
    log.retain(RetentionLimits(before=Offset(4)))
    log.checkpoint()
    assert disk.list_folder(FOLDER)[0] == f"{4:020d}.index"


@pytest.mark.parametrize(
    ("limits", "start"),
    [(RetentionLimits(messages=2), 6), (RetentionLimits(age_us=SECOND_US), 8)],
)
def test_damage_in_a_segment_does_not_keep_it_or_its_neighbours(
    limits: RetentionLimits, start: int
) -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log_of_segments(4, clock, disk).close()
    for base in (0, 2, 4):
        disk.flip_bit(f"{FOLDER}/{base:020d}.log", 100, 0)
    log = open_log(disk, clock)
    assert log.retain(limits) == start
    log.checkpoint()
    assert len(log.read(Offset(start))) == (8 - start) // 2


def test_the_size_from_an_offset_on_is_what_is_stored_there_and_a_little_more() -> None:
    log = open_log(SimulatedDisk(1), SetClock())
    sizes = [
        entry.size() for number in range(60) for entry in log.append([batch(200, seed=number)])
    ]
    for offset in range(61):
        exact = sum(sizes[offset:])
        assert exact <= log.size_from(Offset(offset)) <= exact + 512 + max(sizes)
    assert log.size_from(log.next_offset) == 0


# ---------------------------------------------------------------------- a start inside a segment


def one_segment(disk: SimulatedDisk, clock: SetClock, **changes: int) -> SegmentedLog:
    """Ten entries of ten messages, ten seconds apart, in one segment."""
    log = open_log(disk, clock, segment_bytes=1 << 20, segment_age_s=1000, **changes)
    for seed in range(10):
        log.append([batch(count=10, seed=seed)])
        clock.now_us += 10 * SECOND_US
    return log


def test_a_limit_in_messages_holds_exactly_inside_a_segment_and_inside_an_entry() -> None:
    log = one_segment(SimulatedDisk(1), SetClock())
    log.retain(RetentionLimits(messages=13))
    log.checkpoint()
    assert (log.start_offset, log.stored_from, log.next_offset) == (87, 0, 100)
    with pytest.raises(OffsetOutOfRange):
        log.read(Offset(86))
    with pytest.raises(OffsetOutOfRange):
        log.delivery_span(Offset(86))
    assert [entry.base_offset for entry in log.read(Offset(87))] == [80, 90]
    assert log.offset_at(Microseconds(0)) == 87


@pytest.mark.parametrize("size", [1, 250, 700, 1200, 5000])
def test_a_cap_in_bytes_keeps_the_entry_across_the_line(size: int) -> None:
    log = one_segment(SimulatedDisk(1), SetClock())
    sizes = [entry.size() for entry in log.read(Offset(0))]
    log.retain(RetentionLimits(bytes=size))
    log.checkpoint()
    kept_bytes = sum(sizes[log.start_offset // 10 :])
    assert log.start_offset % 10 == 0
    assert kept_bytes >= min(size, sum(sizes))
    assert log.start_offset == 0 or kept_bytes < size + sizes[0]


def test_the_size_of_a_log_leaves_out_what_is_excluded_but_for_an_index_interval() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = one_segment(disk, clock)
    entry_size, whole = log.read(Offset(0))[0].size(), log.size
    log.retain(RetentionLimits(messages=20))
    log.checkpoint()
    assert 2 * entry_size <= log.size <= 2 * entry_size + 512 + entry_size < whole
    kept_size = log.size
    log.close()
    assert open_log(disk, clock).size == kept_size


def test_a_start_inside_a_segment_survives_a_crash_and_what_is_before_it_does_not_come_back() -> (
    None
):
    disk, clock = SimulatedDisk(1), SetClock()
    log = one_segment(disk, clock)
    log.retain(RetentionLimits(messages=13))
    log.checkpoint()
    disk.crash()
    log = open_log(disk, clock)
    assert (log.start_offset, log.stored_from) == (87, 0)
    with pytest.raises(OffsetOutOfRange):
        log.read(Offset(0))


def test_readers_see_a_start_only_once_no_crash_can_take_it_back() -> None:
    """A crash at any operation of a retention: no reader saw a start later than the one after it."""
    for crash_at in range(1, 40):
        disk, clock = SimulatedDisk(crash_at), SetClock()
        log = one_segment(disk, clock, index_interval_bytes=600)
        log.retain(RetentionLimits(messages=50))
        log.checkpoint()
        disk.crash_at(disk.operation_count + crash_at)
        try:
            for messages in (13, 0):
                log.retain(RetentionLimits(messages=messages))
                log.checkpoint()
        except SimulatedCrash:
            pass
        seen = log.start_offset
        disk.crash()
        again = open_log(disk, clock)
        assert seen <= again.start_offset
        assert again.start_offset in (50, 87, 100)
        assert again.next_offset == 100


def test_what_is_excluded_can_be_read_by_a_replica_until_its_segment_goes() -> None:
    log = one_segment(SimulatedDisk(1), SetClock(), tail_bytes=0)
    log.retain(RetentionLimits(messages=13))
    log.checkpoint()
    assert [one.base_offset for one in log.read_disk(Offset(0), 1 << 20, stored=True)] == [
        *range(0, 100, 10)
    ]
    log.retain(RetentionLimits(messages=0))
    log.checkpoint()
    assert log.stored_from == log.start_offset == 100
    with pytest.raises(OffsetOutOfRange):
        log.read_disk(Offset(87), 1, stored=True)


def test_opening_a_log_whose_start_is_inside_a_segment_reads_no_entries_before_it() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = one_segment(disk, clock)
    log.append([batch(count=1, seed=99)])
    log.retain(RetentionLimits(messages=13))
    log.close()
    disk.fail("map", errno.EIO, after=1)  # one for the first entry's time
    assert open_log(disk, clock).start_offset == 88


def test_truncating_the_entry_that_holds_the_start_leaves_an_empty_log_there() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = one_segment(disk, clock)
    log.retain(RetentionLimits(messages=13))
    log.checkpoint()
    assert log.truncate(Offset(88)) == 80
    assert (log.start_offset, log.next_offset) == (80, 80)
    assert log.append([batch(seed=50)])[0].base_offset == 80
    disk.crash()
    assert [entry.base_offset for entry in read_all(open_log(disk, clock))] == [80]
