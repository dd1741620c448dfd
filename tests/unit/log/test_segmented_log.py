"""The log as one thread sees it: appending, reading, rolling, truncating, closing."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quiver.errors import (
    CorruptLog,
    InvalidSetting,
    LogClosed,
    LogError,
    LogFailed,
    OffsetOutOfRange,
)
from quiver.log.disk.real_disk import RealDisk
from quiver.log.retention import RetentionLimits
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.batch import UnstoredBatch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.topic import Durability
from quiver.testing.disk import SimulatedDisk
from tests.unit.log.small_logs import (
    FOLDER,
    SECOND_US,
    SetClock,
    batch,
    facts,
    files_in,
    offset_by_time,
    open_log,
    read_all,
    segment_count,
)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(1)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def log(disk: SimulatedDisk, clock: SetClock) -> SegmentedLog:
    return open_log(disk, clock)


def append_each(log: SegmentedLog, count: int, size: int = 100, first: int = 0) -> None:
    for seed in range(first, first + count):
        log.append([batch(size, seed=seed)])


def test_what_is_staged_is_read_by_replicas_until_it_is_published(log: SegmentedLog) -> None:
    first = log.stage(batch(seed=1))
    second = log.stage(batch(seed=2))
    assert log.read_staged(first.base_offset, 1 << 20) == [first, second]
    assert log.read_staged(second.base_offset, 1 << 20) == [second]
    assert log.read_staged(second.next_offset, 1 << 20) == []
    commit = log.begin_commit()
    assert commit is not None
    third = log.stage(batch(seed=3))
    assert log.read_staged(first.base_offset, 1) == [first], "while it is being written, too"
    log.run(commit)
    assert log.read_staged(second.next_offset, 1 << 20) == [third]
    assert read_all(log) == [facts(first), facts(second)]


def test_what_is_staged_is_gone_when_the_log_fails(log: SegmentedLog, disk: SimulatedDisk) -> None:
    entry = log.stage(batch())
    commit = log.begin_commit()
    assert commit is not None
    disk.fail("sync", errno.EIO, times=1)
    with pytest.raises(LogFailed):
        log.run(commit)
    assert log.read_staged(entry.base_offset, 1 << 20) == []


def bodies(log: SegmentedLog) -> list[bytes]:
    return [entry.body for entry in read_all(log)]


# ---------------------------------------------------------------------- appending


def test_a_new_log_is_empty_and_begins_at_zero(log: SegmentedLog) -> None:
    assert (log.start_offset, log.durable_offset, log.next_offset) == (0, 0, 0)
    assert (log.size, segment_count(log), log.epoch) == (0, 1, 0)
    assert log.read(Offset(0)) == []


def test_offsets_count_messages_without_gaps(log: SegmentedLog) -> None:
    stored = log.append([batch(count=3, seed=1), batch(count=1, seed=2)])
    stored += log.append([batch(count=5, seed=3)])
    assert [(entry.base_offset, entry.next_offset) for entry in stored] == [(0, 3), (3, 4), (4, 9)]


def test_what_was_appended_is_read_back(log: SegmentedLog) -> None:
    stored = log.append([batch(50, count=2, seed=1), batch(3000, seed=2)], LeaderEpoch(3))
    assert read_all(log) == [facts(entry) for entry in stored]


def test_appending_nothing_does_nothing(log: SegmentedLog) -> None:
    assert log.append([]) == []
    assert log.next_offset == 0


def test_batches_that_cannot_all_be_made_leave_none_behind(log: SegmentedLog) -> None:
    def broken() -> Iterator[UnstoredBatch]:
        yield batch(seed=1)
        raise ValueError("the second one is no batch")

    with pytest.raises(ValueError, match="no batch"):
        log.append(broken())
    log.append([batch(seed=3)])
    assert bodies(log) == [batch(seed=3).body]


def test_a_staged_batch_is_seen_by_no_reader(log: SegmentedLog) -> None:
    log.stage(batch(seed=1))
    assert (log.next_offset, log.staged_offset) == (0, 1)
    assert log.read(Offset(0)) == []
    with pytest.raises(OffsetOutOfRange):
        log.read(Offset(1))


def test_nothing_staged_is_nothing_to_commit(log: SegmentedLog) -> None:
    assert log.begin_commit() is None
    assert log.begin_commit(sync=True) is None


def test_batches_staged_during_a_commit_are_in_the_next(log: SegmentedLog) -> None:
    log.stage(batch(seed=1))
    first = log.begin_commit()
    assert first is not None
    log.stage(batch(seed=2))
    log.run(first)
    assert log.next_offset == 1
    second = log.begin_commit()
    assert second is not None
    log.run(second)
    assert bodies(log) == [batch(seed=1).body, batch(seed=2).body]


def test_append_times_never_go_back(log: SegmentedLog, clock: SetClock) -> None:
    log.append([batch(seed=1)])
    clock.now_us -= 50
    log.append([batch(seed=2)])
    clock.now_us += 60
    log.append([batch(seed=3)])
    times = [entry.append_time - clock.now_us for entry in read_all(log)]
    assert times == [-10, -10, 0]


@pytest.mark.parametrize(
    ("durability", "durable"), [(Durability.FSYNC, 1), (Durability.INTERVAL, 0), (Durability.OS, 0)]
)
def test_only_fsync_syncs_before_an_append_returns(
    disk: SimulatedDisk, durability: Durability, durable: int
) -> None:
    log = open_log(disk, durability=durability)
    log.append([batch(seed=1)])
    assert (log.durable_offset, log.next_offset) == (durable, 1)


@pytest.mark.parametrize("durability", ["fsync", "always"])
def test_a_durability_that_is_no_durability_is_not_taken_for_none(durability: str) -> None:
    with pytest.raises(InvalidSetting, match="durability"):
        LogSettings(durability=durability)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("segment_bytes", 4095), ("window_bytes", 1 << 31), ("queued_bytes", 0)]
)
def test_a_setting_out_of_bounds_is_named(name: str, value: int) -> None:
    with pytest.raises(InvalidSetting, match=name):
        LogSettings(**{name: value})  # type: ignore[arg-type]


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("tail_bytes", [0, 1000, 1 << 20])
def test_every_offset_gives_the_entry_that_holds_it(disk: SimulatedDisk, tail_bytes: int) -> None:
    log = open_log(disk, tail_bytes=tail_bytes)
    for seed in range(40):
        log.append([batch(37 * seed % 600, count=1 + seed % 4, seed=seed)])
    for entry in read_all(log):
        for offset in range(entry.base_offset, entry.next_offset):
            assert facts(log.read(Offset(offset), 1)[0]) == entry


@pytest.mark.parametrize("bytes_max", [0, 1, 192, 383, 384, 1000, 1 << 30])
def test_a_read_gives_as_many_bytes_as_asked_for_and_at_least_one_entry(
    log: SegmentedLog, bytes_max: int
) -> None:
    append_each(log, 10)
    assert len(log.read(Offset(0), bytes_max)) == min(10, max(1, bytes_max // 192))


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
def test_reading_at_the_end_is_empty_and_beyond_it_an_error(
    disk: SimulatedDisk, tail_bytes: int
) -> None:
    log = open_log(disk, tail_bytes=tail_bytes)
    append_each(log, 3)
    assert log.read(Offset(3)) == []
    with pytest.raises(OffsetOutOfRange, match="offset 4 is not yet in the log") as caught:
        log.read(Offset(4))
    assert caught.value.details == {"first_offset": 0, "next_offset": 3}


def test_the_tail_in_memory_and_the_files_say_the_same(disk: SimulatedDisk) -> None:
    log = open_log(disk, tail_bytes=2000)
    append_each(log, 30)
    assert log.read_tail(Offset(0), 1) is None
    assert log.read_tail(Offset(29), 1) == log.read_disk(Offset(29), 1)


def test_an_entry_larger_than_window_segment_and_tail_is_read_whole(log: SegmentedLog) -> None:
    log.append([batch(seed=1), batch(100_000, seed=2), batch(seed=3)])
    assert bodies(log) == [batch(seed=1).body, batch(100_000, seed=2).body, batch(seed=3).body]
    assert facts(log.read(Offset(1), 1)[0]).body == batch(100_000, seed=2).body


def test_more_segments_than_indexes_kept_in_memory_are_all_read(
    disk: SimulatedDisk, clock: SetClock
) -> None:
    log = open_log(disk, clock)
    append_each(log, 120, size=1500)
    assert segment_count(log) > 30
    for _ in range(2):
        assert bodies(log) == [batch(1500, seed=seed).body for seed in range(120)]


def test_every_time_gives_the_first_offset_at_or_after_it(
    log: SegmentedLog, clock: SetClock
) -> None:
    for seed in range(40):
        clock.now_us += (seed % 3) * 100
        log.append([batch(400, count=2, seed=seed)])
    entries = read_all(log)
    assert segment_count(log) > 3
    for time in range(entries[0].append_time - 50, entries[-1].append_time + 51, 50):
        expected = offset_by_time(entries, time, log.next_offset)
        assert log.offset_at(Microseconds(time)) == expected


def test_the_time_of_an_empty_log_is_its_next_offset(log: SegmentedLog, clock: SetClock) -> None:
    assert log.offset_at(Microseconds(0)) == 0
    assert log.offset_at(clock.time_us()) == 0


def test_a_batch_that_is_staged_has_no_time_yet(log: SegmentedLog, clock: SetClock) -> None:
    log.append([batch(seed=1)])
    clock.now_us += 100
    log.stage(batch(seed=2))
    assert log.offset_at(clock.time_us()) == 1


# ---------------------------------------------------------------------- segments


def test_a_segment_that_reached_its_size_is_followed_by_another(
    log: SegmentedLog, disk: SimulatedDisk
) -> None:
    append_each(log, 4, size=2000)
    names = [name for name in disk.list_folder(FOLDER) if name.endswith(".log")]
    assert names == [f"{0:020d}.log", f"{2:020d}.log"]


def test_a_segment_that_reached_its_age_is_followed_by_another(
    log: SegmentedLog, clock: SetClock
) -> None:
    log.append([batch(seed=1)])
    clock.now_us += SECOND_US - 1
    log.append([batch(seed=2)])
    assert segment_count(log) == 1
    clock.now_us += 1
    log.append([batch(seed=3)])
    assert segment_count(log) == 2


def test_the_age_of_a_segment_is_known_after_opening_again(
    log: SegmentedLog, disk: SimulatedDisk, clock: SetClock
) -> None:
    log.append([batch(seed=1)])
    log.close()
    clock.now_us += SECOND_US
    log = open_log(disk, clock)
    log.append([batch(seed=2)])
    assert segment_count(log) == 2


def test_an_empty_segment_does_not_age(log: SegmentedLog, clock: SetClock) -> None:
    clock.now_us += 100 * SECOND_US
    log.append([batch(seed=1)])
    assert segment_count(log) == 1


def test_one_commit_may_fill_several_segments(log: SegmentedLog) -> None:
    log.append([batch(3000, seed=seed) for seed in range(10)])
    assert segment_count(log) == 5
    assert bodies(log) == [batch(3000, seed=seed).body for seed in range(10)]


def test_closed_segments_leave_indexes_that_are_used_as_they_are(
    log: SegmentedLog, disk: SimulatedDisk, clock: SetClock
) -> None:
    append_each(log, 30, size=300)
    whole = read_all(log)
    log.close()
    disk.flip_bit(f"{FOLDER}/{0:020d}.log", 100, 0)  # building them anew would meet this
    assert facts(open_log(disk, clock).read(Offset(9), 1)[0]) == whole[9]


def test_a_checkpoint_is_left_after_so_many_bytes(disk: SimulatedDisk) -> None:
    log = open_log(disk, segment_bytes=1 << 20, checkpoint_bytes=4096)
    append_each(log, 20)
    assert not disk.exists(f"{FOLDER}/checkpoint")
    append_each(log, 2, first=20)
    assert disk.exists(f"{FOLDER}/checkpoint")


def test_a_truncated_log_leaves_its_next_checkpoint_after_as_many_bytes(
    disk: SimulatedDisk,
) -> None:
    log = open_log(disk, segment_bytes=1 << 20, checkpoint_bytes=4096)
    append_each(log, 25)
    log.truncate(Offset(2))
    before = disk.read(f"{FOLDER}/checkpoint")
    append_each(log, 22, first=50)
    assert disk.read(f"{FOLDER}/checkpoint") != before


# ---------------------------------------------------------------------- truncating


@pytest.mark.parametrize("offset", range(13))
def test_truncating_drops_every_entry_that_reaches_past_the_offset(
    log: SegmentedLog, offset: int
) -> None:
    for seed in range(6):
        log.append([batch(1500, count=2, seed=seed)])
    whole = read_all(log)
    assert log.truncate(Offset(offset)) == offset // 2 * 2
    assert read_all(log) == whole[: offset // 2]


@pytest.mark.parametrize("offset", range(0, 12, 2))
def test_a_truncated_log_goes_on_and_nothing_that_was_dropped_comes_back(
    log: SegmentedLog, disk: SimulatedDisk, clock: SetClock, offset: int
) -> None:
    for seed in range(6):
        log.append([batch(1500, count=2, seed=seed)])
    kept = bodies(log)[: offset // 2]
    log.truncate(Offset(offset))
    for seed in range(10, 16):
        log.append([batch(1100, seed=seed)])
    disk.crash()
    expected = kept + [batch(1100, seed=seed).body for seed in range(10, 16)]
    assert bodies(open_log(disk, clock)) == expected


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_truncated_log_goes_on_from_the_time_of_its_last_entry(
    log: SegmentedLog, disk: SimulatedDisk, clock: SetClock, is_reopened: bool
) -> None:
    for time in (10, 20, 30):
        log.stage(batch(), append_time=Microseconds(time * SECOND_US))
    log.checkpoint()
    log.truncate(Offset(1))
    if is_reopened:
        log.close()
        log = open_log(disk, clock)
    assert log.stage(batch(), append_time=Microseconds(5 * SECOND_US)).append_time == 10 * SECOND_US
    log.stage(batch(), append_time=Microseconds(15 * SECOND_US))
    log.checkpoint()
    assert log.read(Offset(2), 1)[0].append_time == 15 * SECOND_US


def test_truncating_at_the_end_does_nothing(log: SegmentedLog, disk: SimulatedDisk) -> None:
    append_each(log, 3)
    operations = disk.operation_count
    assert log.truncate(Offset(3)) == 3
    assert disk.operation_count == operations


def test_truncating_outside_the_log_is_an_error(log: SegmentedLog, clock: SetClock) -> None:
    for seed in range(3):
        log.append([batch(seed=seed)])
        clock.now_us += 2 * SECOND_US
    log.retain(RetentionLimits(before=Offset(1)))
    log.checkpoint()
    for offset in (0, 4):
        with pytest.raises(OffsetOutOfRange):
            log.truncate(Offset(offset))
    assert len(read_all(log)) == 2


def test_the_epoch_follows_what_is_left(log: SegmentedLog) -> None:
    for seed, epoch in enumerate((1, 4, 6)):
        log.append([batch(seed=seed)], LeaderEpoch(epoch))
    log.truncate(Offset(2))
    assert log.epoch == 4
    log.truncate(Offset(0))
    assert log.epoch == 0


def test_a_segment_emptied_by_truncation_is_young_again(
    log: SegmentedLog, disk: SimulatedDisk, clock: SetClock
) -> None:
    """Were it closed for its age while empty, two segments would share one file."""
    log.append([batch(seed=1)])
    clock.now_us += 2 * SECOND_US
    log.append([batch(seed=2)])
    log.offset_at(Microseconds(0))
    log.retain(RetentionLimits(age_us=100 * SECOND_US))
    log.truncate(Offset(1))
    clock.now_us += 2 * SECOND_US
    log.append([batch(seed=3)])
    assert segment_count(log) == 2
    log.retain(RetentionLimits(before=Offset(1)))
    log.checkpoint()
    assert bodies(log) == [batch(seed=3).body]


def test_truncating_a_segment_that_was_read_while_it_was_being_written(
    log: SegmentedLog, disk: SimulatedDisk
) -> None:
    """Its index as built for the early reader covers less than the segment came to hold."""
    log.append([batch(1000, seed=0)])
    for seed in range(1, 100):
        log.stage(batch(1000, seed=seed))
    commit = log.begin_commit()
    assert commit is not None
    assert len(log.read(Offset(0))) == 1
    log.run(commit)
    log.truncate(Offset(3))
    log.append([batch(seed=500)])
    disk.kill()
    log = open_log(disk)
    assert bodies(log) == [
        *(batch(1000, seed=seed).body for seed in range(3)),
        batch(seed=500).body,
    ]


def test_truncation_leaves_no_file_of_a_dropped_segment(
    log: SegmentedLog, disk: SimulatedDisk
) -> None:
    """An index left behind could be taken for that of a later segment with the same first offset."""
    append_each(log, 10, size=1500)
    log.truncate(Offset(4))
    disk.crash()
    assert {name.partition(".")[0] for name in disk.list_folder(FOLDER)} == {
        f"{0:020d}",
        f"{3:020d}",
        "checkpoint",
    }


def test_a_reader_keeps_what_it_has_when_the_log_is_truncated(tmp_path: Path) -> None:
    log = SegmentedLog(f"{tmp_path}/log", RealDisk(), SetClock(), LogSettings(tail_bytes=0))
    append_each(log, 50, size=500)
    held = log.read(Offset(0))
    log.truncate(Offset(1))
    append_each(log, 50, size=300, first=100)
    assert [bytes(entry.body) for entry in held] == [
        batch(500, seed=seed).body for seed in range(50)
    ]
    log.close()


def test_a_damaged_entry_is_not_hopped_over_by_a_truncation(
    log: SegmentedLog, disk: SimulatedDisk
) -> None:
    append_each(log, 3)
    disk.corrupt(f"{FOLDER}/{0:020d}.log", 192 + 16, bytes(8))
    with pytest.raises(CorruptLog):
        log.truncate(Offset(1))
    assert log.next_offset == 3


# ---------------------------------------------------------------------- failing and closing


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_after_a_failed_write_or_sync_only_reads_go_on(
    log: SegmentedLog, disk: SimulatedDisk, operation: str
) -> None:
    append_each(log, 3)
    disk.fail(operation, errno.EIO)  # type: ignore[arg-type]
    with pytest.raises(LogFailed, match="Input/output error"):
        log.append([batch(seed=9)])
    attempts: list[Callable[[], object]] = [
        lambda: log.append([batch(seed=10)]),
        lambda: log.stage(batch(seed=10)),
        lambda: log.begin_commit(sync=True),
        lambda: log.truncate(Offset(1)),
        lambda: log.truncate(Offset(3)),
        lambda: log.retain(RetentionLimits(messages=0)),
        log.checkpoint,
    ]
    for attempt in attempts:
        with pytest.raises(LogFailed, match="until it is opened again"):
            attempt()
    assert log.failure is not None
    assert len(read_all(log)) == 3
    assert log.offset_at(Microseconds(0)) == 0


def test_an_unexpected_error_while_writing_fails_the_log_too(
    log: SegmentedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.stage(batch(seed=1))
    commit = log.begin_commit()
    assert commit is not None
    monkeypatch.setattr(commit, "steps", [object()])
    with pytest.raises(LogFailed):
        log.run(commit)
    with pytest.raises(LogFailed):
        log.append([batch(seed=2)])


def test_a_closed_log_refuses_everything(log: SegmentedLog) -> None:
    append_each(log, 2)
    log.close()
    attempts: list[Callable[[], object]] = [
        lambda: log.append([batch(seed=10)]),
        lambda: log.read(Offset(0)),
        lambda: log.offset_at(Microseconds(0)),
        lambda: log.truncate(Offset(1)),
        lambda: log.retain(RetentionLimits(messages=0)),
        log.checkpoint,
    ]
    for attempt in attempts:
        with pytest.raises(LogClosed):
            attempt()


def test_closing_twice_is_closing_once(log: SegmentedLog, disk: SimulatedDisk) -> None:
    log.close()
    operations = disk.operation_count
    log.close()
    assert disk.operation_count == operations


def test_closing_commits_what_is_staged(log: SegmentedLog, disk: SimulatedDisk) -> None:
    log.stage(batch(seed=1))
    log.close()
    assert bodies(open_log(disk)) == [batch(seed=1).body]


@pytest.mark.parametrize("durability", list(Durability))
def test_a_log_that_was_closed_survives_a_power_cut_whole(
    disk: SimulatedDisk, durability: Durability
) -> None:
    log = open_log(disk, durability=durability)
    append_each(log, 30, size=500)
    whole = read_all(log)
    log.close()
    disk.crash()
    assert read_all(open_log(disk, durability=durability)) == whole


def test_opening_a_closed_log_again_changes_no_file(
    log: SegmentedLog, disk: SimulatedDisk, clock: SetClock
) -> None:
    append_each(log, 30, size=500)
    log.close()
    files = files_in(disk)
    open_log(disk, clock).close()
    assert files_in(disk) == files


def test_a_log_on_the_operating_systems_disk_is_read_as_it_was_written(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=4096, index_interval_bytes=512, tail_bytes=0)
    folder = f"{tmp_path}/deep/log"
    log = SegmentedLog(folder, RealDisk(), SetClock(), settings)
    append_each(log, 60, size=333)
    whole = read_all(log)
    log.close()
    log = SegmentedLog(folder, RealDisk(), SetClock(), settings)
    assert read_all(log) == whole
    log.truncate(Offset(33))
    log.retain(RetentionLimits(before=Offset(20)))
    log.close()
    log = SegmentedLog(folder, RealDisk(), SetClock(), settings)
    assert read_all(log) == [entry for entry in whole if log.start_offset <= entry.base_offset < 33]
    log.close()
    gc.collect()


@pytest.mark.parametrize("after", range(8))
def test_a_truncation_that_cannot_read_changes_nothing_or_fails_the_log(
    log: SegmentedLog, disk: SimulatedDisk, clock: SetClock, after: int
) -> None:
    append_each(log, 20, size=500)
    whole = bodies(log)
    disk.fail("map", errno.EIO, after=after)
    failure: LogError | None = None
    try:
        log.truncate(Offset(12))
    except (CorruptLog, LogFailed) as error:
        failure = error
    disk.heal()
    if isinstance(failure, LogFailed):
        log.close()
        log = open_log(disk, clock)
    whole = {type(None): whole[:12], CorruptLog: whole, LogFailed: whole[: log.next_offset]}[
        type(failure)
    ]
    assert bodies(log) == whole
    assert log.next_offset >= 12
    log.append([batch(seed=99)])
    disk.crash()
    assert bodies(open_log(disk, clock))[-1] == batch(seed=99).body
