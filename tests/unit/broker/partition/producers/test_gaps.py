"""Gaps of a copied log: found in its entries, and again after a restart."""

from __future__ import annotations

from quiver.broker.mirror.partition_copy import PartitionCopy
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers.gaps import GAPS_MAX, LogGaps
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.envelope import copy_batch, seal_batch, seal_gap, seal_marker, store_batch
from quiver.model.guard import check_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.schema import PAYLOAD
from quiver.model.transaction import TransactionId
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import Gate, batch_of

NOTED = Microseconds(1_700_000_000_000_000)


def at(offset: int, batch: UnstoredBatch) -> StoredBatch:
    return store_batch(
        batch,
        base_offset=Offset(offset),
        epoch=LeaderEpoch(0),
        append_time=Microseconds(0),
        durable_offset=Offset(0),
    )


def test_a_gap_of_several_entries_is_one() -> None:
    gaps = LogGaps()
    for offset, batch in ((4, seal_gap(10)), (14, seal_gap(6)), (30, seal_gap(1))):
        gaps.record(at(offset, batch))
    assert gaps.ranges == [(4, 20), (30, 31)]
    assert gaps.messages == 17


def test_messages_markers_and_gaps_of_the_source_are_none() -> None:
    gaps = LogGaps()
    gaps.record(at(0, seal_batch(b"body", 3, PAYLOAD)))
    gaps.record(at(3, seal_marker([TransactionId(7 << 24)], is_committed=False)))
    gaps.record(at(4, copy_batch(at(4, seal_gap(5)))))
    assert (gaps.ranges, gaps.messages) == ([], 0)


def test_of_many_gaps_the_newest_are_kept_and_all_are_counted() -> None:
    gaps = LogGaps()
    for number in range(GAPS_MAX + 5):
        gaps.record(at(10 * number, seal_gap(2)))
    assert len(gaps.ranges) == GAPS_MAX
    assert gaps.ranges[0] == (50, 52)
    assert gaps.messages == 2 * (GAPS_MAX + 5)


def test_gaps_are_told_by_when_they_were_found() -> None:
    gaps = LogGaps()
    for offset, noted in ((4, 100), (14, 100), (30, 300)):
        gaps.record(at(offset, seal_gap(10, Microseconds(noted))))
    assert gaps.since(0) == [(100, 20), (300, 10)]
    assert gaps.since(100) == [(300, 10)]


async def _open(disk: SimulatedDisk) -> Partition:
    return await Partition.open(
        "/data/topic@1/0", LogSettings(), disk=disk, clock=ManualClock(), run_blocking=Gate()
    )


async def _with_a_gap(disk: SimulatedDisk) -> Partition:
    partition = await _open(disk)
    copy = PartitionCopy(partition)
    await copy.skip(Offset(0), Offset(5), NOTED, lambda: None)
    batch = batch_of(b"after the gap")
    rows = check_batch(batch, 1 << 20).rows
    await copy.append([(at(5, batch), batch, rows)], lambda: None)
    return partition


@async_test
async def test_a_gap_is_known_after_a_crash() -> None:
    disk = SimulatedDisk(1)
    await _with_a_gap(disk)
    disk.crash()
    partition = await _open(disk)
    assert (partition.gaps.ranges, partition.gaps.messages) == ([(0, 5)], 5)
    assert partition.gaps.since(NOTED - 1) == [(NOTED, 5)]
    await partition.close()


@async_test
async def test_a_gap_is_known_when_retention_has_removed_the_entries_that_fill_it() -> None:
    disk = SimulatedDisk(1)
    partition = await _with_a_gap(disk)
    assert await partition.retain(RetentionLimits(before=Offset(5))) == 5
    await partition.close()
    partition = await _open(disk)
    assert (partition.gaps.ranges, partition.gaps.messages) == ([(0, 5)], 5)
    assert partition.gaps.since(NOTED - 1) == [(NOTED, 5)]
    await partition.close()
