"""Takes a backup of a running node or cluster, through the native protocol.

The state of the subscriptions is read first, then the end of every partition is noted, then everything
before these ends is copied. So a message that is finished in the backup is never one whose dead letter
is missing in it, and whatever was confirmed before the backup began is in it. Entries that an earlier
backup at the same place has are not copied again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256

import msgspec

from quiver.aio import for_each
from quiver.backup.manifest import (
    Chunk,
    Manifest,
    PartitionBackup,
    SubscriptionBackup,
    TopicBackup,
)
from quiver.backup.nodes import Nodes
from quiver.backup.pace import Pace
from quiver.backup.place import BackupPlace
from quiver.backup.plan import earlier_chunks, last_entry, reusable, without_gaps
from quiver.errors import (
    BackupError,
    BackupNotFound,
    InvalidRequest,
    OffsetOutOfRange,
    SubscriptionNotFound,
    TopicNotFound,
)
from quiver.model.batch import StoredBatch
from quiver.model.envelope import entries_in
from quiver.model.topic import is_internal
from quiver.protocol import (
    ExportTokens,
    Fetch,
    Fetched,
    FindOffset,
    ListSubscriptions,
    ListTopics,
    OffsetFound,
    ReadState,
    StateRead,
    SubscriptionInfo,
    Subscriptions,
    TokenCopy,
    TokensExported,
    TopicInfo,
    Topics,
)
from quiver.version import __version__

CHUNK_BYTES = 16 << 20
_FETCH_BYTES = 4 << 20
_AT_ONCE = 4
_BEGINNINGS_MAX = 10
"""How often the copy of one partition begins again because retention was quicker."""


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that was taken, and how much of it is new at its place."""

    manifest: Manifest
    new_objects: int
    new_bytes: int


class BackupWriter:
    """``on_bytes`` is called with the size of each piece that was copied."""

    def __init__(
        self,
        nodes: Nodes,
        place: BackupPlace,
        pace: Pace,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        on_bytes: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._nodes = nodes
        self._place = place
        self._pace = pace
        self._chunk_bytes = chunk_bytes
        self._on_bytes = on_bytes
        self._new_objects = 0
        self._new_bytes = 0

    async def create(self) -> Created:
        began_us = self._nodes.clock.time_us()
        earlier = await asyncio.to_thread(self._newest)
        backup = _new_id(began_us, earlier)
        listed, _ = await self._nodes.ask(ListSubscriptions(), Subscriptions)
        states = [await self._state(backup, one) for one in listed.subscriptions]
        tokens = await self._tokens()
        topics = await self._topics(earlier)
        manifest = Manifest(
            id=backup,
            created_us=began_us,
            finished_us=self._nodes.clock.time_us(),
            software=f"quiver/{__version__}",
            topics=topics,
            subscriptions=[one for one in states if one is not None],
            tokens=tokens,
        )
        await asyncio.to_thread(self._place.add, manifest)
        return Created(manifest=manifest, new_objects=self._new_objects, new_bytes=self._new_bytes)

    def _newest(self) -> Manifest | None:
        try:
            return self._place.manifest()
        except BackupNotFound:
            return None

    async def _tokens(self) -> list[TokenCopy]:
        """Every token; none of a node that does not use them."""
        try:
            return (await self._nodes.ask(ExportTokens(), TokensExported))[0].tokens
        except InvalidRequest:
            return []

    async def _state(self, backup: str, info: SubscriptionInfo) -> SubscriptionBackup | None:
        """Where every message of a subscription stands now; nothing if it was deleted meanwhile."""
        try:
            read, body = await self._nodes.ask(ReadState(subscription=info.name), StateRead)
        except SubscriptionNotFound:
            return None
        name = f"objects/state/{backup}/{info.number}"
        stored = await asyncio.to_thread(self._place.put, name, bytes(body))
        return SubscriptionBackup(info=info, state=stored, partitions=read.partitions)

    # ------------------------------------------------------------------ topics

    async def _topics(self, earlier: Manifest | None) -> list[TopicBackup]:
        """Every topic up to its end of now. Those that are deleted meanwhile are left out."""
        listed, _ = await self._nodes.ask(ListTopics(), Topics)
        infos = {one.name: one for one in listed.topics if not is_internal(one.name)}
        places = [(name, one.index) for name, info in infos.items() for one in info.partitions]
        ends: dict[tuple[str, int], int] = {}
        copies: dict[tuple[str, int], PartitionBackup] = {}
        gone: set[str] = set()

        async def note_end(place: tuple[str, int]) -> None:
            try:
                ends[place] = await self._find(*place, "latest")
            except TopicNotFound:
                gone.add(place[0])

        async def copy(place: tuple[str, int]) -> None:
            name, index = place
            if name in gone:
                return
            known = earlier_chunks(earlier, infos[name], index)
            try:
                copies[place] = await self._partition(infos[name], index, ends[place], known)
            except TopicNotFound:
                gone.add(name)

        await for_each(places, note_end, _AT_ONCE)
        await for_each(places, copy, _AT_ONCE)
        return [
            TopicBackup(info=info, partitions=[copies[name, one.index] for one in info.partitions])
            for name, info in infos.items()
            if name not in gone
        ]

    async def _find(self, topic: str, index: int, at: str) -> int:
        request = FindOffset(topic=topic, partition=index, at=at)
        return (await self._nodes.ask_leader(request, OffsetFound, topic, index))[0].offset

    async def _partition(
        self, info: TopicInfo, index: int, end: int, known: list[Chunk]
    ) -> PartitionBackup:
        for _ in range(_BEGINNINGS_MAX):
            start = await self._find(info.name, index, "earliest")
            chunks = reusable(known, start, end)
            if chunks and not await self._is_still_there(info, index, chunks[-1]):
                chunks = []
            try:
                chunks += await self._copy(
                    info, index, chunks[-1].next_offset if chunks else start, end
                )
            except OffsetOutOfRange:
                known = []  # retention was quicker: it begins later now
                continue
            if not chunks:
                return PartitionBackup(start_offset=end, next_offset=end)
            return PartitionBackup(
                start_offset=chunks[0].base_offset,
                next_offset=chunks[-1].next_offset,
                chunks=chunks,
            )
        raise BackupError(
            f"retention removes messages of {info.name!r} faster than they can be copied"
        )

    async def _is_still_there(self, info: TopicInfo, index: int, chunk: Chunk) -> bool:
        """Whether the log has the last entry of a chunk, and so all of it.

        A log that lost its end in a crash may have others at the same offsets.
        """
        try:
            entries, *_ = await self._fetch(info, index, chunk.last.base_offset, 1)
        except OffsetOutOfRange:
            return False
        return bool(entries) and last_entry(entries[0]) == chunk.last

    async def _copy(self, info: TopicInfo, index: int, offset: int, end: int) -> list[Chunk]:
        """The entries from one offset up to another, as chunks at the backup's place.

        A chunk ends with a message: what has none after the last is left out.
        """
        chunks: list[Chunk] = []
        pieces: list[bytes] = []
        size, copied_to, first, last = 0, offset, None, None
        while offset < end:
            entries, data, read_to = await self._fetch(info, index, offset, _FETCH_BYTES)
            wanted = [entry for entry in entries if entry.base_offset < end]
            if read_to <= offset:
                raise BackupError(f"{info.name!r} ends before offset {end:,}: it was truncated")
            offset = read_to
            if wanted:
                whole = without_gaps(wanted, copied_to)
                pieces.append(
                    bytes(data[: sum(entry.size() for entry in wanted)])
                    if len(whole) == len(wanted)
                    else b"".join([buffer for entry in whole for buffer in entry.buffers()])
                )
                size += len(pieces[-1])
                first, last = first or whole[0], wanted[-1]
                copied_to = last.next_offset
            if (
                first is not None
                and last is not None
                and (size >= self._chunk_bytes or offset >= end)
            ):
                chunks.append(await self._store(info, index, b"".join(pieces), first, last))
                pieces, size, first = [], 0, None
        return chunks

    async def _fetch(
        self, info: TopicInfo, index: int, offset: int, bytes_max: int
    ) -> tuple[list[StoredBatch], memoryview, int]:
        """Entries from an offset on, their bytes, and where to go on."""
        request = Fetch(topic=info.name, partition=index, offset=offset, bytes_max=bytes_max)
        fetched, data = await self._nodes.ask_leader(request, Fetched, info.name, index)
        if fetched.topic_number != info.number:
            raise TopicNotFound(f"topic {info.name!r} was deleted and created again")
        await self._pace.take(len(data))
        self._on_bytes(len(data))
        entries = entries_in(data)
        return entries, data, max(fetched.read_to, entries[-1].next_offset if entries else 0)

    async def _store(
        self, info: TopicInfo, index: int, data: bytes, first: StoredBatch, last: StoredBatch
    ) -> Chunk:
        folder = f"objects/{info.name}@{info.number}-{info.created_us}/{index}"
        span = f"{first.base_offset:020}-{last.next_offset:020}"
        name = f"{folder}/{span}-{sha256(data).hexdigest()[:16]}"
        stored = await asyncio.to_thread(self._place.put, name, data)
        self._new_objects += 1
        self._new_bytes += len(data)
        return Chunk(
            name=stored.name,
            bytes=stored.bytes,
            sha256=stored.sha256,
            base_offset=first.base_offset,
            next_offset=last.next_offset,
            first_time=first.append_time,
            last=last_entry(last),
        )


def _new_id(now_us: int, earlier: Manifest | None) -> str:
    """The time, to the microsecond: later backups sort later, whatever the clock does."""
    if earlier is not None:
        now_us = max(now_us, earlier.created_us + 1)
    return datetime.fromtimestamp(now_us / 1e6, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
