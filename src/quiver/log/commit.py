"""The disk's part of an append: the only code that writes a segment, run off the event loop.

A log hands a ``Commit`` out, somebody runs it (in any one thread), and the log takes it back. While
it runs it touches the ``Appender`` alone, so readers are never in its way.
"""

from __future__ import annotations

import msgspec

from quiver.log.checkpoint import Checkpoint
from quiver.log.disk.disk import AppendFile, Disk
from quiver.log.files import (
    SUFFIXES,
    UNFINISHED,
    map_entries,
    remove_files,
    segment_offsets,
    segment_path,
    write_files,
)
from quiver.log.log_start import LogStart
from quiver.model.batch import Bytes, StoredBatch
from quiver.model.ids import Offset

_COPY_BYTES = 1 << 20


class Appender:
    """The newest segment's file. Every other segment was synced before its successor was created."""

    def __init__(self, disk: Disk, folder: str, file: AppendFile, *, is_listed: bool) -> None:
        self.disk = disk
        self.folder = folder
        self.file = file
        self.is_listed = is_listed
        """Whether the folder is known to list the file after a loss of power."""

    def list_durably(self) -> None:
        """What is synced in a new file is found again only if its folder is synced too."""
        if not self.is_listed:
            self.disk.sync_folder(self.folder)
            self.is_listed = True

    def roll(self, base_offset: Offset, files: dict[str, bytes]) -> None:
        """Close the segment for good, with these files, and begin the one at ``base_offset``."""
        self.file.sync()
        write_files(self.disk, self.folder, files)
        following = self.disk.open_append(segment_path(self.folder, base_offset))
        self.file.close()
        self.file = following
        self.disk.sync_folder(self.folder)
        self.is_listed = True

    def cut(self, base_offset: Offset, position: int) -> None:
        """End the log inside the segment at ``base_offset``; later segments go, newest first.

        The kept part becomes a new file: shortening one that a reader has mapped would kill it.
        """
        self.file.close()
        for base in reversed(segment_offsets(self.disk.list_folder(self.folder))):
            if base > base_offset:
                paths = [segment_path(self.folder, base, suffix) for suffix in SUFFIXES]
                remove_files(self.disk, paths)
                self.disk.sync_folder(self.folder)
        path = segment_path(self.folder, base_offset)
        unfinished = path + UNFINISHED
        kept = self.disk.open_append(unfinished)
        try:
            for start in range(0, position, _COPY_BYTES):
                length = min(_COPY_BYTES, position - start)
                kept.append([map_entries(self.disk, path, start, length)])
            kept.sync()
        finally:
            kept.close()
        self.disk.rename(unfinished, path)
        self.disk.sync_folder(self.folder)
        self.file = self.disk.open_append(path)
        self.is_listed = True


class Roll(msgspec.Struct, frozen=True):
    """Begin a new segment before the entries that follow."""

    base_offset: Offset
    files: dict[str, bytes]
    """The indexes of the segment that ends, and the checkpoint."""
    checkpoint: Checkpoint | None = None
    """What the checkpoint among the files says: there is one if the log had none yet."""


class Commit(msgspec.Struct, kw_only=True):
    """Entries to write with the rolls between them, then a sync, then maintenance that rests on it.

    ``files`` (a checkpoint, with the indexes it counts on) replace their elders only once the entries
    are synced; ``removals`` are files that no checkpoint names any more. ``start`` is where the log
    begins once the checkpoint is there.
    """

    appender: Appender
    steps: list[StoredBatch | Roll]
    sync: bool
    has_unsynced: bool = True
    """Whether there is anything in the segment, or among the steps, that is not synced yet."""
    files: dict[str, bytes] = {}
    removals: list[str] = []
    start: LogStart | None = None
    checkpoint: Checkpoint | None = None
    """What the checkpoint among the files says."""

    def run(self) -> None:
        """Do everything in order; when this returns, what was asked for is so."""
        waiting: list[Bytes] = []
        for step in self.steps:
            if isinstance(step, Roll):
                self._write(waiting)
                waiting = []
                self.appender.roll(step.base_offset, step.files)
            else:
                waiting += step.buffers()
        if self.sync and waiting:
            self.appender.file.append_synced(waiting)
        else:
            self._write(waiting)
            if self.sync and self.has_unsynced:
                self.appender.file.sync()
        if self.sync:
            self.appender.list_durably()
        if self.files:
            assert self.sync, "a checkpoint speaks of synced bytes only"
            write_files(self.appender.disk, self.appender.folder, self.files)
        remove_files(self.appender.disk, self.removals)

    def _write(self, buffers: list[Bytes]) -> None:
        if buffers:
            self.appender.file.append(buffers)
