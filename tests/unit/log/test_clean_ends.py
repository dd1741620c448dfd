"""A stop in good order leaves one file for all logs, and what it says makes the next start quick."""

from __future__ import annotations

import pytest

from quiver.errors import CorruptLog, LogFailed
from quiver.log.clean_ends import STOPPED, CleanEnds
from quiver.log.files import segment_path
from quiver.log.log_context import LogContext
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.ids import Offset
from quiver.model.topic import Durability
from quiver.testing.disk import SimulatedCrash, SimulatedDisk
from tests.unit.log.small_logs import SetClock, batch

ROOT = "/data"


def opened(
    disk: SimulatedDisk, ends: CleanEnds, name: str = "log", **settings: object
) -> SegmentedLog:
    return SegmentedLog(
        f"{ROOT}/{name}",
        disk,
        SetClock(),
        LogSettings(**settings),  # type: ignore[arg-type]
        context=LogContext(ends=ends),
    )


def stopping(disk: SimulatedDisk) -> CleanEnds:
    disk.make_folder(ROOT)
    ends = CleanEnds.load(disk, ROOT)
    ends.begin_stop()
    return ends


def stopped(disk: SimulatedDisk, count: int = 5) -> None:
    """A log with so many entries, closed in good order."""
    ends = stopping(disk)
    log = opened(disk, ends)
    log.append([batch(100, seed=seed) for seed in range(count)])
    log.close()
    ends.save(disk)


def test_closing_a_log_that_is_synced_writes_nothing() -> None:
    disk = SimulatedDisk(1)
    log = opened(disk, stopping(disk))
    log.append([batch(100)])
    before = disk.operation_count
    log.close()
    assert disk.operation_count == before


def test_opening_what_was_stopped_in_good_order_writes_nothing() -> None:
    disk = SimulatedDisk(1)
    stopped(disk)
    ends = CleanEnds.load(disk, ROOT)
    before = disk.operation_count
    log = opened(disk, ends)
    # Opening a file for writing counts; nothing is written, synced, renamed or removed.
    assert disk.operation_count <= before + 1
    assert log.next_offset == 5


@pytest.mark.parametrize("seed", range(20))
def test_what_was_appended_survives_a_power_cut_after_the_stop(seed: int) -> None:
    disk = SimulatedDisk(seed)
    stopped(disk)
    disk.crash()
    ends = CleanEnds.load(disk, ROOT)
    assert len(ends) == 1
    log = opened(disk, ends)
    assert [entry.base_offset for entry in log.read(Offset(0), 1 << 20)] == [0, 1, 2, 3, 4]
    log.append([batch(100, seed=9)])
    disk.crash()
    again = opened(disk, CleanEnds.load(disk, ROOT))
    assert again.next_offset == 6


@pytest.mark.parametrize("seed", range(20))
def test_the_first_append_after_a_stop_survives_a_power_cut(seed: int) -> None:
    disk = SimulatedDisk(seed)
    stopped(disk, count=0)
    opened(disk, CleanEnds.load(disk, ROOT)).append([batch(100)])
    disk.crash()
    assert opened(disk, CleanEnds.load(disk, ROOT)).next_offset == 1


@pytest.mark.parametrize("loses_power", [True, False])
def test_a_crash_at_any_point_of_a_stop_and_a_start_loses_nothing(loses_power: bool) -> None:
    crashed, step = True, 0
    while crashed:
        step += 1
        disk = SimulatedDisk(step)
        stopped(disk)
        disk.crash_at(disk.operation_count + step)
        crashed = False
        appended = 5
        try:
            ends = stopping(disk)
            log = opened(disk, ends, rescan_bytes=500)
            log.append([batch(100, seed=appended)])
            appended += 1
            log.close()
            ends.save(disk)
        except (SimulatedCrash, LogFailed):
            crashed = True
        if loses_power:
            disk.crash()
        else:
            disk.kill()
        log = opened(disk, CleanEnds.load(disk, ROOT))
        assert appended <= log.next_offset <= 6
        log.append([batch(100, seed=9)])
        disk.crash()
        assert opened(disk, CleanEnds.load(disk, ROOT)).next_offset == log.next_offset
    assert step > 5


def test_a_damaged_last_entry_is_damage_after_a_stop_and_torn_after_a_kill() -> None:
    for is_clean in (True, False):
        disk = SimulatedDisk(1)
        stopped(disk)
        ends = CleanEnds.load(disk, ROOT) if is_clean else CleanEnds(ROOT)
        path = segment_path(f"{ROOT}/log", Offset(0))
        disk.flip_bit(path, disk.size(path) - 20, 3)
        if is_clean:
            with pytest.raises(CorruptLog):
                opened(disk, ends)
        else:
            assert opened(disk, ends).next_offset == 4


def test_a_log_that_is_shorter_than_it_was_is_damaged() -> None:
    disk = SimulatedDisk(1)
    stopped(disk)
    path = segment_path(f"{ROOT}/log", Offset(0))
    file = disk.open_append(path)
    file.truncate(8)
    file.close()
    with pytest.raises(CorruptLog):
        opened(disk, CleanEnds.load(disk, ROOT))


def test_an_end_is_of_no_use_once_somebody_else_wrote_a_checkpoint() -> None:
    disk = SimulatedDisk(1)
    stopped(disk)
    ends = CleanEnds.load(disk, ROOT)
    log = opened(disk, CleanEnds(ROOT))
    log.append([batch(100, seed=7)])
    log.checkpoint()
    log.close()
    again = opened(disk, ends)
    assert again.next_offset == 6


def test_the_file_is_gone_for_good_once_it_was_read() -> None:
    disk = SimulatedDisk(1)
    stopped(disk)
    assert disk.exists(f"{ROOT}/{STOPPED}")
    CleanEnds.load(disk, ROOT)
    disk.crash()
    assert not disk.exists(f"{ROOT}/{STOPPED}")


def test_logs_that_nobody_opened_keep_their_ends_at_the_next_stop() -> None:
    disk = SimulatedDisk(1)
    ends = stopping(disk)
    for name in ("a", "b"):
        log = opened(disk, ends, name)
        log.append([batch(100)])
        log.close()
    ends.save(disk)
    ends = stopping(disk)
    opened(disk, ends, "b").close()
    ends.save(disk)
    again = CleanEnds.load(disk, ROOT)
    assert again.take(f"{ROOT}/a") is not None
    assert again.take(f"{ROOT}/b") is not None
    assert again.take(f"{ROOT}/b") is None


def test_the_names_of_folders_with_logs_are_known_though_the_folders_got_lost() -> None:
    disk = SimulatedDisk(1)
    ends = stopping(disk)
    for name in ("topics/a@1/0", "topics/a@1/0/state", "topics/b@2/7", "other/c"):
        log = opened(disk, ends, name)
        log.append([batch(100)])
        log.close()
    ends.save(disk)
    disk.remove_folder(f"{ROOT}/topics")
    assert CleanEnds.load(disk, ROOT).names_in(f"{ROOT}/topics") == {"a@1", "b@2"}


def test_a_log_that_is_closed_while_the_node_runs_leaves_no_end() -> None:
    disk = SimulatedDisk(1)
    disk.make_folder(ROOT)
    ends = CleanEnds(ROOT)
    opened(disk, ends).close()
    assert len(ends) == 0


def test_a_damaged_file_says_nothing() -> None:
    disk = SimulatedDisk(1)
    stopped(disk)
    disk.flip_bit(f"{ROOT}/{STOPPED}", 10, 1)
    assert len(CleanEnds.load(disk, ROOT)) == 0


def test_many_entries_since_the_last_checkpoint_leave_one_at_the_end() -> None:
    disk = SimulatedDisk(1)
    log = opened(disk, stopping(disk), rescan_bytes=1000)
    log.append([batch(100, seed=seed) for seed in range(20)])
    before = disk.operation_count
    log.close()
    assert disk.operation_count > before


def test_a_stop_syncs_what_was_only_written() -> None:
    disk = SimulatedDisk(1)
    ends = stopping(disk)
    log = opened(disk, ends, durability=Durability.INTERVAL)
    log.append([batch(100, seed=seed) for seed in range(3)])
    log.close()
    ends.save(disk)
    disk.crash()
    assert opened(disk, CleanEnds.load(disk, ROOT)).next_offset == 3
