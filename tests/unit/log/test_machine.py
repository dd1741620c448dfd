"""A log through any sequence of appends, upkeep, failures and crashes, against a simple model.

``QUIVER_TEST_EFFORT=20`` searches twenty times as long. A failure prints the steps to play again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from quiver.errors import LogFailed
from quiver.log.retention import RetentionLimits
from quiver.model.batch import UnstoredBatch
from quiver.model.ids import Offset
from quiver.model.topic import Durability
from quiver.testing.disk import Operation, SimulatedCrash, SimulatedDisk
from tests.unit.log.log_witness import Witness
from tests.unit.log.small_logs import SECOND_US, SMALL, SetClock, batch, effort, scheduled


class PowerLoss(NamedTuple):
    """Power is lost in the middle of this many operations from now."""

    operations: int

    def arm(self, disk: SimulatedDisk) -> None:
        disk.crash_at(disk.operation_count + self.operations)


class Failure(NamedTuple):
    """An operation of this kind fails, after this many that do not."""

    operation: Operation
    error: int
    after: int

    def arm(self, disk: SimulatedDisk) -> None:
        disk.fail(self.operation, self.error, after=self.after)


Trouble = PowerLoss | Failure | None

operations: tuple[Operation, ...] = (
    "append",
    "sync",
    "sync_folder",
    "create",
    "rename",
    "remove",
    "overwrite",
    "truncate",
)
troubles: st.SearchStrategy[Trouble] = st.one_of(
    st.none(),
    st.none(),
    st.builds(PowerLoss, st.integers(1, 20)),
    st.builds(
        Failure,
        st.sampled_from(operations),
        st.sampled_from((errno.EIO, errno.ENOSPC)),
        st.integers(0, 3),
    ),
)
shapes = st.tuples(st.integers(1, 3000) | st.integers(1, 100), st.integers(1, 5))
"""Size of the body, and number of messages."""
shares = st.integers(0, 16)
"""A place in the log, in sixteenths of it."""
limits = st.builds(
    RetentionLimits,
    age_us=st.none() | st.integers(0, 10 * SECOND_US),
    bytes=st.none() | st.integers(0, 30_000),
    messages=st.none() | st.integers(0, 60),
)


class LogMachine(RuleBasedStateMachine):
    def __init__(self, durability: Durability) -> None:
        super().__init__()
        self.durability = durability
        self.seed = 0
        self.epoch = 0
        self.failures = 0

    @initialize(disk_seed=st.integers(0, 1 << 16), tail_bytes=st.sampled_from([0, 2000]))
    def begin(self, disk_seed: int, tail_bytes: int) -> None:
        chosen = msgspec.structs.replace(SMALL, durability=self.durability, tail_bytes=tail_bytes)
        self.witness = Witness(SimulatedDisk(disk_seed), SetClock(), chosen)
        self.witness.open()

    def attempt(self, step: Callable[[], object], trouble: Trouble = None) -> None:
        """Do it; if power is lost or the log fails on the way, the log is opened again."""
        witness = self.witness
        if trouble is not None:
            trouble.arm(witness.disk)
        try:
            step()
        except SimulatedCrash:
            self.reopen(witness.crash)
        except LogFailed:
            witness.disk.heal()
            if witness.log is not None:
                witness.check_refuses_all_but_reads(batch(10))
                witness.log.close()
            self.reopen(witness.kill)
            self.failures += 1
            if self.failures % 2:  # what became readable was perhaps never written
                self.reopen(witness.crash)

    def reopen(self, stop: Callable[[], None], trouble: Trouble = None) -> None:
        """Stop in this way, and try until it gets through the recovery."""
        witness = self.witness
        stop()
        if trouble is not None:
            trouble.arm(witness.disk)
        while witness.log is None:
            try:
                witness.open()
            except SimulatedCrash:
                witness.crash()
            except LogFailed:
                witness.disk.heal()

    # ------------------------------------------------------------------ appending

    def batches(self, wanted: Sequence[tuple[int, int]]) -> list[UnstoredBatch]:
        made = []
        for size, count in wanted:
            self.seed += 1
            make = batch if self.seed % 3 else scheduled
            made.append(make(size, count=count, seed=self.seed))
        return made

    @rule(shape=shapes, trouble=troubles)
    def append_one(self, shape: tuple[int, int], trouble: Trouble) -> None:
        batches = self.batches([shape])
        self.attempt(lambda: self.witness.append(batches, self.epoch), trouble)

    @rule(wanted=st.lists(shapes, min_size=2, max_size=10), trouble=troubles)
    def append_many(self, wanted: list[tuple[int, int]], trouble: Trouble) -> None:
        batches = self.batches(wanted)
        self.attempt(lambda: self.witness.append(batches, self.epoch), trouble)

    @rule(wanted=st.lists(shapes, min_size=3, max_size=8), new_epoch=st.booleans())
    def append_one_after_another(self, wanted: list[tuple[int, int]], new_epoch: bool) -> None:
        for one in self.batches(wanted):
            self.epoch += new_epoch
            self.attempt(partial(self.witness.append, [one], self.epoch))

    @rule(wanted=st.lists(shapes, min_size=1, max_size=3))
    def stage_and_crash(self, wanted: list[tuple[int, int]]) -> None:
        self.witness.stage_and_forget(self.batches(wanted))
        self.reopen(self.witness.crash)

    @rule(seconds=st.integers(-3, 3), micros=st.integers(0, 5))
    def move_the_clock(self, seconds: int, micros: int) -> None:
        self.witness.clock.now_us += seconds * SECOND_US + micros

    # ------------------------------------------------------------------ upkeep

    @rule(trouble=troubles)
    def sync(self, trouble: Trouble) -> None:
        self.attempt(self.witness.sync, trouble)

    @rule(trouble=troubles)
    def checkpoint(self, trouble: Trouble) -> None:
        self.attempt(self.witness.checkpoint, trouble)

    @rule(limits=limits, share=st.none() | shares, trouble=troubles)
    def retain(self, limits: RetentionLimits, share: int | None, trouble: Trouble) -> None:
        if share is not None:
            limits = msgspec.structs.replace(limits, before=Offset(self.place(share)))
        self.attempt(lambda: self.witness.retain(limits), trouble)

    @rule(share=shares, trouble=troubles)
    def truncate(self, share: int, trouble: Trouble) -> None:
        assume(self.witness.entries)
        self.attempt(lambda: self.witness.truncate(self.place(share)), trouble)

    def place(self, share: int) -> int:
        log = self.witness.running
        return log.start_offset + (log.next_offset - log.start_offset) * share // 16

    # ------------------------------------------------------------------ stopping

    @rule(trouble=troubles)
    def close_and_open(self, trouble: Trouble) -> None:
        self.attempt(self.witness.close, trouble)
        if self.witness.log is None:
            self.reopen(lambda: None)

    @rule(kind=st.sampled_from(["kill", "crash"]), trouble=troubles)
    def stop_and_open(self, kind: str, trouble: Trouble) -> None:
        self.reopen(getattr(self.witness, kind), trouble)

    # ------------------------------------------------------------------ reading

    @rule(share=shares, step=st.integers(-1, 1), bytes_max=st.integers(0, 5000))
    def read(self, share: int, step: int, bytes_max: int) -> None:
        self.attempt(lambda: self.witness.check_read(self.place(share) + step, bytes_max))

    @rule(share=shares)
    def read_schedule(self, share: int) -> None:
        self.attempt(lambda: self.witness.check_schedule(self.place(share)))

    @rule(seconds=st.integers(-5, 1))
    def read_by_time(self, seconds: int) -> None:
        time = self.witness.clock.now_us + seconds * SECOND_US
        self.attempt(lambda: self.witness.check_read_by_time(time))

    @rule()
    def read_everything(self) -> None:
        self.attempt(self.witness.check)

    @precondition(lambda self: hasattr(self, "witness"))
    @invariant()
    def offsets_are_in_order(self) -> None:
        log = self.witness.running
        assert log.start_offset <= log.durable_offset <= log.next_offset
        if self.durability is Durability.FSYNC:
            assert log.durable_offset == log.next_offset


def explore(durability: Durability, examples: int) -> None:
    run_state_machine_as_test(
        lambda: LogMachine(durability),  # type: ignore[arg-type]
        settings=settings(
            max_examples=examples * effort(),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=set(Phase) - {Phase.explain},
        ),
    )


pytestmark = pytest.mark.timeout(600)
"""It takes seconds, but to make a failing sequence short enough to read may take minutes."""


def test_with_fsync_what_was_acknowledged_survives_anything() -> None:
    explore(Durability.FSYNC, 80)


def test_with_interval_only_a_suffix_that_was_not_synced_is_lost() -> None:
    explore(Durability.INTERVAL, 40)


def test_with_os_only_a_suffix_that_was_not_synced_is_lost() -> None:
    explore(Durability.OS, 40)
