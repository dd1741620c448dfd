"""A data folder says which Quiver wrote it, and one that this Quiver cannot read is left alone."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import quiver
from quiver import folder_version, formats
from quiver.edge.data_folder import note_formats, take_folder
from quiver.errors import FolderInUse, UnsupportedFormat
from quiver.folder_version import FolderVersion, encode_version, used_by_this
from quiver.formats import ENTRIES, STORED, Format, stored_versions
from quiver.log.disk.real_disk import RealDisk
from quiver.log.files import write_files
from quiver.testing.disk import SimulatedCrash, SimulatedDisk
from quiver.version import __version__
from tests.ports import free_port

NEWER = Format(name="entries", meaning="", since=(*ENTRIES.since, "9.0.0"))


def taken(folder: Path) -> dict[str, Any]:
    """What the folder says of itself, once this Quiver has had it."""
    take_folder(RealDisk(), str(folder)).release()
    found = json.loads((folder / "version.json").read_text())
    assert isinstance(found, dict)
    return found


def write(folder: Path, **fields: Any) -> None:
    folder.mkdir(exist_ok=True)
    known = {"quiver": __version__, "needs": __version__, "formats": stored_versions()}
    (folder / "version.json").write_text(json.dumps(known | fields))


@contextmanager
def newer_quiver(monkeypatch: pytest.MonkeyPatch, entries: Format) -> Iterator[None]:
    """A later version, with other entries."""
    stored = (entries, *STORED[1:])
    with monkeypatch.context() as patch:
        for module in (formats, folder_version):
            patch.setattr(module, "STORED", stored)
        patch.setattr(folder_version, "__version__", "9.0.0")
        yield


def content(folder: Path) -> dict[str, bytes]:
    """All files, but the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path): path.read_bytes() for path in files}


def test_a_new_folder_says_who_uses_it_and_which_formats_it_has(tmp_path: Path) -> None:
    assert taken(tmp_path / "data") == {
        "quiver": __version__,
        "needs": "0.1.0",
        "formats": {one.name: one.at_start for one in STORED},
    }


def test_a_folder_of_an_earlier_version_is_taken_up(tmp_path: Path) -> None:
    write(tmp_path, quiver="0.0.1", formats={"entries": 1})
    assert taken(tmp_path)["quiver"] == __version__


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    taken(tmp_path)
    before = (tmp_path / "version.json").stat()
    taken(tmp_path)
    after = (tmp_path / "version.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_newer_quiver_with_the_same_formats_may_have_used_it(tmp_path: Path) -> None:
    write(tmp_path, quiver="9.0.0")
    assert taken(tmp_path)["quiver"] == __version__


@pytest.mark.parametrize("unknown", [{"entries": ENTRIES.newest + 1}, {"holograms": 1}])
def test_a_node_refuses_formats_that_it_does_not_know_and_touches_nothing(
    tmp_path: Path, unknown: dict[str, int]
) -> None:
    with quiver.open(tmp_path) as client:
        client.create_queue("work")
        client.publish("work", b"1")
    write(tmp_path, quiver="9.1.0", needs="9.0.0", formats=stored_versions() | unknown)
    before = content(tmp_path)
    by_newer = r"written by Quiver 9\.1\.0.*9\.0\.0 or later"
    with (
        pytest.raises(UnsupportedFormat, match=by_newer) as told,
        quiver.open(tmp_path) as client,
    ):
        client.list_topics()
    assert told.value.details["needs"] == "9.0.0"
    assert next(iter(unknown)) in told.value.message
    assert content(tmp_path) == before
    RealDisk().lock(f"{tmp_path}/lock", "nobody else").release()


def test_what_was_used_once_stays_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, formats=stored_versions() | {"entries": NEWER.newest})
    with newer_quiver(
        monkeypatch, Format(name="entries", meaning="", since=NEWER.since, written=1)
    ):
        found = taken(tmp_path)
    assert found["formats"]["entries"] == NEWER.newest
    assert (found["quiver"], found["needs"]) == ("9.0.0", "9.0.0")


def test_a_format_that_is_written_only_when_needed_keeps_the_way_back_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with newer_quiver(
        monkeypatch, Format(name="entries", meaning="", since=NEWER.since, written=1)
    ):
        assert taken(tmp_path)["needs"] == "0.1.0"
    assert taken(tmp_path)["quiver"] == __version__


def test_a_version_that_is_needed_is_noted_before_it_is_written_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = Format(name="entries", meaning="", since=NEWER.since, written=1)
    with newer_quiver(monkeypatch, entries):
        take_folder(RealDisk(), str(tmp_path), [entries]).release()
        assert (
            json.loads((tmp_path / "version.json").read_text())["formats"]["entries"]
            == NEWER.newest
        )
        assert taken(tmp_path)["needs"] == "9.0.0"
    with pytest.raises(UnsupportedFormat):
        taken(tmp_path)


def test_a_node_on_its_own_notes_the_formats_of_mirrors_when_it_has_the_first(
    tmp_path: Path,
) -> None:
    def noted() -> dict[str, int]:
        found = json.loads((tmp_path / "version.json").read_text())["formats"]
        return {name: found[name] for name in ("metadata_values", "entries")}

    with quiver.open(tmp_path) as node:
        node.create_topic("orders")
        assert noted() == {"metadata_values": 1, "entries": 1}
        node.create_mirror("eu", f"quiver://127.0.0.1:{free_port()}", "clicks")
        assert noted() == {"metadata_values": 2, "entries": 2}
    assert taken(tmp_path)["formats"]["metadata_values"] == 2


def test_a_node_on_its_own_notes_the_formats_of_transactions_before_the_first(
    tmp_path: Path,
) -> None:
    def noted() -> set[int]:
        found = json.loads((tmp_path / "version.json").read_text())["formats"]
        return {found[name] for name in ("entries", "state_records", "snapshots")}

    with quiver.open(tmp_path) as node:
        node.create_queue("orders")
        node.publish("orders", b"plain")
        assert noted() == {1}
        with node.transaction() as tx:
            assert noted() == {2}
            tx.publish("orders", b"in a transaction")


def test_formats_that_are_noted_at_the_same_time_are_all_noted(tmp_path: Path) -> None:
    """By several threads here. Processes that share a folder do it, too."""
    needed = [one for one in STORED if one.at_start != one.newest]
    assert len(needed) > 1
    together = threading.Barrier(len(needed), timeout=20)

    def note(folder: Path, one: Format) -> None:
        together.wait()
        note_formats(RealDisk(), str(folder), [one])

    with ThreadPoolExecutor(len(needed)) as threads:
        for n in range(50):
            folder = tmp_path / str(n)
            taken(folder)
            list(threads.map(note, [folder] * len(needed), needed))
            noted = taken(folder)["formats"]
            assert [noted[one.name] for one in needed] == [one.newest for one in needed]


def test_a_damaged_file_counts_as_everything_that_this_quiver_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.json").write_bytes(b"\0" * 40)
    with newer_quiver(
        monkeypatch, Format(name="entries", meaning="", since=NEWER.since, written=1)
    ):
        assert taken(tmp_path)["formats"]["entries"] == NEWER.newest


def test_the_folder_is_one_processs(tmp_path: Path) -> None:
    lock = take_folder(RealDisk(), str(tmp_path))
    with pytest.raises(FolderInUse):
        take_folder(RealDisk(), str(tmp_path))
    lock.release()


def test_after_a_power_cut_at_any_moment_the_file_is_the_old_one_or_the_new_one() -> None:
    old = encode_version(FolderVersion(quiver="0.0.1", needs="0.0.1", formats={"entries": 1}))
    new = encode_version(used_by_this(None))
    seen = set()
    for seed in range(5):
        for operation in range(1, 40):
            disk = SimulatedDisk(seed)
            disk.make_folder("/data")
            write_files(disk, "/data", {"version.json": old})
            disk.crash_at(disk.operation_count + operation)
            with suppress(SimulatedCrash):
                take_folder(disk, "/data")
            disk.heal()
            disk.crash()
            found = disk.read("/data/version.json")
            assert found in (old, new)
            seen.add(found)
            take_folder(disk, "/data").release()
            assert disk.read("/data/version.json") == new
    assert seen == {old, new}


def test_a_disk_without_space_refuses_the_start_and_gives_the_folder_back() -> None:
    disk = SimulatedDisk(0)
    disk.fail("append", errno.ENOSPC, path="/data/version.json.new")
    with pytest.raises(OSError):  # noqa: PT011
        take_folder(disk, "/data")
    take_folder(disk, "/data").release()
