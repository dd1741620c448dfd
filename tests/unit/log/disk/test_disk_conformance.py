"""What every ``Disk`` promises, asked of the operating system and of the simulated disk alike."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.log.disk.disk import AppendFile, Disk
from quiver.log.disk.real_disk import RealDisk
from quiver.testing.disk import SimulatedDisk

PAGE = mmap.ALLOCATIONGRANULARITY


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return RealDisk() if request.param == "real" else SimulatedDisk(seed=1)


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    root = f"{tmp_path}/data"
    disk.make_folder(root)
    return root


@pytest.fixture
def file(disk: Disk, root: str) -> Iterator[AppendFile]:
    file = disk.open_append(f"{root}/file")
    yield file
    file.close()


def write(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open_append(path)
    file.append([data])
    file.close()


def test_appended_buffers_are_read_back_in_order(disk: Disk, root: str, file: AppendFile) -> None:
    file.append([b"one ", bytearray(b"two "), memoryview(b"three")])
    file.append([])
    file.append([b"", b"!"])
    file.sync()
    assert disk.read(f"{root}/file") == b"one two three!"


def test_a_view_of_wider_items_is_appended_as_its_bytes(
    disk: Disk, root: str, file: AppendFile
) -> None:
    file.append([memoryview(b"12345678").cast("I"), memoryview(b"9").cast("b")])
    assert disk.read(f"{root}/file") == b"123456789"


def test_more_buffers_than_one_system_call_takes_are_all_appended(
    disk: Disk, root: str, file: AppendFile
) -> None:
    numbers = [b"%d," % number for number in range(3000)]
    file.append(numbers)
    assert disk.read(f"{root}/file") == b"".join(numbers)


def test_size_is_the_same_from_the_file_and_from_the_disk(
    disk: Disk, root: str, file: AppendFile
) -> None:
    assert file.size() == disk.size(f"{root}/file") == 0
    file.append([b"x" * 1000])
    assert file.size() == disk.size(f"{root}/file") == 1000


def test_a_reopened_file_goes_on_at_its_end(disk: Disk, root: str) -> None:
    write(disk, f"{root}/file", b"before ")
    write(disk, f"{root}/file", b"after")
    assert disk.read(f"{root}/file") == b"before after"


def test_truncate_cuts_the_end_and_the_next_append_follows_the_cut(
    disk: Disk, root: str, file: AppendFile
) -> None:
    file.append([b"keep this, lose that"])
    file.truncate(len(b"keep this"))
    file.append([b"!"])
    assert disk.read(f"{root}/file") == b"keep this!"


@pytest.mark.parametrize("size", [-1, 4])
def test_truncate_never_makes_a_file_longer(file: AppendFile, size: int) -> None:
    file.append([b"abc"])
    with pytest.raises(OSError, match=r"truncate|Invalid") as raised:
        file.truncate(size)
    assert raised.value.errno == errno.EINVAL
    assert file.size() == 3


def test_overwrite_replaces_bytes_in_place_and_appends_still_go_to_the_end(
    disk: Disk, root: str, file: AppendFile
) -> None:
    file.append([b"abcdef"])
    file.overwrite(2, memoryview(b"CD"))
    file.append([b"g"])
    file.overwrite(7, b"")
    assert disk.read(f"{root}/file") == b"abCDefg"


@pytest.mark.parametrize("position", [-1, 2, 4])
def test_overwrite_outside_the_file_fails_and_writes_nothing(
    disk: Disk, root: str, file: AppendFile, position: int
) -> None:
    file.append([b"abc"])
    with pytest.raises(OSError, match="not inside") as raised:
        file.overwrite(position, b"XY")
    assert raised.value.errno == errno.EINVAL
    assert disk.read(f"{root}/file") == b"abc"


def test_a_closed_file_refuses_every_use_and_closes_again_quietly(
    disk: Disk, file: AppendFile
) -> None:
    file.append([b"abc"])
    file.close()
    file.close()
    for use in (
        lambda: file.append([b"x"]),
        lambda: file.overwrite(0, b"x"),
        file.sync,
        file.size,
        lambda: file.truncate(0),
    ):
        with pytest.raises(OSError, match=r".") as raised:
            use()
        assert raised.value.errno == errno.EBADF


@pytest.mark.parametrize(
    ("position", "length"),
    [
        (0, 3 * PAGE),
        (0, 1),
        (1, 1),
        (PAGE - 1, 2),
        (PAGE, PAGE),
        (PAGE + 7, PAGE + 1),
        (3 * PAGE - 1, 1),
    ],
)
def test_map_gives_the_window_at_any_alignment(
    disk: Disk, root: str, position: int, length: int
) -> None:
    data = os.urandom(3 * PAGE)
    write(disk, f"{root}/file", data)
    view = disk.map(f"{root}/file", position, length)
    assert (view.readonly, view.format, view.nbytes) == (True, "B", length)
    assert view == data[position : position + length]


@pytest.mark.parametrize("position", [0, 2, 99])
def test_map_of_no_bytes_is_an_empty_view(disk: Disk, root: str, position: int) -> None:
    write(disk, f"{root}/file", b"abc")
    assert disk.map(f"{root}/file", position, 0).nbytes == 0


@pytest.mark.parametrize(("position", "length"), [(0, 4), (3, 1), (2, 2), (0, PAGE), (PAGE, 1)])
def test_map_past_the_end_raises(disk: Disk, root: str, position: int, length: int) -> None:
    write(disk, f"{root}/file", b"abc")
    with pytest.raises(OSError, match="pass the end, 3") as raised:
        disk.map(f"{root}/file", position, length)
    assert raised.value.errno == errno.EIO


def test_map_of_an_empty_file_raises(disk: Disk, root: str) -> None:
    write(disk, f"{root}/file", b"")
    with pytest.raises(OSError, match="pass the end, 0"):
        disk.map(f"{root}/file", 0, 1)


@pytest.mark.parametrize(("position", "length"), [(-1, 1), (0, -1)])
def test_map_of_a_negative_range_raises(disk: Disk, root: str, position: int, length: int) -> None:
    write(disk, f"{root}/file", b"abc")
    with pytest.raises(OSError, match="Invalid") as raised:
        disk.map(f"{root}/file", position, length)
    assert raised.value.errno == errno.EINVAL


def test_a_view_survives_the_removal_of_its_file(disk: Disk, root: str) -> None:
    write(disk, f"{root}/file", b"abc")
    view = disk.map(f"{root}/file", 0, 3)
    disk.remove(f"{root}/file")
    assert view == b"abc"


def test_a_view_survives_the_replacement_of_its_file(disk: Disk, root: str) -> None:
    write(disk, f"{root}/file", b"old")
    write(disk, f"{root}/other", b"new")
    view = disk.map(f"{root}/file", 0, 3)
    disk.rename(f"{root}/other", f"{root}/file")
    assert view == b"old"
    assert disk.map(f"{root}/file", 0, 3) == b"new"


def test_a_view_survives_later_appends(disk: Disk, root: str, file: AppendFile) -> None:
    file.append([b"abc"])
    view = disk.map(f"{root}/file", 0, 3)
    file.append([b"def" * PAGE])
    assert view == b"abc"


def test_rename_replaces_what_has_the_name(disk: Disk, root: str) -> None:
    write(disk, f"{root}/old", b"new content")
    write(disk, f"{root}/new", b"replaced")
    disk.rename(f"{root}/old", f"{root}/new")
    disk.sync_folder(root)
    assert disk.list_folder(root) == ["new"]
    assert disk.read(f"{root}/new") == b"new content"


def test_rename_moves_a_folder_with_what_is_in_it(disk: Disk, root: str) -> None:
    disk.make_folder(f"{root}/a/b")
    write(disk, f"{root}/a/b/file", b"abc")
    disk.rename(f"{root}/a", f"{root}/c")
    assert not disk.exists(f"{root}/a")
    assert disk.read(f"{root}/c/b/file") == b"abc"


def test_an_open_file_follows_its_rename(disk: Disk, root: str, file: AppendFile) -> None:
    disk.rename(f"{root}/file", f"{root}/renamed")
    file.append([b"abc"])
    assert disk.read(f"{root}/renamed") == b"abc"


def test_a_removed_file_is_gone_and_its_name_starts_empty(disk: Disk, root: str) -> None:
    write(disk, f"{root}/file", b"abc")
    disk.remove(f"{root}/file")
    assert not disk.exists(f"{root}/file")
    write(disk, f"{root}/file", b"")
    assert disk.size(f"{root}/file") == 0


def test_list_folder_is_sorted(disk: Disk, root: str) -> None:
    for name in ("b", "a", "10", "9"):
        write(disk, f"{root}/{name}", b"")
    disk.make_folder(f"{root}/aa")
    assert disk.list_folder(root) == ["10", "9", "a", "aa", "b"]


def test_make_folder_makes_parents_and_keeps_what_is_there(disk: Disk, root: str) -> None:
    disk.make_folder(f"{root}/a/b/c")
    write(disk, f"{root}/a/b/c/file", b"abc")
    disk.make_folder(f"{root}/a/b/c")
    disk.make_folder(f"{root}/a/b/d")
    assert disk.list_folder(f"{root}/a/b") == ["c", "d"]
    assert disk.read(f"{root}/a/b/c/file") == b"abc"


def test_make_folder_where_a_file_is_raises(disk: Disk, root: str) -> None:
    write(disk, f"{root}/file", b"abc")
    with pytest.raises(FileExistsError):
        disk.make_folder(f"{root}/file")
    with pytest.raises(NotADirectoryError):
        disk.make_folder(f"{root}/file/below")


def test_exists_is_of_files_and_folders(disk: Disk, root: str) -> None:
    write(disk, f"{root}/file", b"")
    assert disk.exists(root)
    assert disk.exists(f"{root}/file")
    assert not disk.exists(f"{root}/missing")
    assert not disk.exists(f"{root}/missing/below")
    assert not disk.exists(f"{root}/file/below")


def test_what_is_missing_is_file_not_found(disk: Disk, root: str) -> None:
    missing = f"{root}/missing"
    for use in (
        lambda: disk.read(missing),
        lambda: disk.size(missing),
        lambda: disk.map(missing, 0, 1),
        lambda: disk.map(missing, 0, 0),
        lambda: disk.remove(missing),
        lambda: disk.remove_folder(missing),
        lambda: disk.list_folder(missing),
        lambda: disk.sync_folder(missing),
        lambda: disk.rename(missing, f"{root}/other"),
        lambda: disk.free_bytes(missing),
        lambda: disk.open_append(f"{missing}/file"),
        lambda: disk.lock(f"{missing}/lock", "me"),
    ):
        with pytest.raises(FileNotFoundError):
            use()


def test_remove_folder_takes_everything_below_and_nothing_beside(disk: Disk, root: str) -> None:
    disk.make_folder(f"{root}/a/b")
    for path in ("a/one", "a/b/two", "beside"):
        write(disk, f"{root}/{path}", b"abc")
    disk.remove_folder(f"{root}/a")
    assert disk.list_folder(root) == ["beside"]


def test_a_held_lock_names_its_owner(disk: Disk, root: str) -> None:
    lock = disk.lock(f"{root}/lock", "node-1 (process 42)")
    with pytest.raises(BlockingIOError) as raised:
        disk.lock(f"{root}/lock", "node-2")
    assert raised.value.errno == errno.EWOULDBLOCK
    assert raised.value.strerror == "node-1 (process 42)"
    lock.release()


def test_a_released_lock_can_be_taken_by_another(disk: Disk, root: str) -> None:
    first = disk.lock(f"{root}/lock", "a long name of the first owner")
    first.release()
    second = disk.lock(f"{root}/lock", "second")
    first.release()
    with pytest.raises(BlockingIOError, match="second") as raised:
        disk.lock(f"{root}/lock", "third")
    assert raised.value.strerror == "second"
    second.release()


def test_locks_of_different_folders_do_not_meet(disk: Disk, root: str) -> None:
    names = ("a", "b")
    locks = [disk.lock(f"{root}/{name}", name) for name in names]
    for name in names:
        with pytest.raises(BlockingIOError) as raised:
            disk.lock(f"{root}/{name}", "another")
        assert raised.value.strerror == name
    for lock in locks:
        lock.release()


def test_there_are_free_bytes(disk: Disk, root: str) -> None:
    assert disk.free_bytes(root) > 0


NAMES = st.sampled_from(["a", "b", "f/a", "f/b", "f", "f/g", "f/g/a"])
DATA = st.binary(max_size=20) | st.integers(0, 3 * PAGE).map(lambda n: b"0123456789" * (n // 10))
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), NAMES, st.lists(DATA, max_size=3)),
    st.tuples(st.just("overwrite"), NAMES, st.integers(0, 30), st.binary(max_size=20)),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 2 * PAGE)),
    st.tuples(st.just("sync"), NAMES),
    st.tuples(st.just("map"), NAMES, st.integers(0, 2 * PAGE), st.integers(0, 2 * PAGE)),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("make_folder"), NAMES),
    st.tuples(st.just("remove_folder"), NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("list_folder"), NAMES),
    st.tuples(st.just("sync_folder"), NAMES),
    st.tuples(st.just("exists"), NAMES),
)


def outcome(disk: Disk, root: str, name: str, path: str, *arguments: object) -> object:
    """What an operation gives, or the error it raises, without the paths."""
    path = f"{root}/{path}"
    try:
        if name in {"append", "overwrite", "truncate", "sync"}:
            file = disk.open_append(path)
            try:
                getattr(file, name)(*arguments)
                return file.size()
            finally:
                file.close()
        if name == "rename":
            return disk.rename(path, f"{root}/{arguments[0]}")
        result = getattr(disk, name)(path, *arguments)
        return bytes(result) if name == "map" else result
    except OSError as error:
        return type(error), error.errno


def tree(disk: Disk, path: str) -> object:
    try:
        return {name: tree(disk, f"{path}/{name}") for name in disk.list_folder(path)}
    except NotADirectoryError:
        return disk.read(path)


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, max_size=30))
def test_without_a_crash_both_disks_read_the_same(
    operations: list[tuple[str, str, object]],
) -> None:
    real, simulated = RealDisk(), SimulatedDisk(seed=1)
    with TemporaryDirectory() as root:
        simulated.make_folder(root)
        for operation in operations:
            assert outcome(simulated, root, *operation) == outcome(real, root, *operation)
        assert tree(simulated, root) == tree(real, root)
