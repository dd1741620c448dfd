"""A server on a socket that speaks the native protocol's frames, and says what a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from quiver import protocol
from quiver.protocol.frames import FRAME_BYTES_MAX, PREFACE, FrameAssembler, frame


class Visitor:
    """One connection, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._assembler = FrameAssembler(FRAME_BYTES_MAX)
        self._ready: list[tuple[protocol.AnyRequest, bytes]] = []

    async def take_preface(self) -> None:
        assert await self._reader.readexactly(len(PREFACE)) == PREFACE

    async def next_request(self) -> tuple[protocol.AnyRequest, bytes]:
        while not self._ready:
            data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionResetError
            while data:
                buffer = self._assembler.buffer()
                count = min(len(buffer), len(data))
                buffer[:count] = data[:count]
                data = data[count:]
                for header, body in self._assembler.received(count):
                    self._ready.append((protocol.decode_request(header), bytes(body)))
        return self._ready.pop(0)

    async def welcome(
        self,
        requests_max: int = 100,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        *,
        forwards: bool = False,
    ) -> protocol.AnyRequest:
        await self.take_preface()
        hello, _ = await self.next_request()
        self.reply(
            protocol.Welcome(
                id=hello.id,
                version=protocol.PROTOCOL_VERSION,
                node="test",
                software="test",
                frame_bytes_max=frame_bytes_max,
                requests_max=requests_max,
                forwards=forwards,
            )
        )
        return hello

    def reply(self, reply: protocol.AnyReply, body: bytes = b"") -> None:
        self.writer.writelines(frame(protocol.encode(reply), [body]))

    def done(self, request: protocol.AnyRequest) -> None:
        self.reply(protocol.Done(id=request.id))


@contextlib.asynccontextmanager
async def framed_server(
    serve: Callable[[Visitor], Awaitable[None]],
) -> AsyncIterator[str]:
    """The address of a server that gives each connection to ``serve``."""
    tasks: set[asyncio.Task[None]] = set()

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await serve(Visitor(reader, writer))
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(visited, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()
