"""Retention: which segments may go, and what a log does when they do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import OffsetOutOfRange
from quiver.log.retention import RetentionLimits, SegmentFacts, first_kept
from quiver.log.segmented_log import SegmentedLog
from quiver.model.ids import Microseconds, Offset
from quiver.testing.disk import SimulatedDisk
from tests.unit.log.small_logs import (
    FOLDER,
    SECOND_US,
    SetClock,
    batch,
    open_log,
    read_all,
    segment_count,
)

NOW = Microseconds(1_000_000)


def segments(*rows: tuple[int, int, int]) -> list[SegmentFacts]:
    """Segments from offset 100 on, each of (messages, bytes, age of its youngest message)."""
    made, offset = [], 100
    for messages, size, age_us in rows:
        made.append(
            SegmentFacts(
                base_offset=Offset(offset),
                next_offset=Offset(offset + messages),
                size=size,
                newest=Microseconds(NOW - age_us),
            )
        )
        offset += messages
    return made


THREE = segments((10, 1000, 300), (20, 2000, 200), (30, 3000, 100))

# ---------------------------------------------------------------------- the decision


def test_without_limits_everything_stays() -> None:
    assert first_kept(THREE, RetentionLimits(), NOW) == 100


@pytest.mark.parametrize(
    ("age_us", "start"), [(301, 100), (300, 100), (299, 110), (200, 110), (199, 130), (99, 160)]
)
def test_a_segment_goes_once_its_youngest_message_is_older_than_the_age(
    age_us: int, start: int
) -> None:
    assert first_kept(THREE, RetentionLimits(age_us=age_us), NOW) == start


@pytest.mark.parametrize(
    ("bytes_kept", "start"),
    [(6000, 100), (5001, 100), (5000, 110), (3001, 110), (3000, 130), (1, 130), (0, 160)],
)
def test_a_cap_in_bytes_keeps_at_least_that_many(bytes_kept: int, start: int) -> None:
    assert first_kept(THREE, RetentionLimits(bytes=bytes_kept), NOW) == start


@pytest.mark.parametrize(
    ("messages", "start"),
    [(60, 100), (51, 100), (50, 110), (31, 110), (30, 130), (1, 130), (0, 160)],
)
def test_a_cap_in_messages_keeps_at_least_that_many(messages: int, start: int) -> None:
    assert first_kept(THREE, RetentionLimits(messages=messages), NOW) == start


@pytest.mark.parametrize(
    ("before", "start"), [(0, 100), (109, 100), (110, 110), (129, 110), (159, 130), (160, 160)]
)
def test_a_segment_goes_once_every_message_in_it_is_passed(before: int, start: int) -> None:
    assert first_kept(THREE, RetentionLimits(before=Offset(before)), NOW) == start


@pytest.mark.parametrize(("first", "start"), [(100, 100), (109, 100), (110, 110), (129, 110)])
def test_a_segment_with_an_unfinished_message_stays_whatever_the_limits(
    first: int, start: int
) -> None:
    limits = RetentionLimits(age_us=0, bytes=0, messages=0, unfinished_from=Offset(first))
    assert first_kept(THREE, limits, NOW) == start


@pytest.mark.parametrize(
    ("limits", "start"),
    [
        (RetentionLimits(unfinished_age_us=199), 130),
        (RetentionLimits(unfinished_age_us=200), 110),
        (RetentionLimits(unfinished_bytes=3000), 130),
        (RetentionLimits(unfinished_bytes=3001), 110),
        (RetentionLimits(unfinished_age_us=0, scheduled_from=Offset(115)), 110),
        (RetentionLimits(unfinished_bytes=0, scheduled_from=Offset(115)), 160),
        (RetentionLimits(unfinished_bytes=0, not_beyond=Offset(115)), 110),
    ],
)
def test_unfinished_messages_go_by_their_own_limits(limits: RetentionLimits, start: int) -> None:
    unfinished = msgspec.structs.replace(limits, unfinished_from=Offset(100))
    assert first_kept(THREE, unfinished, NOW) == start


def test_a_cap_holds_beside_another() -> None:
    assert RetentionLimits().capped(Offset(9)).not_beyond == 9
    assert RetentionLimits(not_beyond=Offset(5)).capped(Offset(9)).not_beyond == 5
    assert RetentionLimits(not_beyond=Offset(9)).capped(Offset(5)).not_beyond == 5


def test_each_limit_alone_is_enough_for_a_segment_to_go() -> None:
    limits = RetentionLimits(age_us=250, bytes=3000, before=Offset(0))
    assert first_kept(THREE, limits, NOW) == 130


def test_a_young_segment_protects_older_ones_behind_it() -> None:
    mixed = segments((10, 1000, 50), (10, 1000, 900))
    assert first_kept(mixed, RetentionLimits(age_us=100), NOW) == 100


def test_an_empty_newest_segment_counts_for_nothing() -> None:
    with_empty = segments((10, 1000, 300), (0, 0, 300))
    assert first_kept(with_empty, RetentionLimits(messages=10), NOW) == 100
    assert first_kept(with_empty, RetentionLimits(bytes=1000), NOW) == 100
    assert first_kept(with_empty, RetentionLimits(messages=0), NOW) == 110


rows = st.tuples(st.integers(0, 5), st.integers(0, 50), st.integers(-5, 50))
optional = st.none() | st.integers(0, 100)


@given(
    st.lists(rows, min_size=1, max_size=6), optional, optional, optional, st.none() | rows.map(sum)
)
def test_only_whole_segments_from_the_oldest_on_go_and_each_for_a_reason(
    made: list[tuple[int, int, int]],
    age_us: int | None,
    bytes_kept: int | None,
    messages: int | None,
    passed: int | None,
) -> None:
    known = segments(*made)
    before = None if passed is None else Offset(100 + passed)
    limits = RetentionLimits(age_us=age_us, bytes=bytes_kept, messages=messages, before=before)
    start = first_kept(known, limits, NOW)

    def may_go(place: int) -> bool:
        rest = known[place + 1 :]
        return (
            (age_us is not None and NOW - known[place].newest > age_us)
            or (bytes_kept is not None and sum(one.size for one in rest) >= bytes_kept)
            or (
                messages is not None
                and sum(o.next_offset - o.base_offset for o in rest) >= messages
            )
            or (before is not None and known[place].next_offset <= before)
        )

    staying = next((place for place in range(len(known)) if not may_go(place)), None)
    assert start == (known[-1].next_offset if staying is None else known[staying].base_offset)


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
    with pytest.raises(OffsetOutOfRange, match="first offset is 4, the next will be 8") as gone:
        log.read(Offset(3))
    assert gone.value.details == {"first_offset": 4, "next_offset": 8}


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


def test_the_newest_segment_is_closed_first_and_goes_with_the_next_call() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = log_of_segments(3, clock, disk)
    assert log.retain(RetentionLimits(messages=0)) == 4
    log.checkpoint()
    assert log.retain(RetentionLimits(messages=0)) == 6
    log.checkpoint()
    assert (log.start_offset, log.next_offset, log.size) == (6, 6, 0)


def test_a_log_that_retention_emptied_goes_on_at_its_next_offset() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = log_of_segments(3, clock, disk)
    for _ in range(2):
        log.retain(RetentionLimits(messages=0))
        log.checkpoint()
    log.close()
    log = open_log(disk, clock)
    assert log.append([batch(seed=9)])[0].base_offset == 6


def test_retention_by_age_follows_the_clock() -> None:
    clock = SetClock()
    log = log_of_segments(4, clock, SimulatedDisk(1))
    assert log.retain(RetentionLimits(age_us=60 * SECOND_US)) == 0
    clock.now_us += 56 * SECOND_US
    assert log.retain(RetentionLimits(age_us=60 * SECOND_US)) == 2


def test_retention_by_age_keeps_a_segment_while_any_message_in_it_is_young() -> None:
    clock = SetClock()
    log = open_log(SimulatedDisk(1), clock, segment_age_s=100)
    log.append([batch(seed=1)])
    clock.now_us += 90 * SECOND_US
    log.append([batch(seed=2)])
    clock.now_us += 20 * SECOND_US
    log.append([batch(seed=3)])
    assert segment_count(log) == 2
    assert log.retain(RetentionLimits(age_us=50 * SECOND_US)) == 0


def test_retention_twice_in_one_commit_removes_both() -> None:
    disk = SimulatedDisk(1)
    log = log_of_segments(4, SetClock(), disk)
    log.retain(RetentionLimits(before=Offset(2)))
    log.retain(RetentionLimits(before=Offset(4)))
    log.checkpoint()
    assert disk.list_folder(FOLDER)[0] == f"{4:020d}.index"


@pytest.mark.parametrize("limits", [RetentionLimits(messages=2), RetentionLimits(age_us=SECOND_US)])
def test_damage_in_a_segment_does_not_keep_it_or_its_neighbours(limits: RetentionLimits) -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log_of_segments(4, clock, disk).close()
    for base in (0, 2, 4):
        disk.flip_bit(f"{FOLDER}/{base:020d}.log", 100, 0)
    log = open_log(disk, clock)
    assert log.retain(limits) == 6
    log.checkpoint()
    assert log.read(Offset(6))


@pytest.mark.parametrize(("not_beyond", "start"), [(100, 100), (129, 110), (130, 130), (160, 160)])
def test_nothing_goes_that_reaches_beyond_what_is_committed(not_beyond: int, start: int) -> None:
    everything = RetentionLimits(
        messages=0, bytes=0, age_us=0, before=Offset(160), not_beyond=Offset(not_beyond)
    )
    assert first_kept(THREE, everything, NOW) == start


def test_the_size_from_an_offset_on_is_what_is_stored_there_and_a_little_more() -> None:
    log = open_log(SimulatedDisk(1), SetClock())
    sizes = [
        entry.size() for number in range(60) for entry in log.append([batch(200, seed=number)])
    ]
    for offset in range(61):
        exact = sum(sizes[offset:])
        assert exact <= log.size_from(Offset(offset)) <= exact + 512 + max(sizes)
    assert log.size_from(log.next_offset) == 0
