"""A log that lost its end, and has others at the same offsets, is never mixed with what it had."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quiver.backup.create import BackupWriter, Created
from quiver.backup.pace import Pace
from quiver.backup.place import open_place
from quiver.backup.verify import verify
from quiver.errors import InvalidRequest, OffsetOutOfRange
from quiver.model.batch import Bytes, StoredBatch
from quiver.model.clock import SystemClock
from quiver.model.envelope import entries_in, is_hidden, seal_gap, store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.protocol import (
    ExportTokens,
    Fetch,
    Fetched,
    FindOffset,
    ListSubscriptions,
    ListTopics,
    OffsetFound,
    Subscriptions,
    Topics,
)
from tests.integration.native_peer import batch_of
from tests.unit.backup.backups import partition_of, topic_of

INFO = topic_of("orders", partition_of((0, 1))).info


class OneLog:
    """The nodes, as far as a backup asks them, with one partition."""

    clock = SystemClock()

    def __init__(self) -> None:
        self.entries: list[StoredBatch] = []
        self.start = 0
        self.fetched: list[int] = []

    @property
    def end(self) -> int:
        return self.entries[-1].next_offset if self.entries else self.start

    def append(self, *payloads: bytes) -> None:
        entry = store_batch(
            batch_of(*payloads),
            base_offset=Offset(self.end),
            epoch=LeaderEpoch(0),
            append_time=Microseconds(1000 + self.end),
            durable_offset=Offset(0),
        )
        self.entries.append(entry)

    def skip(self, count: int) -> None:
        """Offsets without messages."""
        entry = store_batch(
            seal_gap(count),
            base_offset=Offset(self.end),
            epoch=LeaderEpoch(0),
            append_time=Microseconds(1000 + self.end),
            durable_offset=Offset(0),
        )
        self.entries.append(entry)

    def retain(self, start: int) -> None:
        self.start = start
        self.entries = [one for one in self.entries if one.base_offset >= start]

    async def ask(self, request: Any, _kind: Any, _body: Sequence[Bytes] = ()) -> Any:
        match request:
            case ListSubscriptions():
                return Subscriptions(subscriptions=[]), b""
            case ListTopics():
                return Topics(topics=[INFO]), b""
            case ExportTokens():
                raise InvalidRequest("no tokens")
        raise AssertionError(request)

    async def ask_leader(
        self, request: Any, _kind: Any, _topic: str, _index: int, _body: Sequence[Bytes] = ()
    ) -> Any:
        match request:
            case FindOffset(at=at):
                return OffsetFound(offset=self.start if at == "earliest" else self.end), b""
            case Fetch(offset=offset):
                self.fetched.append(offset)
                if not self.start <= offset <= self.end:
                    raise OffsetOutOfRange(first_offset=self.start, next_offset=self.end)
                found = [one for one in self.entries if one.next_offset > offset][:2]
                read_to = found[-1].next_offset if found else offset
                seen = [one for one in found if not is_hidden(one)]
                body = b"".join(bytes(part) for one in seen for part in one.buffers())
                reply = Fetched(
                    start_offset=self.start,
                    next_offset=self.end,
                    topic_number=1,
                    read_to=read_to,
                )
                return reply, memoryview(body)
        raise AssertionError(request)


def taken(log: OneLog, folder: Path) -> tuple[Created, list[bytes]]:
    """A backup, and the payloads that it has."""
    place = open_place(str(folder))
    writer = BackupWriter(log, place, Pace(log.clock))  # type: ignore[arg-type]
    created = asyncio.run(writer.create())
    assert verify(place, created.manifest) == []
    (part,) = created.manifest.topics[0].partitions
    data = b"".join(place.get(one) for one in part.chunks)
    rows = [
        entry.record_batch().column("payload").to_pylist()
        for entry in entries_in(data)
        if not is_hidden(entry)
    ]
    return created, [payload for some in rows for payload in some]


def test_only_new_entries_are_fetched(tmp_path: Path) -> None:
    log = OneLog()
    for payload in (b"a", b"b", b"c"):
        log.append(payload)
    assert taken(log, tmp_path)[1] == [b"a", b"b", b"c"]
    log.append(b"d")
    log.fetched.clear()
    created, payloads = taken(log, tmp_path)
    assert payloads == [b"a", b"b", b"c", b"d"]
    assert (log.fetched, created.new_objects) == ([2, 3], 1)


def test_a_log_with_another_end_is_copied_anew(tmp_path: Path) -> None:
    log = OneLog()
    for payload in (b"a", b"b", b"lost"):
        log.append(payload)
    taken(log, tmp_path)
    del log.entries[2:]
    for payload in (b"else", b"more"):
        log.append(payload)
    assert taken(log, tmp_path)[1] == [b"a", b"b", b"else", b"more"]


def test_what_retention_removed_is_no_gap(tmp_path: Path) -> None:
    log = OneLog()
    for payload in (b"a", b"b"):
        log.append(payload)
    taken(log, tmp_path)
    for payload in (b"c", b"d"):
        log.append(payload)
    log.retain(3)
    created, payloads = taken(log, tmp_path)
    assert payloads == [b"d"]
    assert created.manifest.topics[0].partitions[0].start_offset == 3


def test_offsets_without_messages_are_kept_free_and_copied_once(tmp_path: Path) -> None:
    log = OneLog()
    log.append(b"a")
    log.skip(2)
    log.append(b"b")
    log.skip(3)
    created, payloads = taken(log, tmp_path)
    assert payloads == [b"a", b"b"]
    partition = created.manifest.topics[0].partitions[0]
    assert (partition.start_offset, partition.next_offset) == (0, 4)
    log.append(b"c")
    log.fetched.clear()
    created, payloads = taken(log, tmp_path)
    assert payloads == [b"a", b"b", b"c"]
    assert (log.fetched, created.new_objects) == ([3, 4], 1)
    assert created.manifest.topics[0].partitions[0].next_offset == 8


def test_a_partition_of_nothing_but_aborted_messages_is_empty_in_a_backup(tmp_path: Path) -> None:
    log = OneLog()
    log.skip(5)
    created, payloads = taken(log, tmp_path)
    assert payloads == []
    partition = created.manifest.topics[0].partitions[0]
    assert (partition.start_offset, partition.next_offset) == (5, 5)
