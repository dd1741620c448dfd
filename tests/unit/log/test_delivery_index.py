"""The index of what decides delivery: a cache of a segment that is never believed without proof."""

from __future__ import annotations

import errno

import pytest

from quiver.log import segment_reader
from quiver.log.index import SparseIndex
from quiver.log.segment import build_delivery
from quiver.log.segmented_log import SegmentedLog
from quiver.model.ids import Offset
from quiver.testing.disk import SimulatedDisk
from tests.unit.log.small_logs import (
    FOLDER,
    SECOND_US,
    Schedule,
    SetClock,
    batch,
    disk_with,
    files_in,
    open_log,
    read_all,
    schedule_in,
    schedule_indexed,
    scheduled,
    segment_count,
)


def filled(disk: SimulatedDisk, clock: SetClock) -> SegmentedLog:
    """Three segments: scheduled messages, plain ones, both."""
    log = open_log(disk, clock)
    for kinds in ((scheduled,), (batch,), (batch, scheduled)):
        for seed in range(3):
            log.append([make(count=4, seed=seed) for make in kinds])
        clock.now_us += 2 * SECOND_US
    assert segment_count(log) == 3
    return log


def by_index(log: SegmentedLog) -> Schedule:
    return schedule_indexed(log, log.start_offset, log.delivery_span)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first offsets of the segments whose entries had to be read."""
    built: list[int] = []
    build = build_delivery

    def counted(disk, segment, position, limit, window_bytes):  # type: ignore[no-untyped-def]
        built.append(segment.base_offset)
        return build(disk, segment, position, limit, window_bytes)

    monkeypatch.setattr(segment_reader, "build_delivery", counted)
    return built


def test_a_log_that_was_closed_knows_its_schedule_without_its_entries(builds: list[int]) -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = filled(disk, clock)
    expected = schedule_in(read_all(log))
    assert all(expected), "there is something of each kind"
    log.close()
    log = open_log(disk, clock)
    assert by_index(log) == expected
    assert not builds


def test_only_segments_with_something_to_index_have_a_file() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = filled(disk, clock)
    log.close()
    names = sorted(name for name in files_in(disk) if name.endswith(".delivery"))
    assert names == [f"{base:020d}.delivery" for base in (0, 24)]


@pytest.mark.parametrize("harm", ["missing", "cut", "changed", "another's", "unreadable"])
def test_an_index_that_is_not_the_segments_own_is_built_again(harm: str, builds: list[int]) -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = filled(disk, clock)
    expected = schedule_in(read_all(log))
    log.close()
    files, name = files_in(disk), f"{0:020d}.delivery"
    own = files.pop(name)
    if harm != "missing":
        files[name] = {
            "cut": own[:-1],
            "changed": own[:20] + bytes([own[20] ^ 1]) + own[21:],
            "another's": files[f"{24:020d}.delivery"],
            "unreadable": own,
        }[harm]
    disk = disk_with(files)
    log = open_log(disk, clock)
    if harm == "unreadable":
        disk.fail("read", errno.EIO, path=f"*{name}", times=None)
    assert by_index(log) == expected
    assert builds == [0]


def test_a_large_segment_without_an_index_is_read_in_parts(
    monkeypatch: pytest.MonkeyPatch, builds: list[int]
) -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = filled(disk, clock)
    expected = schedule_in(read_all(log))
    log.close()
    disk.remove(f"{FOLDER}/{0:020d}.delivery")
    monkeypatch.setattr(segment_reader, "_BUILD_BYTES", 1)
    log = open_log(disk, clock)
    assert by_index(log) == expected
    assert len(builds) > 1
    assert not log.delivery_span(Offset(0)).is_indexed


def test_a_folder_from_before_there_were_such_indexes_opens_and_goes_on() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = filled(disk, clock)
    log.close()
    files = files_in(disk)
    for base in (0, 12, 24):
        name = f"{base:020d}.index"
        files[name] = without_delivery(name, files[name])
    disk = disk_with({name: data for name, data in files.items() if ".delivery" not in name})
    log = open_log(disk, clock)
    log.append([scheduled(count=4, seed=9)])
    expected = schedule_in(read_all(log))
    assert by_index(log) == expected
    clock.now_us += 2 * SECOND_US
    log.append([scheduled(count=4, seed=10)])
    log.close()
    log = open_log(disk, clock)
    assert by_index(log) == schedule_in(read_all(log))
    names = sorted(name for name in files_in(disk) if name.endswith(".delivery"))
    assert names == [f"{base:020d}.delivery" for base in (48, 52)], "those written since have one"


def without_delivery(name: str, data: bytes) -> bytes:
    """An offset index as earlier versions wrote it."""
    index = SparseIndex.decode(name, data)
    assert index is not None
    index.delivery = None
    return index.encode(name)


def test_a_cut_log_forgets_what_it_cut_and_indexes_what_follows() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = filled(disk, clock)
    log.truncate(Offset(5))
    log.append([scheduled(count=4, seed=20)])
    expected = schedule_in(read_all(log))
    assert by_index(log) == expected
    disk.kill()
    log = open_log(disk, clock)
    assert by_index(log) == schedule_in(read_all(log)) == expected


def test_a_replica_indexes_what_it_copies() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log, copy = filled(disk, clock), open_log(SimulatedDisk(2), clock)
    for entry in log.read(Offset(0), 1 << 20) + log.read(Offset(12), 1 << 20):
        copy.stage_replica(entry)
    copy.checkpoint()
    assert by_index(copy) == schedule_in(read_all(copy))
    assert by_index(copy).priorities


def test_a_segment_is_closed_once_its_index_is_large() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = open_log(disk, clock, segment_bytes=1 << 30)
    for seed in range(40):
        log.append([scheduled(10, count=5, seed=seed)])
    assert segment_count(log) > 3
    assert by_index(log) == schedule_in(read_all(log))


def test_indexes_of_closed_segments_leave_memory() -> None:
    log = filled(SimulatedDisk(1), SetClock())
    assert log.delivery_span_in_memory(Offset(0)) is None
    assert log.delivery_span_in_memory(Offset(24)) is not None


def test_publish_times_in_an_index_are_never_far_apart() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = open_log(disk, clock, segment_age_s=3600, index_interval_bytes=1 << 20)
    for seed in range(100):
        log.append([batch(10, seed=seed)])
        clock.now_us += 5 * SECOND_US
    span = log.delivery_span(Offset(50))
    assert span.published_bases[0] <= 50
    assert max(span.published_times[1:] - span.published_times[:-1]) <= 20 * SECOND_US
    assert len(span.published_bases) < 25
