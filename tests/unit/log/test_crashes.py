"""Power is lost in the middle of every single disk operation of a log's life, one after another.

After each loss the log is opened again, and all it acknowledged has to be there, whole, in order and
without gaps; then it has to go on. A second loss comes in the middle of the recovery from the first.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial

import msgspec
import pytest

from quiver.errors import LogFailed
from quiver.log.retention import RetentionLimits
from quiver.log.segmented_log import SegmentedLog
from quiver.model.ids import Offset
from quiver.model.topic import Durability
from quiver.testing.disk import Fault, Operation, SimulatedCrash, SimulatedDisk
from tests.unit.log.log_witness import Witness
from tests.unit.log.small_logs import (
    FOLDER,
    SECOND_US,
    SMALL,
    SetClock,
    batch,
    disk_with,
    effort,
    files_in,
    segment_count,
)

FSYNC, INTERVAL, OS = Durability.FSYNC, Durability.INTERVAL, Durability.OS


def new_witness(seed: int, durability: Durability) -> Witness:
    settings = msgspec.structs.replace(SMALL, durability=durability)
    return Witness(SimulatedDisk(seed), SetClock(), settings)


def live(witness: Witness) -> None:
    """A life with everything in it: appends, rolls by size and age, upkeep, truncation, reopening."""
    clock = witness.clock
    witness.open()
    witness.append([batch(900, seed=1)], epoch=1)
    witness.append([batch(700, count=3, seed=2), batch(50, seed=3)], epoch=1)
    witness.append([batch(3000, seed=4)], epoch=1)
    clock.now_us += 2 * SECOND_US
    witness.append([batch(2500, seed=5), batch(2500, seed=6), batch(300, seed=7)], epoch=2)
    witness.checkpoint()
    witness.append([batch(10, seed=8)], epoch=2)
    clock.now_us -= 5 * SECOND_US
    witness.append([batch(1200, seed=9)], epoch=3)
    assert segment_count(witness.running) == 3
    witness.truncate(5)
    witness.append([batch(600, count=2, seed=10)], epoch=4)
    witness.close()
    witness.open()
    clock.now_us += 8 * SECOND_US
    witness.append([batch(200, seed=11)], epoch=5)
    witness.retain(RetentionLimits(before=Offset(7)))
    assert witness.running.start_offset == 7
    witness.append([batch(900, seed=12)], epoch=5)
    witness.truncate(8)
    witness.append([batch(333, seed=13)], epoch=6)
    witness.retain(RetentionLimits(messages=0))
    witness.append([batch(40, seed=14)], epoch=6)
    witness.close()


def live_without_checkpoints(witness: Witness) -> None:
    """The first life of a log that is hardly used: only what ends its segments leaves a checkpoint."""
    never = msgspec.structs.replace(witness.settings, checkpoint_bytes=1 << 30)
    witness.settings = never
    witness.open()
    witness.append([batch(100, seed=1)], epoch=1)
    witness.append([batch(200, seed=2)], epoch=1)
    witness.clock.now_us += 2 * SECOND_US
    witness.append([batch(300, seed=3), batch(4000, seed=4), batch(4000, seed=5)], epoch=1)
    witness.append([batch(400, seed=6)], epoch=2)
    assert segment_count(witness.running) == 3


def go_on(witness: Witness, seed: int) -> None:
    """A log that was recovered takes appends, and keeps them over one more loss of power."""
    witness.append([batch(100, seed=seed)], epoch=9)
    witness.sync()
    witness.crash()
    witness.open()


def operations_of(durability: Durability) -> int:
    witness = new_witness(0, durability)
    live(witness)
    return witness.disk.operation_count


def interrupted(witness: Witness, step: Callable[[], object], crash_at: int) -> bool:
    """Whether power was lost in the middle of ``step``, at its operation ``crash_at``."""
    witness.disk.crash_at(witness.disk.operation_count + crash_at)
    try:
        step()
    except SimulatedCrash:
        return True
    return False


def interrupted_life(seed: int, durability: Durability, crash_at: int) -> Witness:
    witness = new_witness(seed, durability)
    assert interrupted(witness, lambda: live(witness), crash_at)
    return witness


LOSSES = [
    (durability, seed)
    for durability, seeds in ((FSYNC, 2), (INTERVAL, 1), (OS, 1))
    for seed in range(seeds * effort())
]


@pytest.mark.parametrize(("durability", "seed"), LOSSES)
def test_a_crash_at_any_operation_takes_nothing_acknowledged(
    durability: Durability, seed: int
) -> None:
    for crash_at in range(1, operations_of(durability) + 1):
        witness = interrupted_life(1000 * crash_at + seed, durability, crash_at)
        witness.crash()
        witness.open()
        go_on(witness, crash_at)


@pytest.mark.parametrize("seed", range(5 * effort()))
def test_a_crash_at_any_operation_of_a_new_log_takes_nothing_acknowledged(seed: int) -> None:
    crash_at, crashed = 0, True
    while crashed:
        crash_at += 1
        witness = new_witness(1000 * crash_at + seed, FSYNC)
        crashed = interrupted(witness, partial(live_without_checkpoints, witness), crash_at)
        witness.crash()
        witness.open()
        go_on(witness, crash_at)
    assert crash_at > 10


def log_with_sub_folder(disk: SimulatedDisk) -> SegmentedLog:
    return SegmentedLog(FOLDER, disk, SetClock(), SMALL, sub_folder="state")


@pytest.mark.parametrize("seed", range(20))
def test_the_sync_that_lists_a_sub_folder_lists_the_first_segment_too(seed: int) -> None:
    disk = SimulatedDisk(seed)
    log = log_with_sub_folder(disk)
    syncs = disk.fail("sync_folder", errno.EIO)
    log.append([batch(100)])
    assert not syncs.hits, "it needs no other sync"
    disk.heal()
    disk.crash()
    assert disk.list_folder(f"{FOLDER}/state") == []
    assert log_with_sub_folder(disk).next_offset == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_sub_folder_that_is_there_already_lists_no_segment(seed: int) -> None:
    disk = SimulatedDisk(seed)
    disk.make_folder(f"{FOLDER}/state")
    log_with_sub_folder(disk).append([batch(100)])
    disk.crash()
    assert log_with_sub_folder(disk).next_offset == 1


@pytest.mark.parametrize("durability", [FSYNC, OS])
def test_a_process_that_dies_at_any_operation_leaves_everything_acknowledged(
    durability: Durability,
) -> None:
    for crash_at in range(1, operations_of(durability) + 1):
        witness = interrupted_life(crash_at, durability, crash_at)
        witness.kill()
        witness.open()
        witness.crash()
        witness.open()


def test_a_crash_at_any_operation_of_the_recovery_from_a_crash_takes_nothing_either() -> None:
    for crash_at in range(1, operations_of(FSYNC) + 1, max(1, 8 // effort())):
        first = interrupted_life(crash_at, FSYNC, crash_at)
        first.crash()
        left, nested = files_in(first.disk), 1
        while nested:
            witness = copy(first)
            witness.disk = disk_with(left, seed=1000 * crash_at + nested)
            nested = nested + 1 if interrupted(witness, witness.open, nested) else 0
            witness.crash()
            witness.open()


def test_a_crash_at_any_operation_of_the_recovery_of_a_dead_process_takes_nothing_either() -> None:
    for crash_at in range(1, operations_of(FSYNC) + 1, max(1, 24 // effort())):
        nested = 1
        while nested:
            witness = interrupted_life(1000 * crash_at + nested, FSYNC, crash_at)
            witness.kill()
            nested = nested + 1 if interrupted(witness, witness.open, nested) else 0
            witness.crash()
            witness.open()


# ---------------------------------------------------------------------- failures without a crash

FAILURES: list[tuple[Operation, int]] = [
    ("append", errno.ENOSPC),
    ("append", errno.EIO),
    ("create", errno.ENOSPC),
    ("overwrite", errno.EIO),
    ("remove", errno.EIO),
    ("rename", errno.EIO),
    ("sync", errno.EIO),
    ("sync_folder", errno.EIO),
    ("truncate", errno.EIO),
]


def failed_life(witness: Witness, operation: Operation, error: int, after: int) -> Fault:
    """A life in which one operation fails; the log has to refuse everything but reads from then."""
    fault = witness.disk.fail(operation, error, after=after)
    with suppress(LogFailed):
        live(witness)
    witness.disk.heal()
    if witness.log is not None:
        witness.check_refuses_all_but_reads(batch(10, seed=99))
        witness.log.close()
    return fault


@pytest.mark.parametrize(("operation", "error"), FAILURES)
def test_a_failed_operation_stops_appends_and_opening_again_makes_everything_durable(
    operation: Operation, error: int
) -> None:
    after, hits = 0, 1
    while hits:
        witness = new_witness(after, FSYNC)
        hits = failed_life(witness, operation, error, after).hits
        witness.open()
        witness.crash()
        witness.open()
        go_on(witness, after)
        after += 1


@pytest.mark.parametrize(("operation", "error"), FAILURES)
def test_a_crash_after_a_failed_operation_takes_nothing_acknowledged(
    operation: Operation, error: int
) -> None:
    after, hits = 0, 1
    while hits:
        witness = new_witness(after, FSYNC)
        hits = failed_life(witness, operation, error, after).hits
        witness.crash()
        witness.open()
        after += 1
