"""What only the simulated disk does: it crashes, fails, fills up and rots, all from a seed."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.log.disk.disk import AppendFile
from quiver.testing.disk import Operation, SimulatedCrash, SimulatedDisk

SEEDS = range(300)
SECTOR = 512


def disk_with_file(
    seed: int, synced: bytes = b"", unsynced: bytes = b"", path: str = "/file"
) -> tuple[SimulatedDisk, AppendFile]:
    """A disk with a file whose entry is durable, and of whose bytes the first part is."""
    disk = SimulatedDisk(seed)
    file = disk.open_append(path)
    file.append([synced])
    file.sync()
    disk.sync_folder("/")
    file.append([unsynced])
    return disk, file


def after_crash(seed: int, synced: bytes, unsynced: bytes) -> bytes:
    disk, _ = disk_with_file(seed, synced, unsynced)
    disk.crash()
    return disk.read("/file")


def tree(disk: SimulatedDisk, path: str = "") -> dict[str, bytes]:
    """Every file by its path, and every folder that has none as an empty name ending in ``/``."""
    found: dict[str, bytes] = {}
    for name in disk.list_folder(path or "/"):
        child = f"{path}/{name}"
        try:
            found[child] = disk.read(child)
        except IsADirectoryError:
            found |= tree(disk, child) or {f"{child}/": b""}
    return found


# What survives a crash.


def test_synced_bytes_survive_every_crash() -> None:
    synced = bytes(range(1, 201)) * 13
    for seed in SEEDS:
        assert after_crash(seed, synced, b"\xff" * 5000).startswith(synced)


def test_unsynced_bytes_are_kept_or_lost_or_cut_or_torn() -> None:
    data = b"\xff" * (4 * SECTOR)
    outcomes = [after_crash(seed, b"", data) for seed in SEEDS]
    kept = [content == data for content in outcomes]
    lost = [content == b"" for content in outcomes]
    cut = [0 < len(content) < len(data) and 0 not in content for content in outcomes]
    hole = [content.strip(b"\0") == content and 0 in content for content in outcomes]
    late = [content.startswith(b"\0") and b"\xff" in content for content in outcomes]
    only_size = [len(content) > 0 and not content.strip(b"\0") for content in outcomes]
    for outcome in (kept, lost, cut, hole, late, only_size):
        assert sum(outcome) >= len(SEEDS) / 50


def test_tears_are_where_the_sectors_of_the_file_meet() -> None:
    synced, unsynced = b"s" * 100, b"\xff" * (3 * SECTOR)
    for seed in SEEDS:
        content = after_crash(seed, synced, unsynced)
        edges = [at for at in range(101, len(content)) if content[at] != content[at - 1]]
        assert all(at % SECTOR == 0 or at == len(synced) for at in edges)


def test_each_of_several_writes_may_survive_without_the_others() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk, file = disk_with_file(seed)
        for letter in (b"a", b"b", b"c"):
            file.append([letter * SECTOR])
        disk.crash()
        outcomes.add(disk.read("/file").replace(b"\0", b"")[::SECTOR])
    assert outcomes == {b"", b"a", b"b", b"c", b"ab", b"ac", b"bc", b"abc"}


def test_files_are_torn_independently_and_also_lost_or_kept_together() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = SimulatedDisk(seed)
        names = [f"/{number}" for number in range(8)]
        files = [disk.open_append(name) for name in names]
        disk.sync_folder("/")
        for file in files:
            file.append([b"\xff"])
        disk.crash()
        outcomes.add(tuple(disk.read(name) == b"\xff" for name in names))
    assert {(True,) * 8, (False,) * 8} < outcomes
    assert len(outcomes) > 50


def test_an_unsynced_truncate_is_done_or_not() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk, file = disk_with_file(seed, synced=b"abcdef")
        file.truncate(3)
        file.append([b"X"])
        disk.crash()
        outcomes.add(disk.read("/file"))
    assert {b"abcdef", b"abc", b"abcX", b"abcXef", b"abc\0"} == outcomes


def test_a_synced_truncate_survives() -> None:
    for seed in SEEDS:
        disk, file = disk_with_file(seed, synced=b"abcdef")
        file.truncate(3)
        file.sync()
        disk.crash()
        assert disk.read("/file") == b"abc"


def test_what_a_crash_left_is_durable() -> None:
    for seed in SEEDS:
        disk, _ = disk_with_file(seed, b"synced", b"unsynced" * SECTOR)
        disk.crash()
        left = disk.read("/file")
        disk.crash()
        assert disk.read("/file") == left


def test_kill_keeps_unsynced_bytes_readable_and_undurable() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk, _ = disk_with_file(seed, unsynced=b"abc")
        disk.kill()
        assert disk.read("/file") == b"abc"
        disk.crash()
        outcomes.add(disk.read("/file"))
    assert {b"", b"abc"} < outcomes


@pytest.mark.parametrize("end", [SimulatedDisk.crash, SimulatedDisk.kill])
def test_a_handle_is_dead_after_its_process(end: Callable[[SimulatedDisk], None]) -> None:
    disk, file = disk_with_file(1, synced=b"abc")
    end(disk)
    for use in (
        lambda: file.append([b"x"]),
        lambda: file.overwrite(0, b"x"),
        file.sync,
        file.size,
        lambda: file.truncate(0),
    ):
        with pytest.raises(OSError, match="open during a crash"):
            use()
    file.close()
    assert disk.read("/file") == b"abc"


@pytest.mark.parametrize("end", [SimulatedDisk.crash, SimulatedDisk.kill])
def test_locks_are_released_by_the_end_of_the_process(
    end: Callable[[SimulatedDisk], None],
) -> None:
    disk = SimulatedDisk(1)
    before = disk.lock("/lock", "before")
    end(disk)
    disk.lock("/lock", "after")
    before.release()
    with pytest.raises(BlockingIOError, match="after"):
        disk.lock("/lock", "third")


# Folders.


def trees_after(work: Callable[[SimulatedDisk], object]) -> set[tuple[tuple[str, bytes], ...]]:
    """What is there after ``work`` and a crash, over all seeds."""
    outcomes = set()
    for seed in SEEDS:
        disk = SimulatedDisk(seed)
        work(disk)
        disk.crash()
        outcomes.add(tuple(tree(disk).items()))
    return outcomes


def write(disk: SimulatedDisk, path: str, data: bytes, *, sync: bool = True) -> None:
    file = disk.open_append(path)
    file.append([data])
    if sync:
        file.sync()
    file.close()


def test_a_synced_file_without_a_synced_entry_may_vanish() -> None:
    outcomes = trees_after(lambda disk: write(disk, "/file", b"abc"))
    assert outcomes == {(), (("/file", b"abc"),)}


def test_a_synced_entry_keeps_its_file() -> None:
    def work(disk: SimulatedDisk) -> None:
        write(disk, "/file", b"abc")
        disk.sync_folder("/")

    assert trees_after(work) == {(("/file", b"abc"),)}


def test_entries_of_different_names_survive_in_any_combination() -> None:
    def work(disk: SimulatedDisk) -> None:
        for name in "abc":
            write(disk, f"/{name}", b"")

    names = {"".join(path[1:] for path, _ in outcome) for outcome in trees_after(work)}
    assert names == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_folders_are_durable_once_made_with_what_is_beside_them() -> None:
    def work(disk: SimulatedDisk) -> None:
        write(disk, "/file", b"")
        disk.make_folder("/a/b")

    assert trees_after(work) == {(("/a/b/", b""), ("/file", b""))}


def test_a_folder_that_was_there_makes_nothing_beside_it_durable() -> None:
    def work(disk: SimulatedDisk) -> None:
        disk.make_folder("/a/b")
        write(disk, "/file", b"")
        write(disk, "/a/file", b"")
        disk.make_folder("/a/b")

    assert len(trees_after(work)) == 4


def test_an_unsynced_removal_may_be_undone() -> None:
    def work(disk: SimulatedDisk) -> None:
        write(disk, "/file", b"abc")
        disk.sync_folder("/")
        disk.remove("/file")

    assert trees_after(work) == {(), (("/file", b"abc"),)}


def test_a_removed_folder_may_come_back_with_some_of_its_files() -> None:
    def work(disk: SimulatedDisk) -> None:
        disk.make_folder("/f")
        for name in "ab":
            write(disk, f"/f/{name}", b"")
        disk.sync_folder("/f")
        disk.remove_folder("/f")

    a, b = ("/f/a", b""), ("/f/b", b"")
    assert trees_after(work) == {(), (("/f/", b""),), (a,), (b,), (a, b)}


def test_a_rename_gives_the_old_or_the_new_content_and_never_no_file() -> None:
    def work(disk: SimulatedDisk) -> None:
        write(disk, "/file", b"old")
        disk.sync_folder("/")
        write(disk, "/new", b"new")
        disk.rename("/new", "/file")

    assert trees_after(work) == {
        (("/file", b"old"),),
        (("/file", b"old"), ("/new", b"new")),
        (("/file", b"new"),),
    }


def test_many_renames_onto_a_name_leave_one_of_their_contents() -> None:
    contents = [b"%d" % number for number in range(5)]

    def work(disk: SimulatedDisk) -> None:
        for content in contents:
            write(disk, "/new", content)
            disk.rename("/new", "/file")
            if content == b"1":
                disk.sync_folder("/")

    files = {dict(outcome)["/file"] for outcome in trees_after(work)}
    assert files == {b"1", b"2", b"3", b"4"}


def test_a_rename_of_unsynced_content_may_replace_good_content_by_an_empty_file() -> None:
    def work(disk: SimulatedDisk) -> None:
        write(disk, "/file", b"old")
        disk.sync_folder("/")
        write(disk, "/new", b"new", sync=False)
        disk.rename("/new", "/file")

    assert {b"old", b"new", b""} <= {dict(outcome)["/file"] for outcome in trees_after(work)}


def test_a_rename_between_folders_is_durable_once_both_are_synced() -> None:
    def work(disk: SimulatedDisk, *synced: str) -> None:
        disk.make_folder("/a")
        disk.make_folder("/b")
        write(disk, "/a/file", b"abc")
        disk.sync_folder("/a")
        disk.rename("/a/file", "/b/file")
        for folder in synced:
            disk.sync_folder(folder)

    before = (("/a/file", b"abc"), ("/b/", b""))
    after = (("/a/", b""), ("/b/file", b"abc"))
    assert trees_after(work) == {before, after}
    assert trees_after(lambda disk: work(disk, "/b")) == {before, after}
    assert trees_after(lambda disk: work(disk, "/b", "/a")) == {after}


# Faults.


def test_a_failing_append_writes_a_part_and_raises() -> None:
    disk, file = disk_with_file(1)
    fault = disk.fail("append", errno.ENOSPC, partial=2)
    with pytest.raises(OSError, match="No space left") as raised:
        file.append([b"abc", b"def"])
    assert raised.value.errno == errno.ENOSPC
    assert disk.read("/file") == b"ab"
    file.append([b"xyz"])
    assert disk.read("/file") == b"abxyz"
    assert fault.hits == 1


def test_how_much_a_failing_append_writes_is_up_to_chance() -> None:
    sizes = set()
    for seed in SEEDS:
        disk, file = disk_with_file(seed)
        disk.fail("append", errno.ENOSPC)
        with pytest.raises(OSError, match="No space left"):
            file.append([b"abc"])
        sizes.add(file.size())
    assert sizes == {0, 1, 2, 3}


def test_a_fault_matches_its_path_skips_and_counts() -> None:
    disk = SimulatedDisk(1)
    fault = disk.fail("create", errno.EACCES, path="*.log", after=1, times=2)
    refused = []
    for name in ("1.log", "1.index", "2.log", "2.index", "3.log", "4.log"):
        try:
            disk.open_append(f"/{name}")
        except PermissionError:
            refused.append(name)
    assert refused == ["2.log", "3.log"]
    assert fault.hits == 2


def test_a_fault_without_an_end_lasts_until_healed() -> None:
    disk, _ = disk_with_file(1, synced=b"abc")
    disk.fail("map", errno.EIO, times=None)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            disk.map("/file", 0, 3)
    disk.heal()
    assert disk.map("/file", 0, 3) == b"abc"


USES: dict[Operation, Callable[[SimulatedDisk, AppendFile], object]] = {
    "append": lambda disk, file: file.append([b"x"]),
    "create": lambda disk, file: disk.open_append("/other"),
    "exists": lambda disk, file: disk.exists("/file"),
    "free_bytes": lambda disk, file: disk.free_bytes("/"),
    "list_folder": lambda disk, file: disk.list_folder("/"),
    "lock": lambda disk, file: disk.lock("/lock", "me"),
    "make_folder": lambda disk, file: disk.make_folder("/folder"),
    "map": lambda disk, file: disk.map("/file", 0, 1),
    "open": lambda disk, file: disk.open_append("/file"),
    "overwrite": lambda disk, file: file.overwrite(0, b"x"),
    "read": lambda disk, file: disk.read("/file"),
    "remove": lambda disk, file: disk.remove("/file"),
    "rename": lambda disk, file: disk.rename("/file", "/renamed"),
    "size": lambda disk, file: disk.size("/file"),
    "sync": lambda disk, file: file.sync(),
    "sync_folder": lambda disk, file: disk.sync_folder("/"),
    "truncate": lambda disk, file: file.truncate(0),
}


@pytest.mark.parametrize("operation", USES)
def test_a_failing_operation_raises_and_changes_nothing(operation: Operation) -> None:
    disk, file = disk_with_file(1, synced=b"abc")
    disk.fail(operation, errno.EIO, partial=0)
    with pytest.raises(OSError, match="Input/output"):
        USES[operation](disk, file)
    assert tree(disk) == {"/file": b"abc"}
    USES[operation](disk, file)


def test_after_a_failed_sync_no_later_sync_makes_the_bytes_durable() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk, file = disk_with_file(seed, b"s" * SECTOR, b"u" * SECTOR)
        disk.fail("sync", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.append([b"n" * SECTOR])
        file.sync()
        assert disk.read("/file") == b"s" * SECTOR + b"u" * SECTOR + b"n" * SECTOR
        disk.crash()
        outcomes.add(disk.read("/file")[::SECTOR])
    assert outcomes == {b"sun", b"s\0n"}


def test_bytes_written_again_after_a_failed_sync_are_durable_after_the_next() -> None:
    for seed in SEEDS:
        disk, file = disk_with_file(seed, b"synced ", b"unsynced")
        disk.fail("sync", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        disk.kill()
        file = disk.open_append("/file")
        file.overwrite(0, disk.read("/file"))
        file.sync()
        disk.crash()
        assert disk.read("/file") == b"synced unsynced"


def test_a_full_disk_takes_what_fits_and_removal_makes_room() -> None:
    disk = SimulatedDisk(1, capacity_bytes=10)
    write(disk, "/a", b"1234")
    file = disk.open_append("/b")
    assert disk.free_bytes("/") == 6
    with pytest.raises(OSError, match="full") as raised:
        file.append([b"12345678"])
    assert raised.value.errno == errno.ENOSPC
    assert disk.read("/b") == b"123456"
    assert disk.free_bytes("/") == 0
    disk.remove("/a")
    assert disk.free_bytes("/") == 4
    disk.capacity_bytes = None
    file.append([b"x" * 100])


# Rot.


def test_a_flipped_bit_is_seen_and_survives_a_crash() -> None:
    disk, _ = disk_with_file(1, synced=b"abc")
    disk.flip_bit("/file", 1, 0)
    assert disk.read("/file") == b"acc"
    disk.crash()
    assert disk.read("/file") == b"acc"


def test_corruption_reaches_bytes_on_both_sides_of_the_last_sync() -> None:
    disk, file = disk_with_file(1, synced=b"abc", unsynced=b"def")
    file.append([b"ghi"])
    disk.corrupt("/file", 2, b"XXXXX")
    assert disk.read("/file") == b"abXXXXXhi"
    file.sync()
    disk.crash()
    assert disk.read("/file") == b"abXXXXXhi"


def test_a_view_is_not_reached_by_later_corruption() -> None:
    disk, _ = disk_with_file(1, synced=b"abc")
    view = disk.map("/file", 0, 3)
    disk.corrupt("/file", 0, b"xyz")
    assert view == b"abc"


# Crashing at an operation.


def replace(disk: SimulatedDisk, content: bytes) -> None:
    """Replace a file the careful way: no crash leaves anything but the old or the new content."""
    if disk.exists("/data/new"):
        disk.remove("/data/new")
    write(disk, "/data/new", content)
    disk.rename("/data/new", "/data/file")
    disk.sync_folder("/data")


def test_a_careful_replacement_survives_a_crash_at_each_of_its_operations() -> None:
    old, new = b"o" * 1500, b"n" * 1500

    def prepared(seed: int) -> SimulatedDisk:
        disk = SimulatedDisk(seed)
        disk.make_folder("/data")
        replace(disk, old)
        return disk

    disk = prepared(0)
    first = disk.operation_count + 1
    replace(disk, new)
    last = disk.operation_count
    assert last - first + 1 == len(("create", "append", "sync", "rename", "sync_folder"))
    for seed in range(40):
        for count in range(first, last + 1):
            disk = prepared(seed)
            disk.crash_at(count)
            with pytest.raises(SimulatedCrash, match=f"operation {count}: "):
                replace(disk, new)
            disk.crash()
            assert disk.read("/data/file") in (old, new)
            replace(disk, new)
            disk.crash()
            assert tree(disk) == {"/data/file": new}


@pytest.mark.parametrize("operation", USES)
def test_without_power_every_operation_raises(operation: Operation) -> None:
    disk, file = disk_with_file(1, synced=b"abc")
    disk.crash_at(disk.operation_count + 1)
    with pytest.raises(SimulatedCrash):
        disk.sync_folder("/")
    with pytest.raises(SimulatedCrash, match="no power"):
        USES[operation](disk, file)
    file.close()
    disk.crash()
    assert disk.read("/file") == b"abc"


def test_handlers_of_errors_do_not_swallow_a_crash() -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_an_append_that_crashes_is_done_in_part() -> None:
    sizes = set()
    for seed in SEEDS:
        disk, file = disk_with_file(seed)
        disk.crash_at(disk.operation_count + 1)
        with pytest.raises(SimulatedCrash):
            file.append([b"abcd"])
        disk.kill()
        sizes.add(disk.size("/file"))
    assert sizes == {0, 1, 2, 3, 4}


def test_a_sync_that_crashes_has_made_its_bytes_durable_or_not() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk, file = disk_with_file(seed, unsynced=b"a")
        disk.crash_at(disk.operation_count + 1)
        with pytest.raises(SimulatedCrash):
            file.sync()
        disk.crash()
        outcomes.add(disk.read("/file"))
    assert outcomes == {b"", b"\0", b"a"}


def test_a_folder_whose_making_crashes_is_there_in_part() -> None:
    def work(disk: SimulatedDisk) -> None:
        disk.crash_at(1)
        with pytest.raises(SimulatedCrash):
            disk.make_folder("/a/b")

    assert trees_after(work) == {(), (("/a/", b""),), (("/a/b/", b""),)}


def test_each_file_of_a_removed_folder_is_an_operation() -> None:
    disk = SimulatedDisk(1)
    disk.make_folder("/f")
    for name in "abc":
        write(disk, f"/f/{name}", b"")
    before = disk.operation_count
    disk.remove_folder("/f")
    assert disk.operation_count - before == 4


def test_reading_is_not_counted() -> None:
    disk, file = disk_with_file(1, synced=b"abc")
    before = disk.operation_count
    for operation in ("exists", "free_bytes", "list_folder", "map", "open", "read", "size"):
        USES[operation](disk, file)
    assert disk.operation_count == before


def test_a_crash_cannot_be_set_in_the_past() -> None:
    disk, _ = disk_with_file(1)
    with pytest.raises(ValueError, match="is past"):
        disk.crash_at(disk.operation_count)


# Determinism.

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "sync", "truncate", "rename", "remove", "sync_folder", "crash"]),
        st.sampled_from(["/a", "/b", "/c"]),
        st.integers(0, 3000),
    ),
    max_size=25,
)


def run(disk: SimulatedDisk, steps: list[tuple[str, str, int]]) -> list[dict[str, bytes]]:
    history = []
    for operation, path, number in steps:
        match operation:
            case "append":
                write(disk, path, bytes([number % 255 + 1]) * number, sync=False)
            case "sync":
                disk.open_append(path).sync()
            case "truncate":
                file = disk.open_append(path)
                file.truncate(min(file.size(), number))
            case "rename" if disk.exists(path):
                disk.rename(path, "/c")
            case "remove" if disk.exists(path):
                disk.remove(path)
            case "sync_folder":
                disk.sync_folder("/")
            case "crash":
                disk.crash()
        history.append(tree(disk))
    return history


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64), steps=STEPS)
def test_the_same_seed_and_operations_give_the_same_bytes(
    seed: int, steps: list[tuple[str, str, int]]
) -> None:
    assert run(SimulatedDisk(seed), steps) == run(SimulatedDisk(seed), steps)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64), steps=STEPS)
def test_after_any_history_what_is_synced_survives(
    seed: int, steps: list[tuple[str, str, int]]
) -> None:
    disk = SimulatedDisk(seed)
    run(disk, steps)
    for path in tree(disk):
        disk.open_append(path).sync()
    disk.sync_folder("/")
    before = tree(disk)
    disk.crash()
    assert tree(disk) == before


def test_other_seeds_give_other_bytes() -> None:
    assert len({after_crash(seed, b"", b"\xff" * 10_000) for seed in SEEDS}) > 50


def test_operations_from_several_threads_are_done_one_at_a_time() -> None:
    disk, file = disk_with_file(1)

    def work() -> None:
        for _ in range(200):
            file.append([b"x"])
            file.sync()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    disk.crash()
    assert disk.read("/file") == b"x" * 800
