"""The small parts of a log's folder: indexes, the checkpoint, names, the lock, and the hot tail."""

from __future__ import annotations

import errno
import struct
import subprocess
import sys
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import FolderInUse, UnsupportedFormat
from quiver.log.cache.hot_tail import HotTail
from quiver.log.checkpoint import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    read_checkpoint,
)
from quiver.log.disk.folder_lock import lock_folder
from quiver.log.disk.real_disk import RealDisk
from quiver.log.files import remove_strays, segment_offsets, segment_path, write_files
from quiver.log.index import SparseIndex
from quiver.model.batch import StoredBatch
from quiver.model.envelope import store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.testing.disk import SimulatedCrash, SimulatedDisk
from tests.unit.log.small_logs import FOLDER, batch, disk_with, files_in

NAME = "00000000000000000000.index"

# ---------------------------------------------------------------------- sparse indexes


@st.composite
def indexes(draw: st.DrawFn) -> SparseIndex:
    keys = sorted(draw(st.lists(st.integers(0, 60), max_size=12)))
    steps = draw(st.lists(st.integers(1, 9), min_size=len(keys), max_size=len(keys)))
    index, position = SparseIndex(), 0
    for key, step in zip(keys, steps, strict=True):
        index.add(key, position)
        position += step
    index.covered = position
    return index


def listed(index: SparseIndex) -> tuple[list[int], list[int], int]:
    return list(index.keys), list(index.positions), index.covered


@given(indexes(), st.integers(-1, 61))
def test_floor_is_the_last_place_at_or_below_the_key(index: SparseIndex, key: int) -> None:
    at_or_below = [
        at for known, at in zip(index.keys, index.positions, strict=True) if known <= key
    ]
    assert index.floor(key) == (at_or_below[-1] if at_or_below else 0)


@given(indexes(), st.integers(-1, 61))
def test_below_is_the_last_place_whose_key_is_smaller(index: SparseIndex, key: int) -> None:
    smaller = [at for known, at in zip(index.keys, index.positions, strict=True) if known < key]
    assert index.below(key) == (smaller[-1] if smaller else 0)


@given(indexes(), st.integers(0, 120))
def test_an_index_before_a_position_forgets_the_rest_and_leaves_the_original(
    index: SparseIndex, position: int
) -> None:
    original = listed(index)
    kept = [at for at in index.positions if at < position]
    before = index.before(position)
    assert listed(before) == (
        list(index.keys)[: len(kept)],
        kept,
        min(index.covered, position),
    )
    assert listed(index) == original


@given(indexes())
def test_an_index_is_decoded_as_it_was_encoded(index: SparseIndex) -> None:
    decoded = SparseIndex.decode(NAME, index.encode(NAME))
    assert decoded is not None
    assert listed(decoded) == listed(index)


def small_index() -> SparseIndex:
    index = SparseIndex()
    for key, position in ((0, 0), (10, 600), (20, 1300)):
        index.add(key, position)
    index.covered = 2000
    return index


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_an_index_with_any_byte_changed_is_not_believed(flip: int) -> None:
    data = small_index().encode(NAME)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= flip
        assert SparseIndex.decode(NAME, bytes(changed)) is None


def test_an_index_that_is_cut_or_too_long_is_not_believed() -> None:
    data = small_index().encode(NAME)
    for length in range(len(data)):
        assert SparseIndex.decode(NAME, data[:length]) is None
    assert SparseIndex.decode(NAME, data + b"\0") is None


@given(st.binary(max_size=200))
def test_noise_is_no_index(noise: bytes) -> None:
    assert SparseIndex.decode(NAME, noise) is None


@pytest.mark.parametrize("other", ["00000000000000000000.timeindex", "00000000000000000007.index"])
def test_an_index_under_another_name_is_not_believed(other: str) -> None:
    assert SparseIndex.decode(other, small_index().encode(NAME)) is None


# ---------------------------------------------------------------------- the checkpoint

_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
MARK = Checkpoint(
    start_offset=Offset(3),
    segment=Offset(10),
    position=4096,
    next_offset=Offset(20),
    append_time=Microseconds(99),
    epoch=LeaderEpoch(7),
)

checkpoints = st.builds(
    Checkpoint,
    start_offset=_INT64,
    segment=_INT64,
    position=_INT64,
    next_offset=_INT64,
    append_time=_INT64,
    epoch=st.integers(0, (1 << 32) - 1),
)


@given(checkpoints)
def test_a_checkpoint_is_decoded_as_it_was_encoded(checkpoint: Checkpoint) -> None:
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_a_checkpoint_with_any_byte_changed_is_not_believed(flip: int) -> None:
    data = encode_checkpoint(MARK)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= flip
        assert decode_checkpoint(bytes(changed)) is None


def test_a_checkpoint_that_is_cut_or_too_long_is_not_believed() -> None:
    data = encode_checkpoint(MARK)
    for length in range(len(data)):
        assert decode_checkpoint(data[:length]) is None
    assert decode_checkpoint(data + b"\0") is None


@given(st.binary(max_size=100))
def test_noise_is_no_checkpoint(noise: bytes) -> None:
    assert decode_checkpoint(noise) is None


def summed(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c(data))


@pytest.mark.parametrize("rest", [b"", b"more than this version knows of" * 3])
def test_an_intact_checkpoint_of_a_newer_version_is_unsupported(rest: bytes) -> None:
    with pytest.raises(UnsupportedFormat) as caught:
        decode_checkpoint(summed(struct.pack("<4sI", b"QVRC", 2) + rest))
    assert caught.value.details["version"] == 2


def test_an_intact_checkpoint_of_this_version_but_another_length_is_not_believed() -> None:
    assert decode_checkpoint(summed(struct.pack("<4sI", b"QVRC", 1) + b"short")) is None


def test_a_folder_without_a_checkpoint_has_none() -> None:
    assert read_checkpoint(disk_with({}), FOLDER) is None


def test_an_unsupported_checkpoint_is_named() -> None:
    newer = summed(struct.pack("<4sI", b"QVRC", 2))
    with pytest.raises(UnsupportedFormat, match=f"{FOLDER}/checkpoint") as caught:
        read_checkpoint(disk_with({"checkpoint": newer}), FOLDER)
    assert caught.value.details["file"] == f"{FOLDER}/checkpoint"


# ---------------------------------------------------------------------- names and whole files


def test_a_segment_is_named_for_its_first_offset() -> None:
    assert segment_path("/data", Offset(250_000)) == "/data/00000000000000250000.log"


def test_only_segment_names_are_taken_for_segments() -> None:
    names = [
        "00000000000000000100.log",
        "00000000000000000020.log",
        "00000000000000000030.index",
        "00000000000000000040.log.new",
        "0000000000000000050.log",
        "000000000000000000060.log",
        "0000000000000000007x.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٩.log",
        "checkpoint",
        ".log",
    ]
    assert segment_offsets(names) == [20, 100]


def test_strays_of_a_crash_are_removed_and_nothing_else() -> None:
    kept = ["00000000000000000020.log", "00000000000000000020.index", "checkpoint"]
    foreign = ["copy of 20.log", "notes.new", "lock", "00000000000000000020.log.bak"]
    strays = [
        "00000000000000000010.index",
        "00000000000000000010.log",
        "00000000000000000020.log.new",
        "checkpoint.new",
    ]
    disk = disk_with(dict.fromkeys(kept + foreign + strays, b"x"))
    remove_strays(disk, FOLDER, disk.list_folder(FOLDER), [Offset(20)])
    assert disk.list_folder(FOLDER) == sorted(kept + foreign)


def test_files_are_replaced_whole_whenever_power_is_lost() -> None:
    old, new = {"a": b"old a", "b": b"old b"}, {"a": b"new a!", "b": b"new b!"}
    for crash_at in range(1, 12):
        for seed in range(20):
            disk = disk_with(old, seed)
            disk.crash_at(disk.operation_count + crash_at)
            try:
                write_files(disk, FOLDER, new)
            except SimulatedCrash:
                disk.crash()
                found = files_in(disk)
                assert found["a"] in (old["a"], new["a"])
                assert found["b"] in (old["b"], new["b"])
            else:
                disk.crash()
                assert files_in(disk) == new


def test_a_half_written_leftover_does_not_get_into_a_new_file() -> None:
    disk = disk_with({"a.new": b"left by a crash"})
    write_files(disk, FOLDER, {"a": b"content"})
    assert files_in(disk) == {"a": b"content"}


# ---------------------------------------------------------------------- the folder's lock

_HOLDER = """
import sys
from quiver.log.disk.folder_lock import lock_folder
from quiver.log.disk.real_disk import RealDisk
lock = lock_folder(RealDisk(), sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the folder open until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, f"{tmp_path}/data"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.process
def test_a_second_process_is_told_who_has_the_folder(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    with pytest.raises(FolderInUse, match=rf"process {holder.pid} on") as caught:
        lock_folder(RealDisk(), f"{tmp_path}/data")
    assert caught.value.details["folder"] == f"{tmp_path}/data"


@pytest.mark.process
def test_a_folder_is_free_once_its_process_is_dead(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    holder.kill()
    holder.wait()
    lock_folder(RealDisk(), f"{tmp_path}/data").release()


def test_a_released_folder_can_be_taken_again(tmp_path: Path) -> None:
    lock_folder(RealDisk(), f"{tmp_path}/data").release()
    lock_folder(RealDisk(), f"{tmp_path}/data").release()


def test_a_folder_is_taken_once_within_a_process_too() -> None:
    disk = SimulatedDisk(1)
    lock = lock_folder(disk, FOLDER)
    with pytest.raises(FolderInUse):
        lock_folder(disk, FOLDER)
    lock.release()
    lock_folder(disk, FOLDER)


def test_a_lock_that_cannot_be_had_for_another_reason_is_not_called_in_use() -> None:
    disk = SimulatedDisk(1)
    disk.fail("lock", errno.EACCES)
    with pytest.raises(PermissionError):
        lock_folder(disk, FOLDER)


# ---------------------------------------------------------------------- the hot tail


def run_of_entries(sizes: list[int]) -> list[StoredBatch]:
    entries: list[StoredBatch] = []
    offset = Offset(5)
    for seed, size in enumerate(sizes):
        entry = store_batch(
            batch(size, count=1 + seed % 3, seed=seed),
            base_offset=offset,
            epoch=LeaderEpoch(0),
            append_time=Microseconds(0),
            durable_offset=Offset(0),
        )
        entries.append(entry)
        offset = entry.next_offset
    return entries


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=30),
    st.integers(0, 3000),
    st.integers(0, 1500),
)
def test_the_tail_serves_the_newest_entries_that_fit_and_no_others(
    sizes: list[int], tail_bytes: int, bytes_max: int
) -> None:
    tail, entries = HotTail(tail_bytes), run_of_entries(sizes)
    for entry in entries:
        tail.add(entry)
    kept = [
        place
        for place in range(len(entries))
        if sum(entry.size() for entry in entries[place:]) <= tail_bytes
    ]
    for place, entry in enumerate(entries):
        for offset in range(entry.base_offset, entry.next_offset):
            found = tail.read(Offset(offset), bytes_max)
            if place not in kept:
                assert found is None
                continue
            assert found, "at least one entry, however large"
            assert found == entries[place : place + len(found)]
            room = bytes_max - sum(taken.size() for taken in found)
            following = entries[place + len(found) : place + len(found) + 1]
            assert len(found) == 1 or room >= 0
            assert not following or following[0].size() > room


def test_a_tail_of_no_bytes_holds_nothing() -> None:
    tail = HotTail(0)
    for entry in run_of_entries([10, 10, 10]):
        tail.add(entry)
        assert tail.read(entry.base_offset, 100) is None


def test_the_tail_lets_go_of_what_fell_out() -> None:
    tail = HotTail(1000)
    bodies: list[weakref.ref[array[int]]] = []
    for entry in run_of_entries([100] * 500):
        body = array("B", entry.body)
        bodies.append(weakref.ref(body))
        tail.add(msgspec.structs.replace(entry, body=memoryview(body)))
        del body
    alive = [place for place, body in enumerate(bodies) if body() is not None]
    assert alive == list(range(495, 500))
