"""Reading the entries of a segment file in order, through small mapped windows.

A scan yields entries whose checksums were verified, as views of the mapped file. The first thing
that is not an intact entry raises ``CorruptLog`` with file and position: whether that is a torn tail
or damage is for recovery to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quiver.errors import CorruptLog, UnsupportedFormat
from quiver.log.disk.disk import Disk
from quiver.log.files import map_entries
from quiver.model.batch import StoredBatch
from quiver.model.envelope import ENVELOPE_SIZE, BadEntry, entry_at, entry_size_at


def scan(
    disk: Disk,
    path: str,
    position: int,
    limit: int,
    window_bytes: int,
    skips: Callable[[memoryview, int], bool] | None = None,
    bytes_max: int | None = None,
) -> Iterator[tuple[int, StoredBatch]]:
    """Entries of ``path`` from ``position`` to ``limit``, each with its position.

    Entries that ``skips`` names by their place in a view are hopped over and not verified. After the
    first, an entry that would make it more than ``bytes_max`` ends the scan, and is not read either.
    """
    wanted, taken = window_bytes, 0
    while position < limit and (bytes_max is None or not taken or taken < bytes_max):
        view = map_entries(disk, path, position, min(wanted, limit - position))
        at, rest, wanted = 0, limit - position, window_bytes
        while at < len(view):
            if len(view) - at < ENVELOPE_SIZE <= rest - at:
                break
            try:
                size = entry_size_at(view, at)
                if bytes_max is not None and taken and taken + size > bytes_max:
                    return
                if size > len(view) - at and size <= rest - at:
                    wanted = max(window_bytes, size)
                    break
                if skips is None or size > rest - at or not skips(view, at):
                    yield position + at, entry_at(view, at)
                    taken += size
            except BadEntry as bad:
                raise corrupt(path, position + at, str(bad)) from bad
            except UnsupportedFormat as newer:
                raise unsupported(path, position + at, newer) from newer
            at += size
        position += at


def corrupt(path: str, position: int, reason: str) -> CorruptLog:
    return CorruptLog(
        f"{path} is damaged at {position:,}: {reason}; "
        "restore the file, or rebuild this replica from a peer",
        file=path,
        position=position,
    )


def unsupported(path: str, position: int, newer: UnsupportedFormat) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{path} at {position:,}: {newer.message}", file=path, position=position, **newer.details
    )
