"""The yardstick: frames in, a checksum, one file, one sync for all who wait, small frames out.

It stands for the least that a durable publish takes in Python: no topics, no offsets, no limits. It
runs as ``python -m benchmarks.broker.bare_server <ready file> <file to append to>``.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import cast

import msgspec
import uvloop
from crc32c import crc32c

from benchmarks.harness.child import Child, started
from quiver import protocol
from quiver.protocol.frames import PREFACE, frame

_PREFIX = struct.Struct("<II")
_SUM = struct.Struct("<I")
_BUFFERS_MAX = 1024


class _Header(msgspec.Struct):
    id: int
    call: str


_headers = msgspec.msgpack.Decoder(_Header)


class GroupCommit:
    """Appends what has come since the last sync, in one write and one sync, in a thread."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._thread = ThreadPoolExecutor(1)
        self._waiting: list[tuple[_Connection, int, memoryview]] = []
        self._committing: asyncio.Task[None] | None = None

    def add(self, connection: _Connection, request_id: int, body: memoryview) -> None:
        self._waiting.append((connection, request_id, body))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit())

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            taken, self._waiting = self._waiting, []
            await loop.run_in_executor(self._thread, self._append, [body for *_, body in taken])
            for connection, request_id, _ in taken:
                connection.answer(request_id)
        self._committing = None

    def _append(self, bodies: list[memoryview]) -> None:
        for begin in range(0, len(bodies), _BUFFERS_MAX):
            some = bodies[begin : begin + _BUFFERS_MAX]
            assert os.writev(self._descriptor, some) == sum(map(len, some))
        os.fdatasync(self._descriptor)


class _Connection(asyncio.BufferedProtocol):
    """Receives each frame into memory of its own: first the prefix, then the rest."""

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit
        self._into = bytearray(len(PREFACE))
        self._filled = 0
        self._header_size: int | None = None
        self._greeted = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None

    def get_buffer(self, _: int) -> memoryview:
        return memoryview(self._into)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        if self._filled < len(self._into):
            return
        whole, self._filled = self._into, 0
        if not self._greeted:
            self._greeted = True
            self._into = bytearray(_PREFIX.size)
        elif self._header_size is None:
            size, self._header_size = _PREFIX.unpack(whole)
            self._into = bytearray(size - 4)
        else:
            header_size, self._header_size = self._header_size, None
            self._into = bytearray(_PREFIX.size)
            self._take(memoryview(whole), header_size)

    def _take(self, whole: memoryview, header_size: int) -> None:
        header = _headers.decode(whole[:header_size])
        if header.call == "hello":
            self.answer(header.id)
            return
        body = whole[header_size + (-header_size & 7) :]
        (checksum,) = _SUM.unpack_from(body)
        assert crc32c(body[_SUM.size :]) == checksum
        self._commit.add(self, header.id, body)

    def answer(self, request_id: int) -> None:
        if self._transport is not None:
            self._transport.writelines(frame(protocol.encode(protocol.Done(id=request_id))))


@contextmanager
def bare_server(folder: str) -> Iterator[Child]:
    """The yardstick as a child process."""
    ready_file = f"{folder}/bare.json"
    command = [sys.executable, "-m", "benchmarks.broker.bare_server", ready_file, f"{folder}/bare"]
    with started(command, ready_file) as child:
        yield child


async def _serve(ready_file: str, path: str) -> None:
    commit = GroupCommit(path)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(commit), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    _write_ready_file(ready_file, f"{host}:{port}")
    await server.serve_forever()


def _write_ready_file(path: str, address: str) -> None:
    with open(f"{path}.new", "w") as file:
        json.dump({"native": address}, file)
    os.replace(f"{path}.new", path)


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
