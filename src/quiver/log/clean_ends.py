"""Where logs ended when their process was last stopped in good order: one small file for all of them.

A log that is closed has synced everything, and says so here instead of leaving a checkpoint of its
own. A thousand logs then share one sync. The next start reads the file and removes it before any log
is opened: what it says is true of logs that nobody has changed since. Without the file, as after a
crash, recovery works as well; it writes a little again, and sees less damage in the last entry.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from quiver.log.checkpoint import Checkpoint
from quiver.log.disk.disk import Disk
from quiver.log.files import write_files
from quiver.model.ids import Offset

STOPPED = "stopped"
"""The name of the file, in the data folder."""
_VERSION = 1


class CleanEnd(msgspec.Struct, frozen=True, array_like=True):
    """All bytes of segment ``segment`` below ``position`` are synced, and no others are there."""

    segment: Offset
    position: int
    next_offset: Offset
    checkpoint: tuple[Offset, int, Offset]
    """Segment, position and next offset of the newest checkpoint then."""

    def follows(self, checkpoint: Checkpoint | None) -> bool:
        """Whether that is still the newest checkpoint: another program may have written since."""
        return checkpoint is not None and self.checkpoint == named(checkpoint)


class CleanEnds:
    """By the log's folder, which is below ``root``."""

    def __init__(self, root: str = "") -> None:
        self._root = f"{root}/"
        self._ends: dict[str, CleanEnd] = {}
        self.is_stopping = False
        """Whether what is closed now is not opened again by this process."""

    def __len__(self) -> int:
        return len(self._ends)

    def note(self, folder: str, end: CleanEnd) -> None:
        """A log was closed, and everything in it is synced. May be called in any thread."""
        if self.is_stopping:
            self._ends[folder.removeprefix(self._root)] = end

    def begin_stop(self) -> None:
        """Logs are closed for good from now on; ``save`` comes last."""
        self.is_stopping = True

    def take(self, folder: str) -> CleanEnd | None:
        """Where a log ended that is opened now; from here on it may end elsewhere."""
        return self._ends.pop(folder.removeprefix(self._root), None)

    def names_in(self, folder: str) -> set[str]:
        """What is in a folder, as far as logs in or below it ended in good order."""
        prefix = f"{folder.removeprefix(self._root)}/"
        found = [log.removeprefix(prefix) for log in self._ends if log.startswith(prefix)]
        return {log.partition("/")[0] for log in found}

    @classmethod
    def load(cls, disk: Disk, root: str) -> CleanEnds:
        """What the last stop left, which is removed: it is not true for long."""
        ends, path = cls(root), f"{root}/{STOPPED}"
        if disk.exists(path):
            ends._ends = _decoded(disk.read(path))
            disk.remove(path)
            disk.sync_folder(root)
        return ends

    def save(self, disk: Disk) -> None:
        """Keep it for the next start; no log may be open."""
        if self._ends:
            data = _encode((_VERSION, self._ends))
            content = crc32c(data).to_bytes(4, "little") + data
            write_files(disk, self._root.rstrip("/"), {STOPPED: content})


def named(checkpoint: Checkpoint) -> tuple[Offset, int, Offset]:
    return checkpoint.segment, checkpoint.position, checkpoint.next_offset


def _decoded(data: bytes) -> dict[str, CleanEnd]:
    if crc32c(data[4:]).to_bytes(4, "little") != data[:4]:
        return {}
    try:
        version, ends = _decoder.decode(data[4:])
    except msgspec.MsgspecError:
        return {}
    return ends if version == _VERSION else {}


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[tuple[int, dict[str, CleanEnd]]] = msgspec.msgpack.Decoder(
    tuple[int, dict[str, CleanEnd]]
)
