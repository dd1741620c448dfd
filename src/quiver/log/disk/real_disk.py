"""The disk of the operating system.

``RealDisk`` keeps the promises of ``Disk`` with plain POSIX calls. It holds no state of its own but the
descriptors of files that are open for writing. A lock is a ``flock``, which dies with the process, and
every view owns its mapping.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from itertools import islice

from quiver.log.disk.disk import AppendFile, Bytes, Disk, FolderLock
from quiver.log.disk.file_pool import FilePool
from quiver.log.disk.writeback import start_writeback

FILE_MODE, _FOLDER_MODE = 0o600, 0o700
"""Messages are for nobody but the node's own user, whatever the umask."""
_IOV_MAX = 1024
_WRITE_BYTES = 256 << 10
"""How much one call writes. Larger writes are given larger folios: a tenth faster in memory that was
used before, up to five times slower in memory that a virtual machine has yet to be given."""
_WRITEBACK_BYTES = 2 << 20
"""Of a write that is synced at its end, the disk is given so many bytes at a time."""
_APPEND_SYNCED = getattr(os, "RWF_DSYNC", 0) | getattr(os, "RWF_APPEND", 0)
"""Flags of a write that is durable on return; none where the system has no such write."""
_MADV_POPULATE_READ = 22
_CLOSED = -1
_MADE_MAX = 1024


class RealDisk(Disk):
    """The operating system's files; the paths are the operating system's paths.

    ``files_max`` bounds the files that are open for writing while nobody writes to them.
    """

    _pool: FilePool | None = None

    def __init__(self, files_max: int | None = None) -> None:
        self._made: dict[str, None] = {}
        """Some of the folders whose entries are known to be durable."""
        if files_max is not None:
            self._pool = FilePool(files_max)

    def make_folder(self, path: str) -> None:
        folder = os.path.abspath(path)
        missing = []
        while not self.exists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        # A process may have died between making this folder and syncing its entry. It made nothing
        # below it, since each entry is synced before the next: so this is the only one in doubt.
        if folder not in self._made:
            with contextlib.suppress(PermissionError):
                self.sync_folder(os.path.dirname(folder))
            self._remember(folder)
        for child in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(child, _FOLDER_MODE)
            self.sync_folder(os.path.dirname(child))
            self._remember(child)
        if not os.path.isdir(path):
            raise _error(errno.EEXIST, path)

    def _remember(self, folder: str) -> None:
        """The entry of this folder is durable."""
        while len(self._made) >= _MADE_MAX:
            self._made.pop(next(iter(self._made)), None)
        self._made[folder] = None

    def list_folder(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def sync_folder(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        # os.path.exists answers False to any error; a medium that fails is not a missing file.
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def open_append(self, path: str) -> AppendFile:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, FILE_MODE)
        return RealAppendFile(path, descriptor, self._pool)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def map(self, path: str, position: int, length: int) -> memoryview:
        if position < 0 or length < 0:
            raise _error(errno.EINVAL, path)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise _error(errno.EISDIR, path)
            if length == 0:
                return memoryview(b"")
            if position + length > status.st_size:
                text = f"{length} bytes at {position} pass the end, {status.st_size}"
                raise OSError(errno.EIO, text, path)
            skipped = position % mmap.ALLOCATIONGRANULARITY
            mapping = _map(descriptor, path, position - skipped, length + skipped)
        finally:
            os.close(descriptor)
        return memoryview(mapping)[skipped:]

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        shutil.rmtree(path)
        for folder in [
            one for one in self._made if f"{one}/".startswith(f"{os.path.abspath(path)}/")
        ]:
            self._made.pop(folder, None)

    def lock(self, path: str, owner: str) -> FolderLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, owner.encode())
        except BlockingIOError:
            holder = self.read(path).decode(errors="replace")
            os.close(descriptor)
            raise BlockingIOError(errno.EWOULDBLOCK, holder) from None
        except BaseException:
            os.close(descriptor)
            raise
        return RealLock(descriptor)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


class RealAppendFile(AppendFile):
    """A file open for writing; once closed, every use is ``OSError`` (EBADF).

    After a failed ``sync`` the kernel may drop the bytes and let the next ``sync`` succeed, so the
    caller must treat the file as lost from its last good sync on. The file is not opened with
    O_APPEND, which on Linux would send ``overwrite`` to the end too. While nothing in it waits for a
    sync, ``pool`` may close its descriptor.
    """

    __slots__ = ("_descriptor", "_is_closed", "_is_dirty", "_path", "_pool", "_synced")

    def __init__(self, path: str, descriptor: int, pool: FilePool | None = None) -> None:
        self._path = path
        self._descriptor = descriptor
        self._pool = pool
        self._is_closed = False
        self._is_dirty = False
        """Whether something was written that was not synced since."""
        self._synced = False
        self._put_back()

    def append(self, buffers: Sequence[Bytes]) -> None:
        with self:
            self._append(_views(buffers))

    def append_synced(self, buffers: Sequence[Bytes]) -> None:
        """One system call for what is small: after each, a thread may have to wait for its turn.

        Such a call makes durable what it wrote and no more: everything else must be so already.
        """
        views = _views(buffers)
        small = len(views) <= _IOV_MAX and sum(view.nbytes for view in views) <= _WRITE_BYTES
        with self:
            if self._synced and small and _APPEND_SYNCED:
                self._wrote()
                views = _rest(views, os.pwritev(self._descriptor, views, 0, _APPEND_SYNCED))
                if not views:
                    self._synced, self._is_dirty = True, False
                    return
            self._append(views, is_synced_next=True)
            self._sync()

    def _append(self, views: list[memoryview], *, is_synced_next: bool = False) -> None:
        self._wrote()
        begun = end = os.lseek(self._descriptor, 0, os.SEEK_END)
        while views:
            written = os.writev(self._descriptor, _portion(views))
            _check_progress(written)
            views = _rest(views, written)
            end += written
            if is_synced_next and end - begun >= _WRITEBACK_BYTES:
                start_writeback(self._descriptor, begun, end - begun)
                begun = end

    def overwrite(self, position: int, data: Bytes) -> None:
        view = memoryview(data).cast("B")
        with self:
            self._wrote()
            size = os.fstat(self._descriptor).st_size
            if position < 0 or position + len(view) > size:
                text = f"{len(view)} bytes at {position} are not inside {size}"
                raise OSError(errno.EINVAL, text)
            while view:
                written = os.pwrite(self._descriptor, view, position)
                _check_progress(written)
                position += written
                view = view[written:]

    def sync(self) -> None:
        with self:
            self._sync()

    def _sync(self) -> None:
        if sys.platform == "darwin":
            # fsync there leaves the bytes in the drive's own cache.
            fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(self._descriptor)
        self._synced, self._is_dirty = True, False

    def size(self) -> int:
        with self:
            return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        with self:
            if size > os.fstat(self._descriptor).st_size:
                raise OSError(errno.EINVAL, f"truncate to {size} would make the file longer")
            self._wrote()
            os.ftruncate(self._descriptor, size)

    def _wrote(self) -> None:
        self._synced, self._is_dirty = False, True

    def close(self) -> None:
        if self._pool is not None:
            self._pool.take(self)
        self._is_closed = True
        self.close_for_now()

    # ------------------------------------------------------------------ the descriptor

    def close_for_now(self) -> None:
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)

    def __enter__(self) -> None:
        """The descriptor is there until the end of the block."""
        if self._pool is not None:
            self._pool.take(self)
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if self._descriptor == _CLOSED:
            self._descriptor = os.open(self._path, os.O_WRONLY)

    def __exit__(self, *_: object) -> None:
        self._put_back()

    def _put_back(self) -> None:
        if self._pool is not None and not self._is_dirty:
            self._pool.put_back(self)


class RealLock(FolderLock):
    """A held ``flock``. The lock file stays when released: removing it would race with a taker."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            # Closing alone would leave the lock with a child process that inherited the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _views(buffers: Sequence[Bytes]) -> list[memoryview]:
    return [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]


def _portion(views: list[memoryview]) -> list[memoryview]:
    """What one call writes of the views; the last of them may be cut."""
    portion, room = [], _WRITE_BYTES
    for view in islice(views, _IOV_MAX):
        if view.nbytes >= room:
            portion.append(view[:room])
            break
        portion.append(view)
        room -= view.nbytes
    return portion


def _rest(views: list[memoryview], written: int) -> list[memoryview]:
    """What is left of the views when so many bytes were written."""
    for place, view in enumerate(views):
        if written < view.nbytes:
            return [view[written:], *views[place + 1 :]]
        written -= view.nbytes
    return []


def _check_progress(written: int) -> None:
    if written == 0:
        raise OSError(errno.EIO, "the file takes no bytes")


def _map(descriptor: int, path: str, position: int, length: int) -> mmap.mmap:
    """Map the pages and read them in, so that a page that cannot be read fails here."""
    try:
        if sys.version_info >= (3, 13):
            # Without this each mapping keeps a duplicate of the descriptor for as long as it lives.
            mapping = mmap.mmap(
                descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=position, trackfd=False
            )
        else:
            mapping = mmap.mmap(
                descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=position
            )
    except ValueError as error:
        raise OSError(errno.EIO, f"the file shrank while it was mapped: {error}", path) from error
    if sys.platform == "linux":
        try:
            mapping.madvise(_MADV_POPULATE_READ)
        except OSError as error:
            # Kernels before 5.14 do not know the advice; there a bad page is met when touched.
            if error.errno != errno.EINVAL:
                mapping.close()
                raise OSError(errno.EIO, f"the bytes cannot be read: {error}", path) from error
    return mapping


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
