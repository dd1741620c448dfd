"""A client that costs little: ready-made requests on many connections, each answered before the next."""

from __future__ import annotations

import asyncio
import re
import time
from typing import cast

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_SECONDS_MAX = 120.0


def request(path: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._answer: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._received, 0, end)
        assert length is not None, self._received
        if len(self._received) < end + 4 + int(length[1]):
            return
        assert self._received.startswith(b"HTTP/1.1 20"), self._received[:500]
        self._received = b""
        assert self._answer is not None
        if not self._answer.done():
            self._answer.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server hung up"))

    async def ask(self, data: bytes) -> None:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        await self._answer

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


async def connected(address: tuple[str, int], count: int) -> list[Connection]:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Connection, *address) for _ in range(count)]
    return [connection for _, connection in made]


async def closed_loop(
    address: tuple[str, int],
    data: bytes,
    count: int,
    connections: int,
    taken: list[float] | None = None,
) -> float:
    """Requests in a second, with one under way on each connection; ``taken`` gets their seconds."""
    seconds_of = [] if taken is None else taken
    async with asyncio.timeout(_SECONDS_MAX):
        sockets = await connected(address, connections)
        left = iter(range(count))

        async def work(socket: Connection) -> None:
            for _ in left:
                asked = time.perf_counter()
                await socket.ask(data)
                seconds_of.append(time.perf_counter() - asked)

        began = time.perf_counter()
        await asyncio.gather(*map(work, sockets))
        seconds = time.perf_counter() - began
        for socket in sockets:
            socket.close()
    return count / seconds


async def at_rate(
    address: tuple[str, int], data: bytes, rate: float, count: int, connections: int
) -> list[float]:
    """Seconds from when each request was due until it was answered, at a steady rate."""
    async with asyncio.timeout(_SECONDS_MAX):
        sockets = await connected(address, connections)
        idle: asyncio.Queue[Connection] = asyncio.Queue()
        for socket in sockets:
            idle.put_nowait(socket)
        taken: list[float] = []

        async def one(due: float) -> None:
            socket = await idle.get()
            await socket.ask(data)
            taken.append(time.monotonic() - due)
            idle.put_nowait(socket)

        began = time.monotonic()
        tasks = []
        for place in range(count):
            due = began + place / rate
            early = due - time.monotonic()
            if early > 0:
                await asyncio.sleep(early)
            tasks.append(asyncio.create_task(one(due)))
        await asyncio.gather(*tasks)
        for socket in sockets:
            socket.close()
    return taken
