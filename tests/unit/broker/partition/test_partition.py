"""One partition: repeats end as their originals do, and producers are known again after anything."""

from __future__ import annotations

import asyncio
import errno

import pytest

from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers import snapshots
from quiver.broker.partition.producers.in_flight import UNKNOWN_OFFSET, Placed
from quiver.broker.partition.producers.sessions import RECENT_BATCHES, StoredRange
from quiver.broker.partition.producers.snapshots import PRODUCERS
from quiver.errors import DiskFull, LogFailed, PartitionUnavailable, SequenceGap
from quiver.log.disk.disk import Disk
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.guard import check_batch
from quiver.model.ids import ProducerId
from quiver.model.topic import Durability
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test, turns
from tests.unit.broker.broker_doubles import Gate, batch_of, stamp

FOLDER = "/data/topic@1/0"


async def _open(
    disk: Disk, gate: Gate | None = None, durability: Durability = Durability.FSYNC
) -> Partition:
    return await Partition.open(
        FOLDER,
        LogSettings(durability=durability),
        disk=disk,
        clock=ManualClock(),
        run_blocking=gate or Gate(),
    )


def _publish(
    partition: Partition,
    sequence: int,
    count: int = 1,
    *,
    producer: int = 1,
    own: int | None = None,
) -> asyncio.Future[Placed]:
    batch = batch_of(*[b"p"] * count, stamped=stamp(producer, sequence), sequence=own)
    return partition.publish(batch, check_batch(batch, 1 << 20).rows)


# ---------------------------------------------------------------------- repeats


@async_test
async def test_a_repeat_has_the_offset_of_the_original() -> None:
    partition = await _open(SimulatedDisk(1))
    await _publish(partition, 0, 5, producer=9)
    original = await _publish(partition, 0, 3)
    repeat = await _publish(partition, 0, 3)
    assert isinstance(repeat, StoredRange)
    assert (repeat.base_offset, repeat.append_time) == (original.base_offset, original.append_time)
    assert partition.log.next_offset == 8
    await partition.close()


@async_test
async def test_a_repeat_of_a_batch_under_way_is_acknowledged_when_the_original_is() -> None:
    gate = Gate()
    partition = await _open(SimulatedDisk(1), gate)
    gate.shut()
    original, repeat = _publish(partition, 0), _publish(partition, 0)
    await turns()
    assert not original.done()
    assert not repeat.done()
    gate.open()
    assert (await repeat).base_offset == (await original).base_offset
    await partition.close()


@async_test
async def test_a_repeat_whose_place_is_forgotten_waits_for_the_original_all_the_same() -> None:
    gate = Gate()
    partition = await _open(SimulatedDisk(1), gate)
    gate.shut()
    originals = [_publish(partition, sequence) for sequence in range(RECENT_BATCHES + 5)]
    repeat = _publish(partition, 0)
    await turns()
    assert not repeat.done()
    gate.open()
    assert (await repeat).base_offset == UNKNOWN_OFFSET
    assert all(original.done() for original in originals)
    await partition.close()


@async_test
async def test_a_repeat_of_a_batch_that_fails_fails_too() -> None:
    disk, gate = SimulatedDisk(1), Gate()
    partition = await _open(disk, gate)
    disk.fail("append", errno.EIO, path="*.log")
    gate.shut()
    original, repeat = _publish(partition, 0), _publish(partition, 0)
    gate.open()
    for placed in (original, repeat):
        with pytest.raises(LogFailed):
            await placed
    await partition.close()


@async_test
async def test_a_repeat_that_comes_after_the_failure_is_told_at_once() -> None:
    disk = SimulatedDisk(1)
    partition = await _open(disk)
    disk.fail("append", errno.ENOSPC, path="*.log")
    with pytest.raises(LogFailed):
        await _publish(partition, 0)
    repeat = _publish(partition, 0)
    assert repeat.done()
    with pytest.raises(DiskFull):
        await repeat
    await partition.close()


@async_test
async def test_a_repeat_while_the_partition_closes_holds_nobody_up() -> None:
    gate = Gate()
    partition = await _open(SimulatedDisk(1), gate)
    gate.shut()
    original = _publish(partition, 0)
    closing = asyncio.create_task(partition.close())
    await turns()
    repeat = _publish(partition, 0)
    await turns()
    gate.open()
    await closing
    assert (await repeat).base_offset == (await original).base_offset


@async_test
async def test_batches_keep_the_order_in_which_they_were_given() -> None:
    gate = Gate()
    partition = await _open(SimulatedDisk(1), gate)
    gate.shut()
    placed = [_publish(partition, 0, count, producer=count) for count in (3, 1, 4, 2)]
    gate.open()
    assert [(await place).base_offset for place in placed] == [0, 3, 4, 8]
    await partition.close()


# ---------------------------------------------------------------------- after a restart


async def _expected(partition: Partition, producer: int = 1) -> int:
    """The sequence that the partition wants next of a producer."""
    with pytest.raises(SequenceGap) as refused:
        _publish(partition, 1 << 40, producer=producer)
    return int(refused.value.details["expected"])


@pytest.mark.parametrize("end", ["close", "kill", "crash"])
def test_producers_are_known_again(end: str) -> None:
    @async_test
    async def check() -> None:
        disk = SimulatedDisk(1)
        partition = await _open(disk)
        for sequence in (0, 3, 6):
            await _publish(partition, sequence, 3)
        if end == "close":
            await partition.close()
        else:
            getattr(disk, end)()
        partition = await _open(disk)
        assert await _expected(partition) == 9
        repeat = await _publish(partition, 3, 3)
        assert isinstance(repeat, StoredRange)
        assert repeat.base_offset == 3
        await partition.close()

    check()


@async_test
async def test_producers_are_known_also_if_retention_removed_all_that_they_published() -> None:
    disk = SimulatedDisk(1)
    partition = await _open(disk)
    for sequence in range(3):
        await _publish(partition, sequence)
    assert await partition.retain(RetentionLimits(messages=0)) == 3
    disk.crash()
    partition = await _open(disk)
    assert await _expected(partition) == 3
    await partition.close()


@async_test
async def test_producers_are_known_from_a_snapshot_and_the_entries_since() -> None:
    disk = SimulatedDisk(1)
    partition = await _open(disk)
    await _publish(partition, 0, 3)
    await partition.close()
    partition = await _open(disk)
    await _publish(partition, 3, 2)
    disk.crash()
    partition = await _open(disk)
    assert await _expected(partition) == 5
    await partition.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_snapshot_ahead_of_a_log_that_lost_its_tail_is_not_believed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_SNAPSHOT_BYTES", 1)

    @async_test
    async def check() -> None:
        disk = SimulatedDisk(seed)
        partition = await _open(disk, durability=Durability.OS)
        for sequence in range(10):
            await _publish(partition, sequence)
            await turns()
        disk.crash()
        partition = await _open(disk)
        left = partition.log.next_offset
        assert await _expected(partition) == left
        # Another producer takes the offsets that were lost, and the machine dies once more.
        for sequence in range(10):
            await _publish(partition, sequence, producer=2)
        disk.crash()
        partition = await _open(disk)
        assert await _expected(partition) == left
        assert await _expected(partition, 2) == 10
        await partition.close()

    check()


@pytest.mark.parametrize("damage", [b"", b"\0", b"\xff" * 40])
def test_a_damaged_snapshot_is_made_good_from_the_log(damage: bytes) -> None:
    @async_test
    async def check() -> None:
        disk = SimulatedDisk(1)
        partition = await _open(disk)
        await _publish(partition, 0, 7)
        await partition.close()
        file = disk.open_append(f"{FOLDER}/{PRODUCERS}")
        file.truncate(0)
        file.append([damage])
        file.close()
        for _ in range(2):
            partition = await _open(disk)
            assert await _expected(partition) == 7
            await partition.close()

    check()


@pytest.mark.parametrize(
    ("code", "expected"), [(errno.EIO, PartitionUnavailable), (errno.EMFILE, PartitionUnavailable)]
)
def test_a_snapshot_that_cannot_be_read_makes_the_partition_unavailable_for_now(
    code: int, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_WORTH_BYTES", 0)

    @async_test
    async def check() -> None:
        disk = SimulatedDisk(1)
        partition = await _open(disk)
        await _publish(partition, 0, 7)
        await partition.close()
        disk.fail("read", code, path=f"*{PRODUCERS}")
        with pytest.raises(expected):
            await _open(disk)
        partition = await _open(disk)
        assert await _expected(partition) == 7
        await partition.close()

    check()


# ---------------------------------------------------------------------- a producer's own sequence


@async_test
async def test_the_own_sequence_that_is_told_is_of_stored_messages_only() -> None:
    disk, gate = SimulatedDisk(1), Gate()
    partition = await _open(disk, gate)
    await _publish(partition, 0, own=10)
    gate.shut()
    under_way = _publish(partition, 1, own=11)
    asked = asyncio.create_task(partition.last_user_sequence(ProducerId(1)))
    await turns()
    assert not asked.done()
    disk.fail("append", errno.EIO, path="*.log")
    gate.open()
    with pytest.raises(PartitionUnavailable):
        await asked
    with pytest.raises(LogFailed):
        await under_way
    await partition.close()
    partition = await _open(disk)
    assert await partition.last_user_sequence(ProducerId(1)) == 10
    await partition.close()


@async_test
async def test_the_own_sequence_is_known_again_after_a_kill() -> None:
    disk = SimulatedDisk(1)
    partition = await _open(disk)
    await _publish(partition, 0, own=5)
    await _publish(partition, 1)
    disk.kill()
    partition = await _open(disk)
    assert await partition.last_user_sequence(ProducerId(1)) == 5
    await partition.close()


@async_test
async def test_a_failed_log_does_not_hold_up_the_snapshot_or_the_closing() -> None:
    disk, gate = SimulatedDisk(1), Gate()
    partition = await _open(disk, gate)
    partition._saved._unsaved_bytes = 1 << 40
    gate.shut()
    disk.fail("append", errno.EIO, path="*.log")
    placed = _publish(partition, 0)
    await turns()
    gate.open()
    with pytest.raises(LogFailed):
        await placed
    await partition.close()
