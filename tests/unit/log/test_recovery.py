"""Opening a log after a stop: what is cut, what is refused, and what is written again."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from quiver.errors import CorruptLog, LogFailed, UnsupportedFormat
from quiver.log.disk.real_disk import RealDisk
from quiver.log.retention import RetentionLimits
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.batch import UnstoredBatch
from quiver.model.envelope import ENVELOPE_SIZE, seal_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.schema import PAYLOAD
from quiver.model.topic import Durability
from quiver.testing.disk import SimulatedCrash, SimulatedDisk
from quiver.testing.simulated_handles import SimulatedAppendFile
from tests.unit.log.log_witness import Witness
from tests.unit.log.small_logs import (
    FOLDER,
    SECOND_US,
    SMALL,
    SetClock,
    batch,
    disk_with,
    facts,
    files_in,
    open_log,
    read_all,
    segment_count,
)

SEGMENT = f"{0:020d}.log"
PATH = f"{FOLDER}/{SEGMENT}"
ENTRY = ENVELOPE_SIZE + 104
"""Size of an entry made of ``batch(100)``."""


def killed_log(
    *commits: list[UnstoredBatch], durability: Durability = Durability.FSYNC
) -> SimulatedDisk:
    """A log that got these commits, and whose process died without closing it."""
    disk = SimulatedDisk(1)
    log = open_log(disk, durability=durability)
    for batches in commits:
        log.append(batches)
    disk.kill()
    return disk


def with_bytes(disk: SimulatedDisk, position: int, data: bytes) -> dict[str, bytes]:
    files = files_in(disk)
    content = files[SEGMENT]
    files[SEGMENT] = content[:position] + data + content[position + len(data) :]
    return files


def newer_version(entry: bytes) -> bytes:
    """The same entry as a later format version would have it, with its leader sum right."""
    prefix = entry[:4] + struct.pack("<H", 3) + entry[6:12]
    return prefix + struct.pack("<I", crc32c(entry[16:ENVELOPE_SIZE], crc32c(prefix))) + entry[16:]


def refused_untouched(
    files: dict[str, bytes], error: type[Exception]
) -> pytest.ExceptionInfo[Exception]:
    """Opening raises this error, and changes nothing."""
    disk = disk_with(files)
    with pytest.raises(error) as caught:
        open_log(disk)
    assert files_in(disk) == files
    return caught


# ---------------------------------------------------------------------- torn or damaged


@pytest.mark.parametrize("within", [0, 9, 14, 20, 50, 60, ENVELOPE_SIZE, ENVELOPE_SIZE + 99])
@pytest.mark.parametrize("entry", [0, 1])
def test_a_damaged_entry_that_a_later_one_says_was_synced_is_an_error_and_nothing_is_cut(
    entry: int, within: int
) -> None:
    disk = killed_log([batch(seed=1)], [batch(seed=2)], [batch(seed=3)])
    disk.flip_bit(PATH, entry * ENTRY + within, 3)
    caught = refused_untouched(files_in(disk), CorruptLog)
    assert caught.value.details == {"file": PATH, "position": entry * ENTRY}  # type: ignore[attr-defined]


def test_damage_in_the_last_entry_cannot_be_told_from_a_torn_write() -> None:
    disk = killed_log([batch(seed=1)], [batch(seed=2)])
    disk.flip_bit(PATH, ENTRY + 100, 3)
    log = open_log(disk)
    assert (log.next_offset, log.recovery_cut_bytes) == (1, ENTRY)


def test_a_checkpoint_protects_the_last_entry_too() -> None:
    disk = SimulatedDisk(1)
    log = open_log(disk)
    log.append([batch(seed=1)])
    log.append([batch(seed=2)])
    log.checkpoint()
    disk.kill()
    disk.flip_bit(PATH, ENTRY + 100, 3)
    without_indexes = {
        name: data for name, data in files_in(disk).items() if not name.endswith("index")
    }
    refused_untouched(without_indexes, CorruptLog)


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.OS])
def test_unsynced_writes_that_arrived_out_of_order_are_cut_without_an_error(
    durability: Durability,
) -> None:
    disk = killed_log(*([batch(seed=seed)] for seed in range(4)), durability=durability)
    log = open_log(disk_with(with_bytes(disk, ENTRY, bytes(ENTRY))), durability=durability)
    assert (log.next_offset, log.recovery_cut_bytes) == (1, 3 * ENTRY)


def test_a_commit_of_which_only_the_end_arrived_is_cut_and_what_it_followed_stays() -> None:
    disk = killed_log([batch(seed=0)], [batch(seed=1), batch(seed=2), batch(seed=3)])
    log = open_log(disk_with(with_bytes(disk, ENTRY, bytes(ENTRY))))
    assert [entry.body for entry in read_all(log)] == [batch(seed=0).body]


@pytest.mark.parametrize("size", [93, 96, 99])
def test_an_entry_torn_at_any_length_is_cut_and_the_log_goes_on(size: int) -> None:
    disk = killed_log([batch(seed=1)], [batch(size, seed=2)])
    files = files_in(disk)
    for length in range(ENTRY, len(files[SEGMENT])):
        torn = disk_with({**files, SEGMENT: files[SEGMENT][:length]})
        log = open_log(torn)
        assert log.recovery_cut_bytes == length - ENTRY
        log.append([batch(seed=3)])
        torn.kill()
        bodies = [entry.body for entry in read_all(open_log(torn))]
        assert bodies == [batch(seed=1).body, batch(seed=3).body]


@pytest.mark.parametrize("surplus", [1, 7, 8, 87, 88, 5000])
def test_zeros_after_the_last_entry_are_cut(surplus: int) -> None:
    files = files_in(killed_log([batch(seed=1)]))
    files[SEGMENT] += bytes(surplus)
    log = open_log(disk_with(files))
    assert (log.next_offset, log.recovery_cut_bytes) == (1, surplus)


def test_a_torn_entry_whose_body_holds_copies_of_older_entries_is_cut() -> None:
    disk = killed_log([batch(seed=1)], [batch(seed=2)], [batch(seed=3)])
    copies = files_in(disk)[SEGMENT]
    log = open_log(disk)
    log.append([seal_batch(copies, 1, PAYLOAD)])
    disk.kill()
    log = open_log(disk_with(with_bytes(disk, 3 * ENTRY, bytes(8))))
    assert (log.next_offset, log.recovery_cut_bytes) == (3, ENVELOPE_SIZE + 3 * ENTRY)


def test_bytes_that_were_synced_and_are_missing_are_an_error_and_nothing_is_cut() -> None:
    disk = SimulatedDisk(1)
    log = open_log(disk)
    log.append([batch(seed=1)])
    log.append([batch(seed=2)])
    log.close()
    files = files_in(disk)
    files[SEGMENT] = files[SEGMENT][:ENTRY]
    caught = refused_untouched(files, CorruptLog)
    assert "192 bytes that were synced are missing" in str(caught.value)


def test_damage_below_the_checkpoint_does_not_stop_the_rest_from_opening() -> None:
    disk = SimulatedDisk(1)
    log = open_log(disk)
    for seed in range(4):
        log.append([batch(seed=seed)])
    log.close()
    disk.flip_bit(PATH, ENTRY + 100, 0)
    log = open_log(disk)
    with pytest.raises(CorruptLog):
        log.read(Offset(1))
    assert [facts(entry).body for entry in log.read(Offset(2))] == [
        batch(seed=2).body,
        batch(seed=3).body,
    ]


def test_an_entry_at_a_wrong_offset_is_damage_not_a_tear() -> None:
    disk = killed_log([batch(seed=1)], [batch(seed=2)], [batch(seed=3)])
    files = files_in(disk)
    content = files[SEGMENT]
    files[SEGMENT] = content[:ENTRY] + content[2 * ENTRY :]
    refused_untouched(files, CorruptLog)


@pytest.mark.parametrize("times", [1, None])
def test_a_read_error_is_not_taken_for_a_torn_tail(times: int | None) -> None:
    disk = killed_log([batch(seed=1)])
    before = files_in(disk)
    disk.fail("map", errno.EIO, times=times, path="*.log")
    with pytest.raises(CorruptLog, match="cannot be read"):
        open_log(disk)
    disk.heal()
    assert files_in(disk) == before
    assert open_log(disk).next_offset == 1


# ---------------------------------------------------------------------- newer versions


def test_an_entry_of_a_newer_version_is_refused_and_not_cut() -> None:
    disk = killed_log([batch(seed=1)], [batch(seed=2)])
    newer = newer_version(files_in(disk)[SEGMENT][ENTRY:])
    caught = refused_untouched(with_bytes(disk, ENTRY, newer), UnsupportedFormat)
    assert caught.value.details == {"file": PATH, "position": ENTRY, "version": 3}  # type: ignore[attr-defined]


def test_a_torn_entry_before_one_of_a_newer_version_is_not_cut() -> None:
    disk = killed_log([batch(seed=1)], [batch(seed=2)], [batch(seed=3)])
    newer = newer_version(files_in(disk)[SEGMENT][2 * ENTRY :])
    refused_untouched(with_bytes(disk, ENTRY, bytes(ENTRY) + newer), UnsupportedFormat)


def test_a_newer_entry_below_the_checkpoint_is_refused_when_it_is_read_or_passed() -> None:
    disk = SimulatedDisk(1)
    log = open_log(disk)
    for seed in range(3):
        log.append([batch(seed=seed)])
    log.close()
    newer = newer_version(files_in(disk)[SEGMENT][ENTRY : 2 * ENTRY])
    log = open_log(disk_with(with_bytes(disk, ENTRY, newer)))
    assert len(log.read(Offset(0))) == 1
    for offset in (1, 2):
        with pytest.raises(UnsupportedFormat):
            log.read(Offset(offset))


def test_a_newer_checkpoint_is_refused_and_nothing_is_changed() -> None:
    files = files_in(killed_log([batch(seed=1)]))
    body = struct.pack("<4sI", b"QVRC", 2) + b"whatever a newer version says"
    files["checkpoint"] = body + struct.pack("<I", crc32c(body))
    caught = refused_untouched(files, UnsupportedFormat)
    assert caught.value.details == {"file": f"{FOLDER}/checkpoint", "version": 2}  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- failed syncs


@pytest.mark.parametrize("seed", range(30))
def test_what_became_readable_after_a_failed_sync_survives_a_power_cut(seed: int) -> None:
    witness = Witness(SimulatedDisk(seed), SetClock(), SMALL)
    witness.open()
    witness.append([batch(700, seed=1)])
    witness.disk.fail("sync", errno.EIO, path="*.log")
    with pytest.raises(LogFailed):
        witness.append([batch(900, seed=2), batch(800, seed=3)])
    witness.kill()
    log = witness.open()
    assert log.next_offset == 3
    witness.crash()
    assert witness.open().next_offset == 3


@pytest.mark.parametrize("seed", range(30))
def test_a_sync_that_fails_again_in_recovery_is_made_good_by_the_next(seed: int) -> None:
    witness = Witness(SimulatedDisk(seed), SetClock(), SMALL)
    witness.open()
    witness.disk.fail("sync", errno.EIO, path="*.log", times=2)
    with pytest.raises(LogFailed):
        witness.append([batch(900, seed=1), batch(800, seed=2)])
    witness.kill()
    with pytest.raises(LogFailed):
        witness.open()
    witness.open()
    witness.crash()
    assert witness.open().next_offset == 2


def test_only_entries_not_known_to_be_synced_are_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = killed_log([batch(seed=1)], [batch(seed=2)], [batch(seed=3), batch(seed=4)])
    written: list[tuple[int, int]] = []
    monkeypatch.setattr(
        SimulatedAppendFile, "overwrite", lambda _, at, data: written.append((at, len(data)))
    )
    open_log(disk)
    assert written == [(2 * ENTRY, 2 * ENTRY)]


# ---------------------------------------------------------------------- what recovery goes on from


def test_recovery_starts_at_the_checkpoint_and_rebuilds_a_missing_index() -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = open_log(disk, clock)
    for seed in range(12):
        clock.now_us += 10
        log.append([batch(seed=seed)])
    log.checkpoint()
    whole = read_all(log)
    disk.kill()
    files = {name: data for name, data in files_in(disk).items() if not name.endswith("index")}
    rebuilt = disk_with(files)
    log = open_log(rebuilt, clock)
    assert read_all(log) == whole
    assert files_in(rebuilt) == files_in(disk)


@pytest.mark.parametrize("lost", ["nothing", "the checkpoint"])
def test_a_log_whose_newest_segment_is_empty_goes_on_from_its_last_entry(lost: str) -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = open_log(disk, clock)
    log.append([batch(seed=1)], LeaderEpoch(7))
    clock.now_us += 5 * SECOND_US
    disk.fail("append", errno.ENOSPC, partial=0, path=f"*{1:020d}.log")
    with pytest.raises(LogFailed):
        log.append([batch(seed=2)], LeaderEpoch(7))
    disk.kill()
    files = files_in(disk)
    assert files[f"{1:020d}.log"] == b""
    if lost == "the checkpoint":
        del files["checkpoint"]
    clock.now_us -= 60 * SECOND_US
    log = open_log(disk_with(files), clock)
    assert (log.epoch, log.next_offset) == (7, 1)
    first, second = log.read(Offset(0))[0], log.append([batch(seed=3)])[0]
    assert second.append_time >= first.append_time
    assert log.offset_at(Microseconds(first.append_time + 1)) == log.next_offset


@pytest.mark.parametrize(("base", "reason"), [(5, "offset 4 expected"), (2, "offset 3 expected")])
def test_an_empty_segment_that_does_not_join_the_one_before_is_an_error(
    base: int, reason: str
) -> None:
    files = files_in(killed_log([batch(count=3, seed=1)]))
    files[f"{base:020d}.log"] = b""
    with pytest.raises(CorruptLog, match=reason):
        open_log(disk_with(files))


def test_the_epoch_after_a_truncation_is_the_last_entrys_even_after_a_crash() -> None:
    disk = SimulatedDisk(1)
    log = open_log(disk)
    log.append([batch(seed=1)], LeaderEpoch(1))
    log.append([batch(seed=2)], LeaderEpoch(5))
    log.truncate(Offset(1))
    disk.crash()
    assert open_log(disk).epoch == 1


@pytest.mark.parametrize("seed", range(40))
def test_removed_segments_stay_behind_the_checkpoint_that_condemned_them(seed: int) -> None:
    """The rename of a checkpoint can be seen before it is durable; its removals must wait for it."""
    witness = Witness(SimulatedDisk(seed), SetClock(), SMALL)
    witness.open()
    for number in range(4):
        witness.append([batch(seed=number)])
        witness.clock.now_us += 2 * SECOND_US
    witness.disk.fail("sync_folder", errno.EIO)
    with pytest.raises(LogFailed):
        witness.retain(RetentionLimits(before=Offset(2)))
    witness.kill()
    witness.disk.crash_at(witness.disk.operation_count + 2 + seed % 8)
    with pytest.raises(SimulatedCrash):
        witness.open()
    witness.crash()
    assert witness.open().start_offset in (0, 2)


# ---------------------------------------------------------------------- opening that fails


class FailingDisk(RealDisk):
    """The operating system's disk, on which folders can be synced only ``syncs_left`` times more."""

    syncs_left = 1000

    def sync_folder(self, path: str) -> None:
        self.syncs_left -= 1
        if self.syncs_left < 0:
            raise OSError(errno.EIO, "the folder cannot be synced", path)
        super().sync_folder(path)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts descriptors as Linux does")
def test_a_log_that_fails_to_open_lets_go_of_its_files(tmp_path: Path) -> None:
    disk, folder = FailingDisk(), f"{tmp_path}/log"
    SegmentedLog(folder, disk, SetClock(), LogSettings()).close()
    held = len(os.listdir("/proc/self/fd"))
    disk.syncs_left = opened_after = 0
    while True:
        try:
            SegmentedLog(folder, disk, SetClock(), LogSettings()).close()
            break
        except LogFailed:
            assert len(os.listdir("/proc/self/fd")) == held
        opened_after += 1
        disk.syncs_left = opened_after
    assert opened_after >= 3


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts descriptors as Linux does")
@pytest.mark.parametrize("syncs_left", [0, 1])
def test_a_log_that_fails_to_begin_a_segment_lets_go_of_its_files(
    tmp_path: Path, syncs_left: int
) -> None:
    disk, clock = FailingDisk(), SetClock()
    held = len(os.listdir("/proc/self/fd"))
    log = SegmentedLog(f"{tmp_path}/log", disk, clock, SMALL)
    log.append([batch(seed=1)])
    clock.now_us += 2 * SECOND_US
    disk.syncs_left = syncs_left
    with pytest.raises(LogFailed):
        log.append([batch(seed=2)])
    log.close()
    assert len(os.listdir("/proc/self/fd")) == held


@pytest.mark.parametrize(
    "operation", ["make_folder", "exists", "read", "list_folder", "size", "open", "sync", "rename"]
)
def test_a_disk_that_fails_while_the_log_is_opened_is_a_failed_log(operation: str) -> None:
    disk = killed_log([batch(seed=1)])
    open_log(disk)  # leaves a checkpoint to read
    disk.kill()
    disk.fail(operation, errno.EIO)  # type: ignore[arg-type]
    with pytest.raises(LogFailed) as caught:
        open_log(disk)
    assert caught.value.details == {"folder": FOLDER, "errno": errno.EIO}
    assert open_log(disk).next_offset == 1


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_cannot_be_read_is_rebuilt(suffix: str) -> None:
    disk, clock = SimulatedDisk(1), SetClock()
    log = open_log(disk, clock)
    log.append([batch(seed=1)])
    clock.now_us += 2 * SECOND_US
    log.append([batch(seed=2)])
    whole = read_all(log)
    log.close()
    log = open_log(disk, clock)
    disk.fail("read", errno.EIO, path=f"*{suffix}", times=None)
    assert read_all(log) == whole


def test_a_full_disk_stops_appends_and_leaves_every_read() -> None:
    disk = SimulatedDisk(1)
    log = open_log(disk)
    log.append([batch(seed=1)])
    disk.capacity_bytes = disk.size(PATH) + 700
    log.append([batch(seed=2)])
    with pytest.raises(LogFailed) as caught:
        log.append([batch(seed=seed) for seed in range(3, 9)])
    assert caught.value.details["errno"] == errno.ENOSPC
    acknowledged = read_all(log)
    assert len(acknowledged) == 2
    disk.capacity_bytes = None
    log.close()
    assert read_all(open_log(disk))[: len(acknowledged)] == acknowledged


def test_a_new_log_has_no_file_but_its_segment_until_a_checkpoint_is_due() -> None:
    """Each file would be a sync that the first publish waits for."""
    disk = SimulatedDisk(0)
    log = open_log(disk)
    log.append([batch()])
    assert sorted(files_in(disk)) == [f"{0:020d}.log"]
    log.checkpoint()
    assert sorted(files_in(disk)) == [
        *(f"{0:020d}.{kind}" for kind in ("index", "log", "timeindex")),
        "checkpoint",
    ]


def test_a_torn_end_is_cut_off_a_log_that_never_left_a_checkpoint() -> None:
    disk = SimulatedDisk(0)
    open_log(disk).append([batch(100)])
    files = files_in(disk)
    torn = open_log(disk_with({name: data + b"more" for name, data in files.items()}))
    assert (torn.next_offset, torn.recovery_cut_bytes) == (1, 4)


@pytest.mark.parametrize("left", ["index", "timeindex"])
def test_nothing_is_cut_off_a_log_that_has_lost_its_first_checkpoint(left: str) -> None:
    disk = SimulatedDisk(0)
    log = open_log(disk)
    log.append([batch(100)])
    log.checkpoint()
    whole = files_in(disk)
    files = {f"{0:020d}.{kind}": whole[f"{0:020d}.{kind}"] for kind in (left, "log")}
    files[f"{0:020d}.log"] += b"more"
    disk = disk_with(files)
    with pytest.raises(CorruptLog):
        open_log(disk)
    assert files_in(disk) == files


def test_a_second_segment_comes_after_the_first_checkpoint() -> None:
    disk = SimulatedDisk(0)
    log = open_log(disk, checkpoint_bytes=1 << 30)
    log.append([batch(5000, seed=1)])
    assert "checkpoint" not in files_in(disk)
    log.append([batch(4000, seed=2)])
    assert segment_count(log) == 2
    assert "checkpoint" in files_in(disk)
