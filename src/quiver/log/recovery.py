"""Opening a log's segments after a stop of any kind.

Recovery reads from the checkpoint to the end of the newest segment, the only one that can be torn:
every other segment was synced before its successor was created. What it does with the first entry
that is not intact is the heart of the promise that nothing acknowledged is lost:

- below the checkpoint, or below the durable offset that a later entry carries: those bytes were
  synced, so this is damage. ``CorruptLog``; nothing is cut.
- without a checkpoint, unless the log never had one: no crash takes that away, so there is damage
  already, and this may be more.
- otherwise: a write that was under way and never acknowledged. It is cut.

Entries that may never have been synced (those at or above the highest durable offset seen) are
written again before the sync that makes them readable: after a failed sync the operating system may
hold them in memory, marked clean, without having stored them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from quiver.errors import CorruptLog, UnsupportedFormat
from quiver.log.checkpoint import Checkpoint, blank_checkpoint, read_checkpoint
from quiver.log.clean_ends import CleanEnd
from quiver.log.disk.disk import AppendFile, Disk
from quiver.log.files import (
    CHECKPOINT,
    DELIVERY,
    INDEX,
    TIME_INDEX,
    map_entries,
    remove_strays,
    segment_name,
    segment_offsets,
    segment_path,
)
from quiver.log.scan import corrupt, scan, unsupported
from quiver.log.segment import Segment, SegmentIndexes, load_delivery, load_indexes
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch
from quiver.model.envelope import MAGIC, BadEntry, durable_offset_at
from quiver.model.ids import LeaderEpoch, Microseconds, Offset


class Recovered(msgspec.Struct, kw_only=True):
    """The newest segment, whole and synced, open for appending."""

    segment: Segment
    file: AppendFile
    indexes: SegmentIndexes
    next_offset: Offset
    append_time: Microseconds
    epoch: LeaderEpoch
    cut_bytes: int = 0
    scanned_bytes: int = 0
    """How much of the segment was read, up to its end."""
    is_clean: bool = False
    """Whether the log is as it was when its process was stopped in good order."""


class _Scanned(msgspec.Struct):
    """How far a scan came, and which of the entries may not be on the medium."""

    position: int
    next_offset: Offset
    append_time: Microseconds
    epoch: LeaderEpoch
    durable_offset: Offset
    has_checkpoint: bool
    is_clean: bool = False
    uncertain: list[tuple[Offset, int]] = msgspec.field(default_factory=list)


def last_checkpoint(disk: Disk, folder: str, names: list[str]) -> Checkpoint | None:
    """Where recovery starts; ``None`` if a checkpoint is missing that was there once.

    A log that has left none yet has one segment. A checkpoint comes before the second one, and the
    indexes of the bytes that it counts on before the checkpoint.
    """
    checkpoint, bases = read_checkpoint(disk, folder), segment_offsets(names)
    if checkpoint is None and CHECKPOINT not in names and len(bases) == 1:
        indexes = {segment_name(bases[0], suffix) for suffix in (INDEX, TIME_INDEX, DELIVERY)}
        if indexes.isdisjoint(names):
            return blank_checkpoint(bases[0])
    return checkpoint


def kept_segments(
    disk: Disk, folder: str, checkpoint: Checkpoint | None, first_offset: Offset = Offset(0)
) -> list[Offset]:
    """First offsets of the segments to open, after clearing what retention left half removed."""
    names = disk.list_folder(folder)
    bases = segment_offsets(names)
    if checkpoint is not None and checkpoint.segment not in bases:
        raise corrupt(segment_path(folder, checkpoint.segment), 0, "the file is missing")
    if not bases:
        disk.open_append(segment_path(folder, first_offset)).close()
        return [first_offset]
    if checkpoint is not None:
        gone = [base for base, end in pairwise(bases) if end <= checkpoint.start_offset]
        bases = bases[len(gone) :]
        if bases[0] > checkpoint.start_offset:
            raise corrupt(segment_path(folder, checkpoint.start_offset), 0, "the file is missing")
    remove_strays(disk, folder, names, bases)
    return bases


def recover(
    disk: Disk,
    folder: str,
    base_offset: Offset,
    checkpoint: Checkpoint | None,
    settings: LogSettings,
    end: CleanEnd | None = None,
    *,
    is_new: bool = False,
) -> Recovered:
    """Recover the segment that begins at ``base_offset``, the newest in ``folder``.

    ``end`` is where the log ended if its process was stopped in good order. One that ``is_new`` was
    made a moment ago.
    """
    segment = Segment(folder, base_offset, 0)
    size = disk.size(segment.path)
    if checkpoint is not None and checkpoint.segment == base_offset and size < checkpoint.position:
        raise corrupt(
            segment.path, size, f"{checkpoint.position - size:,} bytes that were synced are missing"
        )
    indexes, scanned = _starting_point(disk, folder, base_offset, checkpoint, settings)
    scanned.is_clean = is_new
    if end is not None and end.follows(checkpoint):
        _note_end(segment, size, scanned, end)
    segment.size = first_scanned = scanned.position
    segment.first_append_time(disk)  # a file that is not this segment's raises, and is not cut
    _scan_tail(disk, segment.path, size, settings, indexes, scanned)
    segment.size = scanned.position
    return Recovered(
        segment=segment,
        file=_open_whole(disk, segment, size, scanned),
        indexes=indexes,
        next_offset=scanned.next_offset,
        append_time=scanned.append_time,
        epoch=scanned.epoch,
        cut_bytes=size - scanned.position,
        scanned_bytes=scanned.position - first_scanned,
        is_clean=scanned.is_clean,
    )


def _note_end(segment: Segment, size: int, scanned: _Scanned, end: CleanEnd) -> None:
    """What a stop in good order left is synced: if some of it is missing or torn, that is damage."""
    if end.segment > segment.base_offset:
        raise corrupt(segment_path(segment.folder, end.segment), 0, "the file is missing")
    if end.segment < segment.base_offset:
        return
    if size < end.position:
        missing = end.position - size
        raise corrupt(segment.path, size, f"{missing:,} bytes that were synced are missing")
    scanned.durable_offset = max(scanned.durable_offset, end.next_offset)
    scanned.is_clean = size == end.position


def _starting_point(
    disk: Disk,
    folder: str,
    base_offset: Offset,
    checkpoint: Checkpoint | None,
    settings: LogSettings,
) -> tuple[SegmentIndexes, _Scanned]:
    """Where to scan from: the checkpoint, if it is of this segment and the indexes reach it."""
    fresh = _Scanned(0, base_offset, Microseconds(0), LeaderEpoch(0), base_offset, False)
    if checkpoint is not None:
        fresh.has_checkpoint = True
        fresh.append_time, fresh.epoch = checkpoint.append_time, checkpoint.epoch
        fresh.durable_offset = max(base_offset, checkpoint.next_offset)
    if checkpoint is None or checkpoint.segment != base_offset:
        return SegmentIndexes(settings.index_interval_bytes), fresh
    indexes = load_indexes(disk, folder, base_offset, settings.index_interval_bytes)
    if indexes is None or not checkpoint.position <= indexes.covered:
        return SegmentIndexes(settings.index_interval_bytes), fresh
    fresh.position, fresh.next_offset = checkpoint.position, checkpoint.next_offset
    indexes.delivery = load_delivery(disk, folder, base_offset, indexes)
    return indexes.before(checkpoint.position, checkpoint.next_offset), fresh


def _scan_tail(
    disk: Disk,
    path: str,
    size: int,
    settings: LogSettings,
    indexes: SegmentIndexes,
    scanned: _Scanned,
) -> None:
    """Go on from ``scanned`` to the end or to the tear; damage raises."""
    for position, entry in _until_tear(disk, path, size, settings.window_bytes, scanned):
        if entry.base_offset != scanned.next_offset:
            reason = f"offset {scanned.next_offset:,} expected, {entry.base_offset:,} found"
            raise corrupt(path, position, reason)
        indexes.add(entry, position)
        scanned.position = position + entry.size()
        scanned.next_offset = entry.next_offset
        scanned.append_time, scanned.epoch = entry.append_time, entry.epoch
        scanned.durable_offset = max(scanned.durable_offset, entry.durable_offset)
        scanned.uncertain.append((entry.base_offset, position))
        if scanned.uncertain[0][0] < scanned.durable_offset:
            scanned.uncertain = [
                place for place in scanned.uncertain if place[0] >= scanned.durable_offset
            ]


def _until_tear(
    disk: Disk, path: str, size: int, window_bytes: int, scanned: _Scanned
) -> Iterator[tuple[int, StoredBatch]]:
    try:
        yield from scan(disk, path, scanned.position, size, window_bytes)
    except CorruptLog as damage:
        # What cannot be read at all is not known to be torn.
        readable = isinstance(damage.__cause__, BadEntry)
        promised = scanned.next_offset < scanned.durable_offset or not scanned.has_checkpoint
        if promised or not readable or _was_synced(disk, path, size, scanned):
            raise


def _was_synced(disk: Disk, path: str, size: int, scanned: _Scanned) -> bool:
    """Whether an entry after the bad one says that the bad one had been synced.

    What an entry of a newer version says is not known: ``UnsupportedFormat``, and nothing is cut.
    """
    step, overlap = 1 << 20, 4096
    for start in range(scanned.position + 8, size, step):
        view = map_entries(disk, path, start, min(step + overlap, size - start))
        data = bytes(view)
        at = data.find(MAGIC)
        while 0 <= at < step:
            try:
                base_offset, durable_offset = durable_offset_at(view, at)
                if scanned.next_offset < durable_offset <= base_offset:
                    return True
            except BadEntry:
                pass
            except UnsupportedFormat as newer:
                raise unsupported(path, start + at, newer) from newer
            at = data.find(MAGIC, at + 1)
    return False


def _open_whole(disk: Disk, segment: Segment, size: int, scanned: _Scanned) -> AppendFile:
    """The file, cut behind its last intact entry, with everything in it on the medium."""
    file = disk.open_append(segment.path)
    try:
        if scanned.position < size:
            file.truncate(scanned.position)
        _write_again(disk, segment.path, file, scanned)
        if not scanned.is_clean:
            file.sync()
            disk.sync_folder(segment.folder)
    except BaseException:
        file.close()
        raise
    return file


def _write_again(disk: Disk, path: str, file: AppendFile, scanned: _Scanned) -> None:
    step = 1 << 20
    if scanned.uncertain:
        for start in range(scanned.uncertain[0][1], scanned.position, step):
            length = min(step, scanned.position - start)
            file.overwrite(start, bytes(map_entries(disk, path, start, length)))
