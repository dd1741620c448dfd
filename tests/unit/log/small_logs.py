"""Small logs to break: tiny settings, batches of any size, a clock that may go back, and files as a dict.

What a log holds is compared as ``Facts``: everything an entry says except its durable mark, which
depends on when the disk was last synced and not on what was appended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from quiver.log.delivery_index import DeliverySpan
from quiver.log.disk.disk import Disk
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.builder import BatchBuilder
from quiver.model.envelope import ProducerStamp, seal_batch
from quiver.model.ids import Microseconds, Offset, ProducerEpoch, ProducerId, Sequence
from quiver.model.schema import PAYLOAD, schema_of
from quiver.testing.disk import SimulatedDisk

FOLDER = "/log"
SECOND_US = 1_000_000
SMALL = LogSettings(
    segment_bytes=4096,
    segment_age_s=1,
    index_interval_bytes=512,
    delivery_index_bytes=1024,
    checkpoint_bytes=4096,
    tail_bytes=0,
    window_bytes=4096,
)
"""Every bound as low as it may be, and nothing served from memory."""


class SetClock:
    """A clock that shows the time it was set to, and may be set back."""

    def __init__(self, time_us: int = 1_000 * SECOND_US) -> None:
        self.now_us = time_us

    def monotonic(self) -> float:
        return self.now_us / SECOND_US

    def time_us(self) -> Microseconds:
        return Microseconds(self.now_us)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing here sleeps, least of all {seconds} s")


class Facts(NamedTuple):
    """All that was appended as one entry, and its place."""

    base_offset: int
    messages: int
    epoch: int
    append_time: int
    columns: int
    producer: tuple[int, int, int]
    body: bytes

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.messages


def facts(entry: StoredBatch) -> Facts:
    producer = (entry.producer_id, entry.producer_epoch, entry.sequence)
    return Facts(
        entry.base_offset,
        entry.count,
        entry.epoch,
        entry.append_time,
        entry.columns,
        producer,
        bytes(entry.body),
    )


def batch(size: int = 100, *, count: int = 1, seed: int = 0) -> UnstoredBatch:
    """A batch whose body is ``size`` bytes that no other seed gives."""
    stamp = ProducerStamp(ProducerId(seed + 1), ProducerEpoch(2), Sequence(seed))
    return seal_batch(Random(seed).randbytes(size), count, PAYLOAD, stamp)


def scheduled(size: int = 100, *, count: int = 1, seed: int = 0) -> UnstoredBatch:
    """A batch of messages some of which have a priority, a delay, an expiry or a target."""
    random, builder = Random(seed), BatchBuilder()
    for _ in range(count):
        builder.add(
            random.randbytes(1 + size // count),
            priority=random.choice((None, 0, 4, 9)),
            deliver_at=random.choice((None, seed * SECOND_US)),
            expires_at=random.choice((None, None, seed * SECOND_US + 1)),
            origin_subscription=random.choice((None, "one", "other")),
        )
    return builder.build()


class Schedule(NamedTuple):
    """What decides delivery: by offset, where it is not the default."""

    priorities: dict[int, int]
    delays: dict[int, int]
    expiries: dict[int, int]
    targets: dict[int, str]


def schedule_in(entries: Iterable[Facts]) -> Schedule:
    """What the bodies of entries say."""
    schedule = Schedule({}, {}, {}, {})
    names = ("priority", "deliver_at", "expires_at", "origin_subscription")
    for entry in entries:
        if entry.columns == PAYLOAD:
            continue
        body = pa.py_buffer(entry.body)
        rows = pa.ipc.read_record_batch(body, schema_of(entry.columns))
        for found, name in zip(schedule, names, strict=True):
            for row, value in enumerate(rows[name] if name in rows.schema.names else ()):
                if value.is_valid and value.as_py() != 4:
                    plain = value.value if isinstance(value, pa.TimestampScalar) else value.as_py()
                    found[entry.base_offset + row] = plain
    return schedule


def schedule_indexed(
    log: SegmentedLog, start: int, span_at: Callable[[Offset], DeliverySpan]
) -> Schedule:
    """What the indexes of a log say, from an offset on."""
    schedule, offset = Schedule({}, {}, {}, {}), Offset(start)
    while offset < log.next_offset:
        span = span_at(offset)
        assert span.base_offset == offset < span.next_offset, "no offset is missing or repeated"
        for labels, found in (
            (span.priorities, schedule.priorities),
            (span.targets, schedule.targets),
        ):
            for label, offsets in labels.items():
                found.update(dict.fromkeys(offsets, label))  # type: ignore[arg-type]
        for rows, found in ((span.delays, schedule.delays), (span.expiries, schedule.expiries)):
            found.update(rows.tolist())
        offset = span.next_offset
    return schedule


def open_log(disk: Disk, clock: SetClock | None = None, **changes: Any) -> SegmentedLog:
    settings = msgspec.structs.replace(SMALL, **changes)
    return SegmentedLog(FOLDER, disk, clock or SetClock(), settings)


def read_all(log: SegmentedLog, bytes_max: int = 1500) -> list[Facts]:
    """Every entry in the log, read from its start to its end; the first may begin before the start."""
    found: list[Facts] = []
    offset = log.start_offset
    while entries := log.read(offset, bytes_max):
        for entry in entries:
            assert entry.base_offset == offset or not found, "no offset is missing or repeated"
            assert entry.base_offset <= offset < entry.next_offset
            offset = entry.next_offset
            found.append(facts(entry))
    assert offset == log.next_offset, "reading ends where the log does"
    return found


def offset_by_time(entries: list[Facts], time: int, next_offset: int) -> int:
    """What ``offset_at`` has to say of a log that holds these entries."""
    return next((entry.base_offset for entry in entries if entry.append_time >= time), next_offset)


def files_in(disk: Disk, folder: str = FOLDER) -> dict[str, bytes]:
    names = disk.list_folder(folder) if disk.exists(folder) else []
    return {name: disk.read(f"{folder}/{name}") for name in names}


def disk_with(files: dict[str, bytes], seed: int = 0) -> SimulatedDisk:
    """A disk on which these are all the files of the log, durably."""
    disk = SimulatedDisk(seed)
    disk.make_folder(FOLDER)
    for name, content in files.items():
        file = disk.open_append(f"{FOLDER}/{name}")
        file.append([content])
        file.sync()
        file.close()
    disk.sync_folder(FOLDER)
    return disk


def effort() -> int:
    """How much longer than usual the searching tests are to search (``QUIVER_TEST_EFFORT``)."""
    return int(os.environ.get("QUIVER_TEST_EFFORT", "1"))


def segment_count(log: SegmentedLog) -> int:
    """How many files of messages the log has."""
    return len(log._segments)
