"""What only the operating system's disk can get wrong: short writes, descriptors, other processes."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from quiver.log.disk import real_disk
from quiver.log.disk.real_disk import RealDisk
from quiver.log.disk.writeback import start_writeback

PAGE = mmap.ALLOCATIONGRANULARITY


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize("most", [1, 3, 5, 1000])
def test_short_writes_are_carried_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "writev", lambda fd, views: os.write(fd, b"".join(views)[:most]))
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: pwrite(fd, view[:most], at))
    file = RealDisk().open_append(f"{tmp_path}/file")
    file.append([b"ab", b"", b"cdefg", b"hij", b"k"])
    file.overwrite(2, b"CDEFGHI")
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abCDEFGHIjk"


def test_a_short_synced_append_is_carried_on_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "pwritev", lambda fd, views, *_: os.write(fd, b"".join(views)[:3]))
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_size))
    file = RealDisk().open_append(f"{tmp_path}/file")
    file.append_synced([b"ab"])
    file.append_synced([b"cde", b"fg"])
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abcdefg"
    assert synced == [2, 7]


def test_a_synced_append_syncs_what_was_appended_before_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_size))
    file = RealDisk().open_append(f"{tmp_path}/file")
    file.sync()
    for change in (
        lambda: file.append([b"abc"]),
        lambda: file.overwrite(0, b"ABC"),
        lambda: file.truncate(2),
    ):
        change()
        file.append_synced([b"d"])
    file.close()
    assert (tmp_path / "file").read_bytes() == b"ABd"
    assert synced == [0, 4, 5, 3]


def test_the_disk_begins_with_a_large_synced_append_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        real_disk, "start_writeback", lambda fd, at, size: done.append(("begin", at, size))
    )
    monkeypatch.setattr(os, "fdatasync", lambda fd: done.append(("sync", os.fstat(fd).st_size, 0)))
    file = RealDisk().open_append(f"{tmp_path}/file")
    file.append([bytes(3 << 20)])
    assert done == []
    file.append_synced([bytes(2 << 20), bytes(1 << 20), bytes(2 << 20)])
    file.close()
    mb = 1 << 20
    assert done == [("begin", 3 * mb, 2 * mb), ("begin", 5 * mb, 2 * mb), ("sync", 8 * mb, 0)]


def test_writeback_begins_on_any_file_and_fails_on_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    descriptor = os.open(path, os.O_WRONLY)
    start_writeback(descriptor, 0, 3)
    os.close(descriptor)
    start_writeback(descriptor, 0, 3)  # a sync tells what is wrong
    assert path.read_bytes() == b"abc"


def test_a_write_without_progress_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "writev", lambda fd, views: 0)
    file = RealDisk().open_append(f"{tmp_path}/file")
    with pytest.raises(OSError, match="takes no bytes"):
        file.append([b"abc"])
    file.close()


def test_an_append_after_a_failed_one_follows_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, views: Sequence[memoryview]) -> int:
        if written:
            raise OSError(errno.ENOSPC, "full")
        written.append(os.write(fd, views[0][:2]))
        return written[0]

    written: list[int] = []
    file = RealDisk().open_append(f"{tmp_path}/file")
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        with pytest.raises(OSError, match="full"):
            file.append([b"abc", b"def"])
    assert file.size() == 2
    file.append([b"x"])
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abx"


def test_a_file_that_shrinks_between_the_check_and_the_map_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shrinking(fd: int) -> os.stat_result:
        status = fstat(fd)
        os.truncate(path, PAGE)
        return status

    fstat, path = os.fstat, tmp_path / "file"
    path.write_bytes(bytes(4 * PAGE))
    monkeypatch.setattr(os, "fstat", shrinking)
    with pytest.raises(OSError, match="shrank") as raised:
        RealDisk().map(str(path), 0, 4 * PAGE)
    assert raised.value.errno == errno.EIO


class _ShrinkingMap(mmap.mmap):
    """The file loses its end after it was mapped and before its pages are read in."""

    path: Path

    def madvise(self, *arguments: int) -> None:
        os.truncate(self.path, PAGE)
        super().madvise(*arguments)


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14), reason="needs Linux 5.14"
)
def test_pages_that_cannot_be_read_raise_when_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * PAGE))
    monkeypatch.setattr(_ShrinkingMap, "path", path, raising=False)
    monkeypatch.setattr(mmap, "mmap", _ShrinkingMap)
    before = open_descriptors()
    with pytest.raises(OSError, match="cannot be read") as raised:
        RealDisk().map(str(path), 0, 4 * PAGE)
    assert raised.value.errno == errno.EIO
    assert open_descriptors() == before


class _OldKernelMap(mmap.mmap):
    def madvise(self, *arguments: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


def test_a_kernel_without_the_advice_still_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    monkeypatch.setattr(mmap, "mmap", _OldKernelMap)
    assert RealDisk().map(f"{tmp_path}/file", 1, 2) == b"bc"


def test_every_descriptor_is_closed_in_the_end(tmp_path: Path) -> None:
    disk = RealDisk()
    before = open_descriptors()
    disk.make_folder(f"{tmp_path}/a/b")
    file = disk.open_append(f"{tmp_path}/file")
    file.append([b"abc"])
    file.close()
    disk.map(f"{tmp_path}/file", 0, 3).release()
    disk.map(f"{tmp_path}/file", 0, 0).release()
    with pytest.raises(OSError, match="pass the end"):
        disk.map(f"{tmp_path}/file", 0, 4)
    lock = disk.lock(f"{tmp_path}/lock", "me")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{tmp_path}/lock", "you")
    lock.release()
    assert open_descriptors() == before


def test_make_folder_syncs_the_folder_of_each_new_entry_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    mkdir, sync_folder = os.mkdir, RealDisk.sync_folder
    monkeypatch.setattr(
        os, "mkdir", lambda path, mode: calls.append(("make", path)) or mkdir(path, mode)
    )
    monkeypatch.setattr(
        RealDisk,
        "sync_folder",
        lambda self, path: calls.append(("sync", path)) or sync_folder(self, path),
    )
    RealDisk().make_folder(f"{tmp_path}/a/b")
    assert calls == [
        ("sync", str(tmp_path.parent)),
        ("make", f"{tmp_path}/a"),
        ("sync", str(tmp_path)),
        ("make", f"{tmp_path}/a/b"),
        ("sync", f"{tmp_path}/a"),
    ]


@pytest.mark.process
def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from quiver.log.disk.real_disk import RealDisk\n"
        "lock = RealDisk().lock(sys.argv[1], 'the other process')\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    path = f"{tmp_path}/lock"
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError, match="the other process"):
            RealDisk().lock(path, "me")
        process.kill()
        process.wait()
    RealDisk().lock(path, "me").release()
    assert RealDisk().read(path) == b"me"
