"""A log that follows another: the same entries at the same offsets, on a disk of its own."""

from __future__ import annotations

import msgspec
import pytest

from quiver.cluster.replica.epochs import EpochStart
from quiver.cluster.replica.replica_log import REPLICA, ReplicaLog
from quiver.errors import CorruptLog, LogError
from quiver.log.partition_log import PartitionLog
from quiver.log.retention import RetentionLimits
from quiver.log.segmented_log import SegmentedLog
from quiver.model.batch import StoredBatch
from quiver.model.envelope import entries_in, remark
from quiver.model.ids import LeaderEpoch, Offset
from quiver.model.mirror.failback import Cut
from quiver.model.topic import Durability
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.log.small_logs import FOLDER, SMALL, SetClock, batch, facts, open_log, read_all


def original(count: int = 12, *, size: int = 300) -> list[StoredBatch]:
    """Entries of a leader that synced each before the next; the epoch changes on the way."""
    log = open_log(SimulatedDisk(0))
    stored = []
    for seed in range(count):
        epoch = LeaderEpoch(1 + seed // 5)
        stored += log.append([batch(size, count=2, seed=seed)], epoch)
    return stored


def sent(entries: list[StoredBatch]) -> list[StoredBatch]:
    """The same after a journey over the wire."""
    return entries_in(b"".join(buffer for entry in entries for buffer in entry.buffers()))


def copy(log: SegmentedLog, entries: list[StoredBatch]) -> None:
    for entry in entries:
        log.stage_replica(entry)
    commit = log.begin_commit()
    assert commit is not None
    log.run(commit)


def test_a_copy_holds_what_the_original_holds() -> None:
    entries = original()
    disk = SimulatedDisk(1)
    log = open_log(disk, SetClock(5))
    copy(log, sent(entries[:7]))
    copy(log, sent(entries[7:]))
    assert read_all(log) == [facts(entry) for entry in entries]
    assert log.epoch == entries[-1].epoch
    log.close()
    assert read_all(open_log(disk)) == [facts(entry) for entry in entries]


def test_a_copy_has_durable_marks_of_its_own() -> None:
    entries = original()
    log = open_log(SimulatedDisk(1), segment_bytes=1 << 20)
    copy(log, sent(entries[:7]))
    copy(log, sent(entries[7:]))
    marks = [entry.durable_offset for entry in log.read(Offset(0), 1 << 20)]
    assert marks == [0] * 7 + [14] * 5
    assert [entry.durable_offset for entry in entries] == list(range(0, 24, 2))


def test_an_entry_with_another_mark_is_intact_and_otherwise_the_same() -> None:
    entry = original(3)[-1]
    other = remark(entry, Offset(1))
    (read,) = sent([other])
    assert read.durable_offset == 1 != entry.durable_offset
    assert facts(read) == facts(entry)


def test_an_entry_that_does_not_follow_is_refused_and_leaves_nothing() -> None:
    entries = original()
    log = open_log(SimulatedDisk(1))
    copy(log, entries[:2])
    for wrong in (entries[3], entries[1], entries[0]):
        with pytest.raises(LogError):
            log.stage_replica(wrong)
    assert log.begin_commit() is None
    copy(log, entries[2:3])
    assert read_all(log) == [facts(entry) for entry in entries[:3]]


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_amid_a_copy_is_never_taken_for_damage(seed: int) -> None:
    """With the leader's marks it would be: they speak of what was synced on another disk."""
    entries = original(10, size=700)
    disk = SimulatedDisk(seed)
    log = open_log(disk, segment_bytes=1 << 20, checkpoint_bytes=1 << 20)
    copy(log, sent(entries[:3]))
    for entry in sent(entries[3:]):
        log.stage_replica(entry)
    commit = log.begin_commit(sync=False)
    assert commit is not None
    commit.run()
    disk.crash()
    again = open_log(disk, segment_bytes=1 << 20, checkpoint_bytes=1 << 20)
    assert again.next_offset >= entries[2].next_offset
    kept = read_all(again)
    assert kept == [facts(entry) for entry in entries[: len(kept)]]


def test_a_log_can_begin_where_another_has_got_to() -> None:
    entries = original()
    disk = SimulatedDisk(1)
    log = SegmentedLog(FOLDER, disk, SetClock(), SMALL, first_offset=entries[4].base_offset)
    assert (log.start_offset, log.next_offset) == (8, 8)
    copy(log, entries[4:])
    log.close()
    again = SegmentedLog(FOLDER, disk, SetClock(), SMALL, first_offset=Offset(999))
    assert again.start_offset == 8, "a log that is there begins where it began"
    assert read_all(again) == [facts(entry) for entry in entries[4:]]


async def held(
    disk: SimulatedDisk, cut: Cut | None = None, *, may_lack_end: bool = False
) -> ReplicaLog:
    async def here(call):  # type: ignore[no-untyped-def]
        return call()

    return await ReplicaLog.open(
        FOLDER,
        SMALL,
        disk=disk,
        clock=ManualClock(),
        run_blocking=here,
        cut_of=lambda: cut,
        may_lack_end=may_lack_end,
    )


STARTS = (
    EpochStart(LeaderEpoch(1), Offset(0)),
    EpochStart(LeaderEpoch(2), Offset(10)),
    EpochStart(LeaderEpoch(3), Offset(20)),
)


class TestHeldLog:
    @async_test
    async def test_the_end_that_is_to_go_is_dropped_once_and_for_good(self) -> None:
        disk, entries = SimulatedDisk(1), original()
        log = await held(disk, Cut(begin=14, end=24))
        await log.append(sent(entries))
        log.watermark = Offset(24)
        assert log.is_to_be_cut(Offset(14))
        assert not log.is_to_be_cut(Offset(12))
        await log.drop_cut()
        assert (log.log.next_offset, log.watermark) == (14, 14)
        await log.drop_cut()
        disk.crash()
        again = await held(disk)
        assert (again.log.next_offset, again.watermark, again.history.last_epoch) == (14, 14, 2)

    @async_test
    async def test_an_end_that_nobody_looked_at_is_not_dropped(self) -> None:
        log = await held(SimulatedDisk(1), Cut(begin=14, end=20))
        await log.append(sent(original()))
        await log.drop_cut()
        assert log.log.next_offset == 24

    @async_test
    async def test_epochs_are_there_after_a_crash(self) -> None:
        disk = SimulatedDisk(3)
        log = await held(disk)
        await log.append(sent(original()))
        assert log.history.starts == STARTS
        disk.crash()
        assert (await held(disk)).history.starts == STARTS

    @async_test
    async def test_epochs_are_read_from_the_entries_if_their_file_is_gone_or_damaged(self) -> None:
        for spoil in (
            lambda disk: disk.remove(f"{FOLDER}/{REPLICA}"),
            lambda disk: disk.flip_bit(f"{FOLDER}/{REPLICA}", 6, 3),
        ):
            disk = SimulatedDisk(3)
            log = await held(disk)
            await log.append(sent(original()))
            await log.close()
            spoil(disk)
            assert (await held(disk)).history.starts == STARTS

    @async_test
    async def test_an_epoch_whose_entries_a_crash_took_is_forgotten(self) -> None:
        disk = SimulatedDisk(3)
        log = await held(disk)
        await log.append(sent(original(7)))
        await log.begin_epoch(LeaderEpoch(9))
        disk.crash()
        again = await held(disk)
        assert again.history.starts == STARTS[:2]
        assert again.log.next_offset == 14

    @async_test
    async def test_cutting_takes_epochs_and_watermark_along(self) -> None:
        disk = SimulatedDisk(3)
        log = await held(disk)
        await log.append(sent(original()))
        log.watermark = Offset(22)
        await log.truncate(Offset(12))
        assert log.history.starts == STARTS[:2]
        disk.kill()
        again = await held(disk)
        assert (again.log.next_offset, again.watermark) == (12, 12)

    @async_test
    async def test_a_log_that_ends_before_what_was_committed_is_damaged(self) -> None:
        disk = SimulatedDisk(3)
        log = await held(disk)
        await log.append(sent(original()))
        log.watermark = log.log.next_offset
        await log.close()
        bare = await PartitionLog.open(FOLDER, disk=disk, clock=ManualClock(), settings=SMALL)
        await bare.truncate(Offset(6))
        await bare.close()
        with pytest.raises(CorruptLog, match="committed"):
            await held(disk)
        loose = await held(disk, may_lack_end=True)
        assert (loose.log.next_offset, loose.watermark) == (6, 6)

    @async_test
    async def test_with_another_durability_other_offsets_are_safe(self) -> None:
        log = await held(SimulatedDisk(3))
        lazy = msgspec.structs.replace(SMALL, durability=Durability.OS)
        await log.reconfigure(lazy)
        await log.append(sent(original()))
        assert log.log.durable_offset < log.safe_offset == 24
        await log.reconfigure(SMALL)
        assert log.log.durable_offset == log.safe_offset == 24

    @async_test
    async def test_retention_drops_nothing_that_is_not_committed(self) -> None:
        disk = SimulatedDisk(3)
        log = await held(disk)
        for entry in sent(original(size=1500)):
            await log.append([entry])
        log.watermark = Offset(11)
        assert 4 < await log.retain(RetentionLimits(messages=0)) <= 11
        log.watermark = Offset(24)
        assert await log.retain(RetentionLimits(messages=0)) == 24
        await log.close()
        again = await held(disk)
        assert (again.log.start_offset, again.history.last_epoch) == (24, 3)

    @async_test
    async def test_a_cut_that_leaves_no_entry_leaves_no_epoch(self) -> None:
        log = await held(SimulatedDisk(3))
        await log.append(sent(original()))
        log.watermark = Offset(24)
        await log.retain(RetentionLimits(messages=0))
        assert log.history.last_epoch == 3
        await log.truncate(Offset(24))
        assert log.history.starts == ()

    @async_test
    async def test_scrubbing_finds_rot_that_nobody_has_read(self) -> None:
        disk = SimulatedDisk(3)
        log = await held(disk)
        await log.append(sent(original()))
        await log.scrub()
        disk.flip_bit(f"{FOLDER}/{0:020d}.log", 150, 1)
        with pytest.raises(CorruptLog):
            await log.scrub()
