"""An append-only log of batches in a folder of segments.

Appending has three steps, so that the slow one can run elsewhere: ``stage`` gives a batch its
offset, ``begin_commit`` hands out what is staged as a ``Commit`` to be run once, in any thread, and
``finish_commit`` publishes it to readers. ``append`` does all three. One commit runs at a time.

Promises: with durability ``fsync``, what ``finish_commit`` published survives any crash, whole.
Offsets never repeat and never have gaps. After a failed write or sync nothing more is taken
(``LogFailed``) until the folder is opened again; what was published stays readable. A read returns
what was appended or an error. Invariant: stored from ≤ start ≤ durable ≤ next ≤ staged. The start is
in a checkpoint before readers see it, so it never goes back; files go after that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from quiver.errors import CorruptLog, LogClosed, LogError, LogFailed
from quiver.log.cache.hot_tail import HotTail, base_offset_of, entries_from
from quiver.log.checkpoint import Checkpoint, blank_checkpoint, encode_checkpoint
from quiver.log.clean_ends import CleanEnd, named
from quiver.log.commit import Appender, Commit, Roll
from quiver.log.disk.disk import Disk
from quiver.log.files import CHECKPOINT, segment_offsets, segment_path, write_files
from quiver.log.log_context import LogContext
from quiver.log.log_start import LogStart
from quiver.log.readable_log import ReadableLog
from quiver.log.recovery import kept_segments, last_checkpoint, recover
from quiver.log.retention import RetentionLimits
from quiver.log.scan import corrupt
from quiver.log.segment import Segment, segment_of
from quiver.log.segment_reader import SegmentReader
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.envelope import remark, store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.topic import Durability


class SegmentedLog(ReadableLog):
    def __init__(
        self,
        folder: str,
        disk: Disk,
        clock: Clock,
        settings: LogSettings,
        first_offset: Offset = Offset(0),
        context: LogContext | None = None,
        sub_folder: str = "",
    ) -> None:
        """Open the log in ``folder``, which is made if it is missing, and recover it.

        ``first_offset`` is where a log begins that is not there yet. ``sub_folder`` is made with it:
        one sync lists both that folder and the first segment.
        """
        self.settings = settings
        self._disk = disk
        self._failure: LogFailed | None = None
        self._committing = False
        context = context or LogContext()
        self._ends, end = context.ends, context.ends.take(folder)
        self._failed = context.failed
        try:
            if end is None:  # else it is there, and known to be
                disk.make_folder(folder)
            names = disk.list_folder(folder)
            checkpoint = last_checkpoint(disk, folder, names)
            is_new = checkpoint is None and not segment_offsets(names)
            bases = kept_segments(disk, folder, checkpoint, first_offset)
            makes_sub_folder = is_new and sub_folder != "" and sub_folder not in names
            if makes_sub_folder:
                disk.make_folder(f"{folder}/{sub_folder}")
            closed = [
                Segment(folder, base, disk.size(segment_path(folder, base))) for base in bases[:-1]
            ]
            recovered = recover(disk, folder, bases[-1], checkpoint, settings, end, is_new=is_new)
        except OSError as error:
            raise _unwritten(folder, error) from error
        super().__init__(
            folder,
            disk,
            [*closed, recovered.segment],
            SegmentReader(disk, settings, bases[-1], recovered.indexes),
            clock,
            start=checkpoint.start_offset if checkpoint else bases[0],
            end=recovered.next_offset,
            newest=recovered.append_time,
        )
        self._tail = HotTail(settings.tail_bytes, context.caches)
        self.durable_offset = self.staged_offset = recovered.next_offset
        self.recovery_cut_bytes = recovered.cut_bytes
        self.epoch = self._staged_epoch = recovered.epoch
        # One that was empty at a stop in good order may never have been listed durably.
        is_listed = makes_sub_folder or recovered.segment.size > 0 or not recovered.is_clean
        self._appender = Appender(disk, folder, recovered.file, is_listed=is_listed)
        self._staged: list[StoredBatch | Roll] = []
        self._unpublished: list[StoredBatch] = []
        self._next_start: LogStart | None = None
        self._append_time = recovered.append_time
        self._failed.discard(folder)
        self._segment_began = recovered.segment.first_time
        self._removals: list[str] = []
        self._checkpointed_bytes = recovered.segment.size - recovered.scanned_bytes
        self._checkpoint = checkpoint or blank_checkpoint(bases[0])
        self._has_checkpoint = CHECKPOINT in names
        self.checkpoint_due = False
        try:
            if recovered.segment.size == 0:
                self._go_on_from_last_entry()
            if not recovered.is_clean or self._rescan_is_long:
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

    def stage(
        self,
        batch: UnstoredBatch,
        epoch: LeaderEpoch = LeaderEpoch(0),
        append_time: Microseconds | None = None,
    ) -> StoredBatch:
        """Give the batch its offset. It is not stored yet, and no reader sees it.

        ``append_time`` is for a batch that was stored before, in another log; by default it is now.
        """
        self._require_open()
        time = Microseconds(self._clock.time_us()) if append_time is None else append_time
        entry = store_batch(
            batch,
            base_offset=self.staged_offset,
            epoch=epoch,
            append_time=max(time, self._append_time),
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
        now = entry.append_time
        if self._is_full(now):
            self._stage_roll()
        self._append_time = now
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
        """Whether the next commit only writes entries: no new file, no checkpoint, no removal."""
        covered = self._reader.newest.covered
        return (
            self._appender.is_listed
            and not (self.checkpoint_due or self._removals)
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
        if not (self._staged or self.checkpoint_due or self._removals or (sync and unsynced)):
            return None
        commit = Commit(
            appender=self._appender,
            steps=self._staged,
            sync=sync or self.checkpoint_due,
            has_unsynced=bool(unsynced),
        )
        self._staged = []
        commit.removals, self._removals = self._removals, []
        if self.checkpoint_due:
            self.checkpoint_due = False
            self._checkpointed_bytes = self._reader.newest.covered
            commit.start, self._next_start = self._next_start, None
            newest = self._reader.newest
            indexes = newest.files(self._reader.newest_base) if newest.covered else {}
            commit.checkpoint = self._checkpoint_at(commit.start or self._start)
            commit.files = indexes | _file_of(commit.checkpoint)
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
                self._note_checkpoint(step.checkpoint)
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
        self._note_checkpoint(commit.checkpoint)
        if commit.start is not None:
            gone = self._begin_at(commit.start)
            self._removals += [path for segment in gone for path in segment.paths]
        assert self.start_offset <= self.durable_offset <= self.next_offset <= self.staged_offset

    def fail(self, error: Exception) -> LogFailed:
        """Something could not be written: take nothing more, and forget what no reader saw."""
        self._committing = False
        self._staged, self._unpublished, self._next_start = [], [], None
        self._failure = _unwritten(self.folder, error)
        self._failed.add(self.folder)
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
        files = self._reader.newest.files(self._reader.newest_base)
        checkpoint = None
        if not self._has_checkpoint:
            checkpoint = self._checkpoint_at(self._start)
            files |= _file_of(checkpoint)
        self._staged.append(Roll(self.staged_offset, files, checkpoint))
        self._reader.roll(self.staged_offset)
        self._segment_began = None
        self._checkpointed_bytes = 0

    # ------------------------------------------------------------------ reading

    def read_staged(self, offset: Offset, bytes_max: int) -> list[StoredBatch]:
        """Entries from the one at ``offset`` on that are staged and not published yet.

        They may never be: only whoever keeps a copy of this log, and cuts it if need be, reads them.
        """
        place = bisect_left(self._unpublished, offset, key=base_offset_of)
        return entries_from(self._unpublished, place, bytes_max)

    # ------------------------------------------------------------------ maintenance

    def reconfigure(self, settings: LogSettings) -> None:
        """Go on with other settings, from the next append on."""
        self.settings = self._reader.settings = settings

    def checkpoint(self) -> None:
        """Sync, and record that everything so far is whole, so that recovery begins here."""
        self.checkpoint_due = True
        while (commit := self.begin_commit()) is not None:  # the second removes files
            self.run(commit)

    def retain(self, limits: RetentionLimits) -> Offset:
        """Drop all that the limits allow; where the log begins with the next commit."""
        start = self.find_start(limits)
        self.drop_before(start)
        return start.offset

    def drop_before(self, start: LogStart) -> None:
        """Begin at ``start``, which ``find_start`` found.

        The next commit leaves a checkpoint that says so. Then readers see it, and the commit after
        that removes the files of segments before it. If nothing is left in the newest segment, it is
        closed, so that it goes too.
        """
        self._require_open()
        if start.offset <= (self._next_start or self._start).offset:
            return
        if start.offset == self.staged_offset > self._reader.newest_base:
            self._stage_roll()
        self._next_start = start
        self.checkpoint_due = True

    def truncate(self, offset: Offset) -> Offset:
        """Drop every entry that reaches past ``offset``; the new next offset. Durable on return.

        Nothing may be staged. Reads may be under way in other threads.
        """
        self._require_open()
        self._require_within(offset, stored=True)
        assert not self._staged, "commit or fail what is staged first"
        assert not self._committing, "a commit is under way"
        if offset == self.next_offset:
            return self.next_offset
        segment = segment_of(self._segments, offset)
        position, next_offset = self._reader.locate(segment, offset)
        last = self._last_before(next_offset)
        start = self._start
        self._forget_from(segment, position, next_offset)
        self.epoch = self._staged_epoch = last.epoch if last else LeaderEpoch(0)
        self._append_time = self._published_time = last.append_time if last else Microseconds(0)
        try:
            self._appender.file.sync()
            # With the start of before: until the cut is made, what is excluded is still there.
            checkpoint = self._checkpoint_at(start)
            files = self._reader.newest.files(segment.base_offset) | _file_of(checkpoint)
            write_files(self._disk, self.folder, files)
            self._appender.cut(segment.base_offset, position)
            if self._start is not start:  # what is appended from now on is not excluded
                checkpoint = self._checkpoint_at(self._start)
                write_files(self._disk, self.folder, _file_of(checkpoint))
            self._note_checkpoint(checkpoint)
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
        self._tail.clear()
        self._next_start = None
        if next_offset < self.start_offset:  # the entry that held the start is cut
            self._start = LogStart(next_offset, position)
        self.next_offset = self.staged_offset = next_offset
        self.durable_offset = min(self.durable_offset, next_offset)
        self._segments = [*self._segments[: self._segments.index(segment)], kept]
        self._reader.cut(segment.base_offset, indexes)
        self._checkpointed_bytes = position

    def close(self) -> None:
        """Commit what is staged, leave a checkpoint, and let go of the files.

        When the process stops, the end of the log is noted with those of all others, and a checkpoint
        is left only if the next start would have much to read without it.
        """
        if self._closed:
            return
        try:
            if self._failure is None:
                self.checkpoint_due |= self._rescan_is_long or not self._ends.is_stopping
                while (commit := self.begin_commit(sync=True)) is not None:
                    self.run(commit)  # the second removes files
                self._note_end()
        finally:
            self._closed = True
            self._appender.file.close()

    def forget_tail(self) -> None:
        """Keep nothing in memory for readers at the end. On the thread of those who append."""
        self._tail.clear()

    def _note_checkpoint(self, written: Checkpoint | None) -> None:
        if written is not None:
            self._checkpoint, self._has_checkpoint = written, True

    def _note_end(self) -> None:
        newest = self._reader.newest
        self._ends.note(
            self.folder,
            CleanEnd(
                self._reader.newest_base,
                newest.covered,
                self.next_offset,
                named(self._checkpoint),
            ),
        )

    @property
    def _rescan_is_long(self) -> bool:
        unmarked = self._reader.newest.covered - self._checkpointed_bytes
        return unmarked >= self.settings.rescan_bytes

    def _checkpoint_at(self, start: LogStart) -> Checkpoint:
        return Checkpoint(
            start_offset=start.offset,
            segment=self._reader.newest_base,
            position=self._reader.newest.covered,
            next_offset=self.staged_offset,
            append_time=self._append_time,
            epoch=self._staged_epoch,
        )

    def _last_before(self, offset: Offset) -> StoredBatch | None:
        """The entry that ends at ``offset``; ``None`` if nothing is stored before it."""
        if offset == self.stored_from:
            return None
        last = self.read_disk(Offset(offset - 1), 1, stored=True)[0]
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


def _file_of(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {CHECKPOINT: encode_checkpoint(checkpoint)}


def _unwritten(folder: str, error: Exception) -> LogFailed:
    return LogFailed(
        f"{folder} could not be written: {getattr(error, 'strerror', None) or error}; "
        "it accepts no appends until it is opened again",
        folder=folder,
        errno=getattr(error, "errno", None),
    )
