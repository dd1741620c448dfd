"""An append-only log of batches in a folder of segments.

Appending has three steps, so that the slow one can run elsewhere: ``stage`` gives a batch its
offset, ``begin_commit`` hands out what is staged as a ``Commit`` to be run once, in any thread, and
``finish_commit`` publishes it to readers. ``append`` does all three. One commit runs at a time.

Promises: with durability ``fsync``, what ``finish_commit`` published survives any crash, whole.
Offsets never repeat and never have gaps. After a failed write or sync nothing more is taken
(``LogFailed``) until the folder is opened again; what was published stays readable. A read returns
what was appended or an error. Invariant: start ≤ durable ≤ next ≤ staged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import TypeVar

from quiver.errors import (
    CorruptLog,
    LogClosed,
    LogError,
    LogFailed,
    OffsetOutOfRange,
    UnsupportedFormat,
)
from quiver.log.checkpoint import Checkpoint, encode_checkpoint, read_checkpoint
from quiver.log.commit import Appender, Commit, Roll
from quiver.log.delivery_index import DeliverySpan
from quiver.log.disk.disk import Disk
from quiver.log.files import CHECKPOINT, segment_path, write_files
from quiver.log.hot_tail import HotTail, base_offset_of, entries_from
from quiver.log.recovery import kept_segments, recover
from quiver.log.retention import RetentionLimits, first_kept
from quiver.log.scan import corrupt
from quiver.log.segment import Segment, segment_facts, segment_of
from quiver.log.segment_reader import SegmentReader
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.envelope import remark, store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.topic import Durability

T = TypeVar("T")


class SegmentedLog:
    def __init__(
        self,
        folder: str,
        disk: Disk,
        clock: Clock,
        settings: LogSettings,
        first_offset: Offset = Offset(0),
    ) -> None:
        """Open the log in ``folder``, which is made if it is missing, and recover it.

        ``first_offset`` is where a log begins that is not there yet.
        """
        self.folder = folder
        self.settings = settings
        self._disk = disk
        self._clock = clock
        self._failure: LogFailed | None = None
        self._closed = False
        self._committing = False

        try:
            disk.make_folder(folder)
            checkpoint = read_checkpoint(disk, folder)
            bases = kept_segments(disk, folder, checkpoint, first_offset)
            self._segments = [
                Segment(folder, base, disk.size(segment_path(folder, base))) for base in bases[:-1]
            ]
            recovered = recover(disk, folder, bases[-1], checkpoint, settings)
        except OSError as error:
            raise self.fail(error) from error

        self.start_offset = checkpoint.start_offset if checkpoint else bases[0]
        self.next_offset = recovered.next_offset
        self.durable_offset = recovered.next_offset
        self.recovery_cut_bytes = recovered.cut_bytes
        self.epoch = recovered.epoch
        self._segments.append(recovered.segment)
        self._appender = Appender(disk, folder, recovered.file)
        self._reader = SegmentReader(
            disk, settings, recovered.segment.base_offset, recovered.indexes
        )
        self._tail = HotTail(settings.tail_bytes)
        self._staged: list[StoredBatch | Roll] = []
        self._unpublished: list[StoredBatch] = []
        self.staged_offset = recovered.next_offset
        self._staged_epoch = recovered.epoch
        self._append_time = recovered.append_time
        self._published_time = recovered.append_time
        self._segment_began = recovered.segment.first_time
        self._removals: list[str] = []
        self._checkpointed_bytes = 0
        self.checkpoint_due = False
        try:
            if recovered.segment.size == 0:
                self._go_on_from_last_entry()
            self.checkpoint()
        except BaseException:
            recovered.file.close()
            raise

    # ------------------------------------------------------------------ appending

    def append(
        self, batches: Iterable[UnstoredBatch], epoch: LeaderEpoch = LeaderEpoch(0)
    ) -> list[StoredBatch]:
        """Stage, commit and publish, all at once."""
        stored = [self.stage(batch, epoch) for batch in list(batches)]
        commit = self.begin_commit()
        if commit is not None:
            self.run(commit)
        return stored

    def stage(self, batch: UnstoredBatch, epoch: LeaderEpoch = LeaderEpoch(0)) -> StoredBatch:
        """Give the batch its offset. It is not stored yet, and no reader sees it."""
        self._require_open()
        entry = store_batch(
            batch,
            base_offset=self.staged_offset,
            epoch=epoch,
            append_time=Microseconds(max(self._clock.time_us(), self._append_time)),
            durable_offset=self.durable_offset,
        )
        return self._stage(entry)

    def stage_replica(self, entry: StoredBatch) -> StoredBatch:
        """Take over an entry of another log at the same offset; only the durable mark is our own."""
        self._require_open()
        if entry.base_offset != self.staged_offset:
            raise LogError(
                f"the next offset in {self.folder} is {self.staged_offset:,}, and the entry begins at "
                f"{entry.base_offset:,}",
                next_offset=self.staged_offset,
            )
        return self._stage(remark(entry, self.durable_offset))

    def _stage(self, entry: StoredBatch) -> StoredBatch:
        now = self._append_time = entry.append_time
        if self._is_full(now):
            self._stage_roll()
        if self._segment_began is None:
            self._segment_began = now
        self.staged_offset = entry.next_offset
        self._staged_epoch = entry.epoch
        self._reader.newest.add(entry, self._reader.newest.covered)
        self._staged.append(entry)
        self._unpublished.append(entry)
        return entry

    @property
    def is_write_only(self) -> bool:
        """Whether the next commit only writes entries: no new segment, no checkpoint, no removal."""
        covered = self._reader.newest.covered
        return (
            not self.checkpoint_due
            and covered - self._checkpointed_bytes < self.settings.checkpoint_bytes
            and not any(isinstance(step, Roll) for step in self._staged)
        )

    def begin_commit(self, sync: bool | None = None) -> Commit | None:
        """Hand out all that is staged and due; ``None`` if there is nothing to do."""
        self._require_open()
        assert not self._committing, "one commit at a time"
        if self._reader.newest.covered - self._checkpointed_bytes >= self.settings.checkpoint_bytes:
            self.checkpoint_due = True
        if sync is None:
            sync = self.settings.durability is Durability.FSYNC
        unsynced = self._staged or self.durable_offset < self.next_offset
        if not (self._staged or self.checkpoint_due or (sync and unsynced)):
            return None
        commit = Commit(
            appender=self._appender, steps=self._staged, sync=sync or self.checkpoint_due
        )
        self._staged = []
        if self.checkpoint_due:
            self.checkpoint_due = False
            self._checkpointed_bytes = self._reader.newest.covered
            newest = self._reader.newest
            indexes = newest.files(self._reader.newest_base) if newest.covered else {}
            commit.files = indexes | self._checkpoint_file()
            commit.removals, self._removals = self._removals, []
        self._committing = True
        return commit

    def run(self, commit: Commit) -> None:
        """Run a commit here and now, and publish it."""
        try:
            commit.run()
        except Exception as error:
            raise self.fail(error) from error
        self.finish_commit(commit)

    def finish_commit(self, commit: Commit) -> None:
        """Publish what a commit wrote."""
        self._committing = False
        published = 0
        for step in commit.steps:
            if isinstance(step, Roll):
                self.durable_offset = step.base_offset
                self._segments.append(Segment(self.folder, step.base_offset, 0))
                self._reader.settle()
            else:
                assert step.base_offset == self.next_offset, "published in order, without gaps"
                published += 1
                self._tail.add(step)
                segment = self._segments[-1]
                if not segment.size:
                    segment.first_time = step.append_time
                segment.size += step.size()
                self.next_offset = step.next_offset
                self.epoch = step.epoch
                self._published_time = step.append_time
        del self._unpublished[:published]
        if commit.sync:
            self.durable_offset = self.next_offset
        assert self.start_offset <= self.durable_offset <= self.next_offset <= self.staged_offset

    def fail(self, error: Exception) -> LogFailed:
        """Something could not be written: take nothing more, and forget what no reader saw."""
        self._committing = False
        self._staged, self._unpublished = [], []
        self._failure = LogFailed(
            f"{self.folder} could not be written: {getattr(error, 'strerror', None) or error}; "
            "it accepts no appends until it is opened again",
            folder=self.folder,
            errno=getattr(error, "errno", None),
        )
        return self._failure

    @property
    def failure(self) -> LogFailed | None:
        return self._failure

    def _is_full(self, now: Microseconds) -> bool:
        if self._segment_began is None:
            return False
        age_us = now - self._segment_began
        newest = self._reader.newest
        return (
            newest.covered >= self.settings.segment_bytes
            or age_us >= self.settings.segment_age_s * 1_000_000
            or newest.delivery_bytes >= self.settings.delivery_index_bytes
        )

    def _stage_roll(self) -> None:
        """Close the newest segment behind everything staged so far, and begin another."""
        self._staged.append(
            Roll(self.staged_offset, self._reader.newest.files(self._reader.newest_base))
        )
        self._reader.roll(self.staged_offset)
        self._segment_began = None
        self._checkpointed_bytes = 0

    # ------------------------------------------------------------------ reading

    def read(self, offset: Offset, bytes_max: int = 1 << 20) -> list[StoredBatch]:
        """Entries from the one that holds ``offset`` on, about ``bytes_max``, at least one.

        Empty at the end of the log; ``OffsetOutOfRange`` outside it. The first entry may begin
        before ``offset``.
        """
        return self.read_tail(offset, bytes_max) or self.read_disk(offset, bytes_max)

    def read_tail(self, offset: Offset, bytes_max: int) -> list[StoredBatch] | None:
        """The same from memory alone; ``None`` if that needs the disk."""
        self._require_within(offset)
        if offset == self.next_offset:
            return []
        return self._tail.read(offset, bytes_max)

    def read_staged(self, offset: Offset, bytes_max: int) -> list[StoredBatch]:
        """Entries from the one at ``offset`` on that are staged and not published yet.

        They may never be: only whoever keeps a copy of this log, and cuts it if need be, reads them.
        """
        place = bisect_left(self._unpublished, offset, key=base_offset_of)
        return entries_from(self._unpublished, place, bytes_max)

    def read_disk(self, offset: Offset, bytes_max: int) -> list[StoredBatch]:
        """The same from the files alone. May run in another thread while the log is written to."""

        def read(segments: list[Segment]) -> list[StoredBatch]:
            self._require_within(offset)
            if offset == self.next_offset:
                return []
            return self._reader.read(segment_of(segments, offset), offset, bytes_max)

        return self._undisturbed(read)

    def delivery_span(self, offset: Offset) -> DeliverySpan:
        """What decides the delivery of messages from ``offset`` on, from the files alone.

        It reaches to the end of the segment at most, and not beyond what is published. May run in
        another thread while the log is written to.
        """

        def read(segments: list[Segment]) -> DeliverySpan:
            self._require_within(offset)
            return self._reader.span(*self._rest_of_segment(segments, offset))

        return self._undisturbed(read)

    def delivery_span_in_memory(self, offset: Offset) -> DeliverySpan | None:
        """The same if it needs no disk, else ``None``."""
        self._require_within(offset)
        return self._reader.span_in_memory(*self._rest_of_segment(self._segments, offset))

    def _rest_of_segment(
        self, segments: list[Segment], offset: Offset
    ) -> tuple[Segment, Offset, Offset]:
        """The segment that holds ``offset``, and how far it can be read."""
        end = self.next_offset
        place = bisect_right(segments, offset, key=lambda one: one.base_offset)
        stop = end if place == len(segments) else min(end, segments[place].base_offset)
        return segments[place - 1], offset, stop

    def offset_at(self, time: Microseconds) -> Offset:
        """The first offset appended at or after ``time``; the next offset if there is none yet.

        May run in another thread while the log is written to.
        """
        return self._undisturbed(lambda segments: self._find_time(segments, time))

    def _find_time(self, segments: list[Segment], time: Microseconds) -> Offset:
        self._require_within(self.next_offset)
        if time > self._published_time:
            return self.next_offset
        found = self._reader.first_at(segments, time, self._append_time)
        return self.next_offset if found is None else max(found, self.start_offset)

    def _undisturbed(self, read: Callable[[list[Segment]], T]) -> T:
        """What ``read`` finds in segments that nobody removed or cut meanwhile."""
        while True:
            segments = self._segments
            try:
                found = read(segments)
            except CorruptLog:
                if segments is self._segments:
                    raise
            else:
                if segments is self._segments:
                    return found

    def _require_within(self, offset: Offset) -> None:
        if self._closed:
            raise LogClosed(f"{self.folder} is closed")
        if not self.start_offset <= offset <= self.next_offset:
            gone = offset < self.start_offset
            raise OffsetOutOfRange(
                f"offset {offset:,} is {'no longer' if gone else 'not yet'} in the log: "
                f"the first offset is {self.start_offset:,}, the next will be "
                f"{self.next_offset:,}",
                first_offset=self.start_offset,
                next_offset=self.next_offset,
            )

    # ------------------------------------------------------------------ maintenance

    def reconfigure(self, settings: LogSettings) -> None:
        """Go on with other settings, from the next append on."""
        self.settings = self._reader.settings = settings

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments)

    def checkpoint(self) -> None:
        """Sync, and record that everything so far is whole, so that recovery begins here."""
        self.checkpoint_due = True
        commit = self.begin_commit()
        if commit is not None:
            self.run(commit)

    def read_times(self) -> None:
        """Learn when each segment begins, or ``retain`` will; this may run in another thread."""
        for segment in list(self._segments):
            with suppress(CorruptLog, UnsupportedFormat):
                segment.first_append_time(self._disk)

    def removable(self, limits: RetentionLimits) -> Offset:
        """Where the log would begin if it dropped all that the limits allow."""
        self._require_open()
        facts = segment_facts(self._segments, self._disk, self.staged_offset, self._append_time)
        return first_kept(facts, limits, Microseconds(self._clock.time_us()))

    def size_from(self, offset: Offset) -> int:
        """Bytes from the entry that holds ``offset`` on, and up to an index interval before it.

        May run in another thread while the log is written to.
        """

        def measured(segments: list[Segment]) -> int:
            if offset >= self.next_offset:
                return 0
            first = segment_of(segments, max(offset, self.start_offset))
            later = sum(one.size for one in segments if one.base_offset > first.base_offset)
            return later + first.size - self._reader.indexes_of(first).offsets.floor(offset)

        return self._undisturbed(measured)

    def retain(self, limits: RetentionLimits) -> Offset:
        """Drop the oldest segments that the limits allow; the new start of the log.

        Readers see the new start at once; the files go with the next commit, after a checkpoint
        that no longer names them. If the newest segment may go too, the next commit closes it, and
        it goes with the call after that.
        """
        start = self.removable(limits)
        if start == self.staged_offset > self._reader.newest_base:
            self._stage_roll()
        gone = [
            segment
            for segment, following in pairwise(self._segments)
            if following.base_offset <= start
        ]
        if gone:
            self._removals += [path for segment in gone for path in segment.paths]
            kept = self._segments[len(gone) :]
            self.start_offset, self._segments = kept[0].base_offset, kept
            self.checkpoint_due = True
        return self.start_offset

    def truncate(self, offset: Offset) -> Offset:
        """Drop every entry that reaches past ``offset``; the new next offset. Durable on return.

        Nothing may be staged. Reads may be under way in other threads.
        """
        self._require_open()
        self._require_within(offset)
        assert not self._staged, "commit or fail what is staged first"
        assert not self._committing, "a commit is under way"
        if offset == self.next_offset:
            return self.next_offset
        segment = segment_of(self._segments, offset)
        position, next_offset = self._reader.locate(segment, offset)
        last = self._last_before(next_offset)
        self._forget_from(segment, position, next_offset)
        self.epoch = self._staged_epoch = last.epoch if last else LeaderEpoch(0)
        try:
            self._appender.file.sync()
            files = self._reader.newest.files(segment.base_offset) | self._checkpoint_file()
            write_files(self._disk, self.folder, files)
            self._appender.cut(segment.base_offset, position)
        except (OSError, CorruptLog) as error:
            raise self.fail(error) from error
        self.durable_offset = next_offset
        return next_offset

    def _forget_from(self, segment: Segment, position: int, next_offset: Offset) -> None:
        """Let the log end at ``position`` in ``segment``, in an order that readers can live with."""
        indexes = self._reader.indexes_of(segment)
        indexes.delivery = self._reader.delivery_of(segment)
        indexes = indexes.before(position, next_offset)
        kept = Segment(self.folder, segment.base_offset, position)
        self._segment_began = kept.first_append_time(self._disk)
        self._tail = HotTail(self.settings.tail_bytes)
        self.next_offset = self.staged_offset = next_offset
        self.durable_offset = min(self.durable_offset, next_offset)
        self._segments = [*self._segments[: self._segments.index(segment)], kept]
        self._reader.cut(segment.base_offset, indexes)
        self._checkpointed_bytes = position

    def close(self) -> None:
        """Commit what is staged, leave a checkpoint, and let go of the files."""
        if self._closed:
            return
        try:
            if self._failure is None:
                self.checkpoint()
        finally:
            self._closed = True
            self._appender.file.close()

    def _checkpoint_file(self) -> dict[str, bytes]:
        checkpoint = Checkpoint(
            start_offset=self.start_offset,
            segment=self._reader.newest_base,
            position=self._reader.newest.covered,
            next_offset=self.staged_offset,
            append_time=self._append_time,
            epoch=self._staged_epoch,
        )
        return {CHECKPOINT: encode_checkpoint(checkpoint)}

    def _last_before(self, offset: Offset) -> StoredBatch | None:
        """The entry that ends at ``offset``; ``None`` if the log begins there."""
        if offset == self.start_offset:
            return None
        last = self.read_disk(Offset(offset - 1), 1)[0]
        if last.next_offset != offset:
            path = segment_path(self.folder, offset)
            raise corrupt(path, 0, f"offset {last.next_offset:,} expected here")
        return last

    def _go_on_from_last_entry(self) -> None:
        """Take epoch and time from the last entry, where the newest segment has none to tell them."""
        last = self._last_before(self.next_offset)
        if last is not None:
            self.epoch = self._staged_epoch = last.epoch
            self._append_time = self._published_time = max(self._append_time, last.append_time)

    def _require_open(self) -> None:
        if self._closed:
            raise LogClosed(f"{self.folder} is closed")
        if self._failure is not None:
            raise LogFailed(self._failure.message, **self._failure.details)
