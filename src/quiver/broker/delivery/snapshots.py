"""Where a partition saves state that it could otherwise rebuild only from its whole log.

A single node writes files beside the log. A replicated partition writes snapshots into its state log,
which followers copy. So the next leader has them, and older records can be dropped everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec
from crc32c import crc32c

from quiver.log.disk.disk import Disk
from quiver.log.disk.disk_threads import RunBlocking
from quiver.log.files import write_files
from quiver.log.log import Log
from quiver.model.envelope import seal_batch
from quiver.model.ids import Offset

SNAPSHOT_ENTRY = 1
"""What the columns of an entry of the state log say if it is a part of a snapshot."""
_PART_BYTES = 1 << 20
_READ_BYTES = 4 << 20


class Snapshots(Protocol):
    async def load(self, name: str) -> bytes:
        """What was last saved under the name; nothing if nothing was, or it is damaged."""

    async def save(self, name: str, encode: Callable[[], bytes]) -> None:
        """Keep this in place of what was saved before; it is encoded off the event loop."""

    async def needed_from(self, offset: Offset) -> Offset:
        """From where on the state log is needed, if its records are needed from ``offset`` on."""


class FileSnapshots:
    """A file for each, in the partition's folder."""

    def __init__(self, folder: str, disk: Disk, run_blocking: RunBlocking) -> None:
        self._folder = folder
        self._disk = disk
        self._run_blocking = run_blocking

    async def load(self, name: str) -> bytes:
        path = f"{self._folder}/{name}"
        data = await self._run_blocking(
            lambda: self._disk.read(path) if self._disk.exists(path) else b""
        )
        return data[4:] if crc32c(data[4:]).to_bytes(4, "little") == data[:4] else b""

    async def save(self, name: str, encode: Callable[[], bytes]) -> None:
        def write() -> None:
            data = encode()
            folder, _, file = f"{self._folder}/{name}".rpartition("/")
            write_files(self._disk, folder, {file: crc32c(data).to_bytes(4, "little") + data})

        await self._run_blocking(write)

    async def needed_from(self, offset: Offset) -> Offset:
        return offset


class _Part(msgspec.Struct, frozen=True, array_like=True):
    name: str
    part: int
    parts: int
    data: bytes


class LoggedSnapshots:
    """Entries of the state log. Use ``open``."""

    def __init__(self, log: Log, run_blocking: RunBlocking) -> None:
        self._log = log
        self._run_blocking = run_blocking
        self._first: dict[str, Offset] = {}
        """Where the newest snapshot of each name begins."""

    @classmethod
    async def open(cls, log: Log, run_blocking: RunBlocking) -> LoggedSnapshots:
        """Find the newest snapshots that are whole."""
        snapshots, offset = cls(log, run_blocking), log.start_offset
        first: Offset | None = None
        while offset < log.next_offset:
            for entry in await log.read(offset, _READ_BYTES):
                offset = entry.next_offset
                if entry.columns != SNAPSHOT_ENTRY:
                    continue
                part = _decoder.decode(entry.body)
                if part.part == 0:
                    first = entry.base_offset
                if first is None or first + part.part != entry.base_offset:
                    first = None  # its beginning is gone
                elif part.part == part.parts - 1:
                    snapshots._first[part.name] = first
        return snapshots

    async def load(self, name: str) -> bytes:
        first = self._first.get(name)
        if first is None:
            return b""
        pieces: list[bytes] = []
        while True:
            for entry in await self._log.read(Offset(first + len(pieces)), _READ_BYTES):
                part = _decoder.decode(entry.body)
                pieces.append(part.data)
                if len(pieces) == part.parts:
                    return b"".join(pieces)

    async def save(self, name: str, encode: Callable[[], bytes]) -> None:
        await self._submit(name, await self._run_blocking(encode))

    async def _submit(self, name: str, data: bytes) -> None:
        """The parts follow one another: nothing else is submitted in between."""
        pieces = [data[at : at + _PART_BYTES] for at in range(0, len(data), _PART_BYTES)] or [b""]
        submitted = [
            self._log.submit(
                seal_batch(_encode(_Part(name, part, len(pieces), piece)), 1, SNAPSHOT_ENTRY)
            )
            for part, piece in enumerate(pieces)
        ]
        await asyncio.gather(*(stored for _, stored in submitted))
        self._first[name] = submitted[0][0].base_offset

    async def needed_from(self, offset: Offset) -> Offset:
        """What was saved before is saved anew, so that it holds up nothing."""
        for name, first in list(self._first.items()):
            if first < offset:
                await self._submit(name, await self.load(name))
        return offset


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[_Part] = msgspec.msgpack.Decoder(_Part)
