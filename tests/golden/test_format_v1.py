"""A folder that was written with format version 1 is read by every later version, as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quiver.log.checkpoint import Checkpoint, read_checkpoint
from quiver.log.disk.real_disk import RealDisk
from quiver.log.index import SparseIndex
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch
from quiver.model.envelope import (
    ENVELOPE_SIZE,
    ProducerStamp,
    entries_in,
    seal_batch,
    store_batch,
)
from quiver.model.ids import (
    LeaderEpoch,
    Microseconds,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
)
from quiver.model.schema import COLUMNS
from tests.golden.content_v1 import BATCHES, DAY_US, HOUR_US, SEGMENTS, Written
from tests.unit.log.small_logs import SetClock

STORED = Path(__file__).parent / "format-v1"
BASES = [sum(batch.messages for batch in BATCHES[:place]) for place in range(len(BATCHES))]


@pytest.fixture
def log(tmp_path: Path) -> SegmentedLog:
    """The stored folder, or rather a copy: opening a log writes a checkpoint."""
    folder = shutil.copytree(STORED, tmp_path / "log")
    return SegmentedLog(str(folder), RealDisk(), SetClock(DAY_US), LogSettings())


def stored_entries() -> list[StoredBatch]:
    return [
        entry for path in sorted(STORED.glob("*.log")) for entry in entries_in(path.read_bytes())
    ]


def columns_of(entry: StoredBatch) -> dict[str, list[object]]:
    read: dict[str, list[object]] = entry.record_batch().to_pydict()
    return read


def test_the_folder_holds_every_column_of_its_time() -> None:
    known = [field.name for field in COLUMNS]
    assert list(BATCHES[0].columns) == known[: len(BATCHES[0].columns)]
    assert sorted(path.name for path in STORED.glob("*.log")) == [
        f"{base:020d}.log" for base in SEGMENTS
    ]


@pytest.mark.parametrize(("base", "written"), list(zip(BASES, BATCHES, strict=True)))
def test_a_stored_batch_is_read_with_all_that_was_written(
    log: SegmentedLog, base: int, written: Written
) -> None:
    entry = log.read(Offset(base), 1)[0]
    assert columns_of(entry) == written.columns
    assert (entry.base_offset, entry.count) == (base, written.messages)
    assert (entry.append_time, entry.epoch) == (written.append_time, written.epoch)
    assert (entry.producer_id, entry.producer_epoch, entry.sequence) == written.producer


def test_the_log_goes_on_where_it_ended(log: SegmentedLog) -> None:
    assert (log.start_offset, log.next_offset, log.epoch) == (0, 48, 2)
    assert log.recovery_cut_bytes == 0


@pytest.mark.parametrize(
    ("time", "offset"),
    [
        (0, 0),
        (DAY_US, 0),
        (DAY_US + 1, 3),
        (DAY_US + 2, 44),
        (DAY_US + 2 * HOUR_US + 1, 47),
        (DAY_US + 4 * HOUR_US + 1, 48),
    ],
)
def test_a_time_is_found(log: SegmentedLog, time: int, offset: int) -> None:
    assert log.offset_at(Microseconds(time)) == offset


def test_the_stored_checkpoint_is_understood() -> None:
    size = (STORED / f"{SEGMENTS[-1]:020d}.log").stat().st_size
    assert read_checkpoint(RealDisk(), str(STORED)) == Checkpoint(
        start_offset=Offset(0),
        segment=Offset(SEGMENTS[-1]),
        position=size,
        next_offset=Offset(48),
        append_time=Microseconds(DAY_US + 4 * HOUR_US),
        epoch=LeaderEpoch(2),
    )


@pytest.mark.parametrize("base", SEGMENTS)
def test_the_stored_indexes_are_believed(base: int) -> None:
    size = (STORED / f"{base:020d}.log").stat().st_size
    first = next(written for at, written in zip(BASES, BATCHES, strict=True) if at == base)
    for suffix, key in ((".index", base), (".timeindex", first.append_time)):
        path = STORED / f"{base:020d}{suffix}"
        index = SparseIndex.decode(path.name, path.read_bytes())
        assert index is not None
        assert (index.covered, index.positions[0], index.keys[0]) == (size, 0, key)


@pytest.mark.parametrize("place", range(len(BATCHES)))
def test_the_same_batch_is_still_stored_as_the_same_bytes(place: int) -> None:
    entry = stored_entries()[place]
    stamp = ProducerStamp(
        ProducerId(entry.producer_id),
        ProducerEpoch(entry.producer_epoch),
        Sequence(entry.sequence),
    )
    again = store_batch(
        seal_batch(entry.body, entry.count, entry.columns, stamp),
        base_offset=entry.base_offset,
        epoch=entry.epoch,
        append_time=entry.append_time,
        durable_offset=entry.durable_offset,
    )
    assert again.head == entry.head
    assert len(again.head) == ENVELOPE_SIZE


def test_closing_it_again_writes_the_same_checkpoint_and_indexes(
    log: SegmentedLog, tmp_path: Path
) -> None:
    log.close()
    for path in STORED.iterdir():
        assert (tmp_path / "log" / path.name).read_bytes() == path.read_bytes(), path.name
