"""Few files are open, however many there are to write to."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quiver.log.disk.real_disk import RealDisk


def open_files(folder: Path) -> set[str]:
    """Names of files in a folder that this process has open."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if path.startswith(f"{folder}/"):
            found.add(path.rpartition("/")[2])
    return found


def test_the_files_that_were_used_longest_ago_are_closed(tmp_path: Path) -> None:
    disk = RealDisk(files_max=3)
    files = [disk.open_append(f"{tmp_path}/{name}") for name in "abcdef"]
    for file in files:
        file.append_synced([b"one"])
    assert open_files(tmp_path) == {"d", "e", "f"}
    files[0].append_synced([b"two"])
    files[0].append_synced([b"three"])
    assert open_files(tmp_path) == {"a", "e", "f"}
    assert (tmp_path / "a").read_bytes() == b"onetwothree"
    for file in files:
        file.close()
    assert open_files(tmp_path) == set()


def test_a_file_with_bytes_that_are_not_synced_stays_open(tmp_path: Path) -> None:
    disk = RealDisk(files_max=1)
    unsynced = disk.open_append(f"{tmp_path}/unsynced")
    unsynced.append([b"one"])
    others = [disk.open_append(f"{tmp_path}/{name}") for name in "abc"]
    assert open_files(tmp_path) == {"unsynced", "c"}
    unsynced.sync()
    others[0].append_synced([b"x"])
    assert open_files(tmp_path) == {"a"}


def test_a_closed_file_takes_nothing_also_if_its_descriptor_was_closed_before(
    tmp_path: Path,
) -> None:
    disk = RealDisk(files_max=1)
    first, second = (disk.open_append(f"{tmp_path}/{name}") for name in "ab")
    second.sync()
    first.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        first.append([b"x"])


def test_a_file_that_was_removed_is_not_made_anew(tmp_path: Path) -> None:
    disk = RealDisk(files_max=1)
    first, second = (disk.open_append(f"{tmp_path}/{name}") for name in "ab")
    second.sync()
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError):
        first.append([b"x"])


def test_threads_share_a_pool(tmp_path: Path) -> None:
    disk = RealDisk(files_max=2)
    files = [disk.open_append(f"{tmp_path}/{name}") for name in range(16)]

    def write(index: int) -> None:
        for number in range(50):
            files[index].append_synced([b"%03d" % number])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(16)))
    expected = b"".join(b"%03d" % number for number in range(50))
    assert all((tmp_path / str(name)).read_bytes() == expected for name in range(16))
    assert len(open_files(tmp_path)) == 2
