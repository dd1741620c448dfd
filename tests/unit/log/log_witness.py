"""A witness of a log: knows all that was appended, and judges what is there after any kind of stop.

The witness drives the log, so that it knows what was handed to the disk even when the disk never
answered. It keeps two bounds: what a loss of power may not take (``durable``), and what the death of
the process alone may not take (``published``). What was attempted beyond them may be there or not,
but only whole, in order, and without gaps.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quiver.errors import LogFailed, OffsetOutOfRange
from quiver.log.retention import RetentionLimits
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.batch import UnstoredBatch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.testing.disk import SimulatedDisk
from tests.unit.log.small_logs import (
    FOLDER,
    Facts,
    SetClock,
    facts,
    offset_by_time,
    read_all,
    schedule_in,
    schedule_indexed,
)


class Witness:
    def __init__(self, disk: SimulatedDisk, clock: SetClock, settings: LogSettings) -> None:
        self.disk = disk
        self.clock = clock
        self.settings = settings
        self.log: SegmentedLog | None = None
        self.entries: list[Facts] = []
        """Everything that was ever handed out and may still be there, oldest first."""
        self.start = 0
        """The log begins here or later, for retention may not have become durable."""
        self.published = 0
        self.durable = 0
        self.epoch = 0

    # ------------------------------------------------------------------ what is done to the log

    @property
    def running(self) -> SegmentedLog:
        assert self.log is not None
        return self.log

    def open(self) -> SegmentedLog:
        """Open it after a stop that left the page cache alone, and judge what is there."""
        return self._reopen(self.published)

    def crash(self) -> None:
        """Lose power. The log is to be opened again."""
        self.log = None
        self.disk.crash()
        self.published = self.durable

    def kill(self) -> None:
        """Let the process die."""
        self.log = None
        self.disk.kill()

    def append(self, batches: Sequence[UnstoredBatch], epoch: int = 0) -> None:
        log = self.running
        self.entries += [facts(log.stage(batch, LeaderEpoch(epoch))) for batch in batches]
        commit = log.begin_commit()
        assert commit is not None
        log.run(commit)
        self._acknowledged()

    def stage_and_forget(self, batches: Sequence[UnstoredBatch]) -> None:
        """Give batches their offsets and never commit them: no trace of them may appear."""
        for batch in batches:
            self.running.stage(batch)

    def sync(self) -> None:
        commit = self.running.begin_commit(sync=True)
        if commit is not None:
            self.running.run(commit)
        self._acknowledged()
        assert self.durable == self.published

    def checkpoint(self) -> None:
        self.running.checkpoint()
        self._acknowledged()
        assert self.durable == self.published

    def retain(self, limits: RetentionLimits) -> None:
        """Retain and commit it. Readers see no start that a crash could take back."""
        log = self.running
        before, start = log.start_offset, log.retain(limits)
        assert log.start_offset == before, "the start waits for its checkpoint"
        log.checkpoint()
        assert log.start_offset == start
        self._acknowledged()
        self._forget_before(start)

    def truncate(self, offset: int) -> None:
        log = self.running
        if offset == self.published:
            assert log.truncate(Offset(offset)) == offset
            return
        cut = max(entry.base_offset for entry in self.entries if entry.base_offset <= offset)
        self.published = min(self.published, cut)
        self.durable = min(self.durable, cut)
        assert log.truncate(Offset(offset)) == cut
        self.entries = [entry for entry in self.entries if entry.next_offset <= cut]
        self._acknowledged()
        assert self.durable == cut
        self.start = min(self.start, cut)  # where the entry that held it is gone

    def close(self) -> None:
        log, self.log = self.running, None
        log.close()
        self.durable = self.published

    def _acknowledged(self) -> None:
        """Take the log at its word: from now on it has to keep it."""
        log = self.running
        self.published, self.durable = log.next_offset, log.durable_offset
        if self.entries:
            assert self.published == self.entries[-1].next_offset

    def _forget_before(self, start: int) -> None:
        self.start = start
        self.entries = [entry for entry in self.entries if entry.next_offset > start]

    def _reopen(self, least: int) -> SegmentedLog:
        self.log = log = SegmentedLog(FOLDER, self.disk, self.clock, self.settings)
        found = read_all(log)
        assert self.start <= log.start_offset or not found, "what retention removed stays away"
        expected = [entry for entry in self.entries if entry.next_offset > log.start_offset]
        assert found == expected[: len(found)], "what is there is what was appended, in order"
        assert log.next_offset >= least, "nothing that was promised is missing"
        assert log.durable_offset == log.next_offset, "what can be read is durable"
        self.entries = found
        self._forget_before(log.start_offset)
        self.published = self.durable = log.next_offset
        self.check()
        return log

    # ------------------------------------------------------------------ what the log says

    def check(self) -> None:
        """Everything that is published is there, by offset and by time."""
        log = self.running
        published = self._published()
        assert read_all(log) == published
        times = [entry.append_time for entry in published]
        assert times == sorted(times), "append times never go back"
        for time in {time + step for time in times[::3] + times[-1:] for step in (-1, 0, 1)}:
            expected = offset_by_time(published, time, log.next_offset)
            assert log.offset_at(Microseconds(time)) == max(expected, log.start_offset)
        if published:
            assert log.epoch == published[-1].epoch
        self.check_schedule(log.start_offset)

    def check_schedule(self, start: int) -> None:
        """The indexes beside the segments say of each message what its body says."""
        log = self.running
        expected = schedule_in(self._published())
        for found in expected:
            for offset in [offset for offset in found if offset < start]:
                del found[offset]
        assert schedule_indexed(log, start, log.delivery_span) == expected
        assert expected == schedule_indexed(
            log, start, lambda at: log.delivery_span_in_memory(at) or log.delivery_span(at)
        )

    def check_read(self, offset: int, bytes_max: int) -> None:
        log = self.running
        if not log.start_offset <= offset <= log.next_offset:
            with pytest.raises(OffsetOutOfRange) as refused:
                log.read(Offset(offset), bytes_max)
            bounds = {"first_offset": log.start_offset, "next_offset": log.next_offset}
            assert refused.value.details == bounds
            return
        found = [facts(entry) for entry in log.read(Offset(offset), bytes_max)]
        onwards = [entry for entry in self._published() if entry.next_offset > offset]
        assert found == onwards[: len(found)]
        assert bool(found) == bool(onwards), "at least one entry, if there is any"

    def check_read_by_time(self, time: int) -> None:
        log = self.running
        expected = offset_by_time(self._published(), time, log.next_offset)
        assert log.offset_at(Microseconds(time)) == max(expected, log.start_offset)

    def check_refuses_all_but_reads(self, batch: UnstoredBatch) -> None:
        """After a failure: no append, checkpoint or truncation, and every read as before."""
        log = self.running
        for attempt in (
            lambda: log.append([batch]),
            log.checkpoint,
            lambda: log.retain(RetentionLimits(messages=0)),
            lambda: log.truncate(log.start_offset),
        ):
            with pytest.raises(LogFailed):
                attempt()
        assert log.next_offset == self.published
        self.check()

    def _published(self) -> list[Facts]:
        start = self.running.start_offset
        return [
            e for e in self.entries if start < e.next_offset and e.next_offset <= self.published
        ]
