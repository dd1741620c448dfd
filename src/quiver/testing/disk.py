"""A disk in memory that loses, tears and corrupts whatever a real one may.

``SimulatedDisk`` promises what ``Disk`` promises and no more: ``crash`` takes every liberty that
POSIX leaves with what was not synced. The same seed and the same operations give the same bytes, so
any failure can be played again.
"""

from __future__ import annotations

import errno
import os
from random import Random
from typing import TypeVar

from quiver.log.disk.disk import AppendFile, Disk, FolderLock
from quiver.testing.disk_faults import Fault, Hazards, Operation, SimulatedCrash
from quiver.testing.power_loss import PowerLoss
from quiver.testing.simulated_file import SimulatedFile
from quiver.testing.simulated_folder import EntryJournal, Node, SimulatedFolder, Slot
from quiver.testing.simulated_handles import Lifetime, SimulatedAppendFile, SimulatedLock

__all__ = ["Fault", "Operation", "SimulatedCrash", "SimulatedDisk"]

_UNLIMITED_BYTES = 1 << 40

NodeType = TypeVar("NodeType", SimulatedFile, SimulatedFolder)


class SimulatedDisk(Disk):
    """A disk of one machine, in memory, whose root folder ``/`` is there from the start.

    After ``crash``: what was synced is there; of the rest any subset is, torn at sectors of 512
    bytes; a file whose entry was not synced may be gone. After ``kill``, only the process died:
    everything is still there, and still not durable. Both release every lock and kill every handle:
    using one then is ``OSError``, closing it does nothing.
    """

    def __init__(self, seed: int, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self._rng = Random(seed)
        self._hazards = Hazards(self._rng)
        self._journal = EntryJournal()
        self._locks: dict[SimulatedFile, SimulatedLock] = {}
        self._lifetime = Lifetime()

    # What a test does to the disk.

    @property
    def operation_count(self) -> int:
        """How many operations that change the disk were begun, over its whole life."""
        return self._hazards.operation_count

    def crash(self) -> None:
        """Lose power, and have it back."""
        with self._hazards.lock:
            self._journal.lose_power(PowerLoss(self._rng))
            self.kill()

    def kill(self) -> None:
        """Let the process die, and start anew: the system still holds what was not synced."""
        with self._hazards.lock:
            self._hazards.restore_power()
            self._locks.clear()
            self._lifetime.over = True
            self._lifetime = Lifetime()

    def crash_at(self, count: int) -> None:
        """Raise ``SimulatedCrash`` in the middle of the operation that makes the count ``count``.

        From then on every operation raises it, until ``crash`` or ``kill``.
        """
        if count <= self.operation_count:
            raise ValueError(f"operation {count} is past: {self.operation_count} were begun")
        self._hazards.crash_at = count

    def fail(
        self,
        operation: Operation,
        error: int,
        *,
        times: int | None = 1,
        path: str | None = None,
        after: int = 0,
        partial: int | None = None,
    ) -> Fault:
        """Make matching operations raise ``OSError(error)``; the ``Fault`` counts its hits.

        A failing append or overwrite writes ``partial`` of its bytes first (``None``: as many as
        chance will have it). After a failing sync no later sync makes the bytes durable, unless
        they are written again. Any other failing operation does nothing. Faults are of the medium:
        they outlive a crash.
        """
        fault = Fault(
            operation=operation, error=error, path=path, times=times, after=after, partial=partial
        )
        self._hazards.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Take back every fault, and a crash that has not come yet."""
        self._hazards.faults.clear()
        self._hazards.crash_at = None

    def corrupt(self, path: str, position: int, data: bytes) -> None:
        """Replace bytes of a file in place, as rot does: what was durable is durably wrong."""
        with self._hazards.lock:
            self._find(path, SimulatedFile).corrupt(position, data)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        with self._hazards.lock:
            (byte,) = self._find(path, SimulatedFile).window(position, 1)
            self.corrupt(path, position, bytes((byte ^ (1 << bit),)))

    # What a program does with it.

    def make_folder(self, path: str) -> None:
        with self._hazards.during("make_folder", path, amount=2) as steps:
            slots: list[Slot] = []
            grown: list[SimulatedFolder] = []
            folder = self._journal.root
            for name in _names(path):
                slots.append((folder, name))
                if name not in folder.entries:
                    self._journal.create((folder, name), SimulatedFolder())
                    grown.append(folder)
                child = folder.entries[name]
                if not isinstance(child, SimulatedFolder):
                    is_last = len(slots) == len(_names(path))
                    raise _error(errno.EEXIST if is_last else errno.ENOTDIR, path)
                folder = child
            if steps == 2:  # a crash may come after the folders are made, before they are durable
                self._journal.sync_entries(slots)
                for folder in grown:
                    self._journal.sync_folder(folder)

    def list_folder(self, path: str) -> list[str]:
        with self._hazards.during("list_folder", path):
            return sorted(self._find(path, SimulatedFolder).entries)

    def sync_folder(self, path: str) -> None:
        with self._hazards.during("sync_folder", path):
            self._journal.sync_folder(self._find(path, SimulatedFolder))

    def exists(self, path: str) -> bool:
        with self._hazards.during("exists", path):
            try:
                self._node(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def size(self, path: str) -> int:
        with self._hazards.during("size", path):
            return self._find(path, SimulatedFile).size

    def open_append(self, path: str) -> AppendFile:
        with self._hazards.during("open", path):
            file = self._file(path)
            return SimulatedAppendFile(
                file, path, self._hazards, self._lifetime, self._unused_bytes
            )

    def read(self, path: str) -> bytes:
        with self._hazards.during("read", path):
            file = self._find(path, SimulatedFile)
            return bytes(file.window(0, file.size))

    def map(self, path: str, position: int, length: int) -> memoryview:
        with self._hazards.during("map", path):
            if position < 0 or length < 0:
                raise _error(errno.EINVAL, path)
            file = self._find(path, SimulatedFile)
            if length == 0:
                return memoryview(b"")
            if position + length > file.size:
                text = f"{length} bytes at {position} pass the end, {file.size}"
                raise OSError(errno.EIO, text, path)
            return file.window(position, length)

    def rename(self, old: str, new: str) -> None:
        with self._hazards.during("rename", new):
            source, target = self._slot(old), self._slot(new)
            node = self._node(old)
            replaced = target[0].entries.get(target[1])
            if node is not replaced:
                _check_rename(old, new, node, replaced)
                self._journal.rename(source, target)

    def remove(self, path: str) -> None:
        with self._hazards.during("remove", path):
            self._find(path, SimulatedFile)
            self._journal.remove(self._slot(path))

    def remove_folder(self, path: str) -> None:
        """Each file and folder removed is an operation, for a crash may come between any two."""
        for name in self.list_folder(path):
            child = f"{path}/{name}"
            if isinstance(self._node(child), SimulatedFolder):
                self.remove_folder(child)
            else:
                self.remove(child)
        with self._hazards.during("remove", path):
            self._journal.remove(self._slot(path))

    def lock(self, path: str, owner: str) -> FolderLock:
        with self._hazards.during("lock", path):
            file = self._file(path)
            if file in self._locks:
                holder = bytes(file.window(0, file.size)).decode(errors="replace")
                raise BlockingIOError(errno.EWOULDBLOCK, holder)
            file.truncate(0)
            file.write(0, owner.encode())
            return SimulatedLock(self._locks, file)

    def free_bytes(self, path: str) -> int:
        with self._hazards.during("free_bytes", path):
            self._node(path)
            return self._unused_bytes()

    def _unused_bytes(self) -> int:
        if self.capacity_bytes is None:
            return _UNLIMITED_BYTES
        used = sum(file.size for file in self._journal.root.files())
        return max(self.capacity_bytes - used, 0)

    # Paths.

    def _node(self, path: str) -> Node:
        node: Node = self._journal.root
        for name in _names(path):
            if not isinstance(node, SimulatedFolder):
                raise _error(errno.ENOTDIR, path)
            if name not in node.entries:
                raise _error(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def _find(self, path: str, kind: type[NodeType]) -> NodeType:
        node = self._node(path)
        if not isinstance(node, kind):
            raise _error(errno.EISDIR if kind is SimulatedFile else errno.ENOTDIR, path)
        return node

    def _slot(self, path: str) -> Slot:
        if not _names(path):
            raise _error(errno.EBUSY, path)
        *parents, name = _names(path)
        return self._find("/".join(parents), SimulatedFolder), name

    def _file(self, path: str) -> SimulatedFile:
        """The file, made if it is missing."""
        folder, name = self._slot(path)
        if name not in folder.entries:
            with self._hazards.during("create", path):
                self._journal.create((folder, name), SimulatedFile())
        return self._find(path, SimulatedFile)


def _names(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", ".")]
    assert ".." not in names, "the simulated disk has no way up"
    return names


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _check_rename(old: str, new: str, node: Node, replaced: Node | None) -> None:
    source, target = _names(old), _names(new)
    if target[: len(source)] == source:
        raise _error(errno.EINVAL if isinstance(node, SimulatedFolder) else errno.ENOTDIR, new)
    if source[: len(target)] == target:
        raise _error(errno.ENOTEMPTY, new)
    if isinstance(replaced, SimulatedFolder):
        if not isinstance(node, SimulatedFolder):
            raise _error(errno.EISDIR, new)
        if replaced.entries:
            raise _error(errno.ENOTEMPTY, new)
    elif isinstance(node, SimulatedFolder) and replaced is not None:
        raise _error(errno.ENOTDIR, new)
