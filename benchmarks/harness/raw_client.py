"""A client that is next to nothing: ready-made batches in frames, some of them unanswered at a time.

Whoever is measured with it, a node or a bare server, is asked the same by the same code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import cast

import uvloop

from quiver import protocol
from quiver.model.batch import UnstoredBatch
from quiver.protocol.frames import FRAME_BYTES_MAX, PREFACE, FrameAssembler, frame

_SECONDS_MAX = 60.0


class RawConnection(asyncio.BufferedProtocol):
    """One connection; ``connect`` it, then use its futures."""

    def __init__(self) -> None:
        self._frames = FrameAssembler(FRAME_BYTES_MAX)
        self._waiting: dict[int, asyncio.Future[protocol.AnyReply]] = {}
        self._next_id = 0
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> RawConnection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, *address)
        assert connection._transport is not None
        connection._transport.write(PREFACE)
        await connection.ask(protocol.Hello(versions=[protocol.PROTOCOL_VERSION]))
        return connection

    def ask(
        self, request: protocol.AnyRequest, batch: UnstoredBatch | None = None
    ) -> asyncio.Future[protocol.AnyReply]:
        """Send a request; a future of its reply."""
        assert self._transport is not None
        self._next_id = request.id = self._next_id + 1
        body = () if batch is None else (batch.head, batch.body)
        self._transport.writelines(frame(protocol.encode(request), body))
        future = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        return future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error or ConnectionError("the other side hung up"))

    def get_buffer(self, _: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, count: int) -> None:
        for header, _ in self._frames.received(count):
            reply = protocol.decode_reply(header)
            future = self._waiting.pop(reply.id)
            if isinstance(reply, protocol.Failed):
                future.set_exception(RuntimeError(reply.message))
            elif not future.done():
                future.set_result(reply)


def publish_pipelined(
    address: tuple[str, int],
    topic: str,
    batches: Sequence[UnstoredBatch],
    count: int,
    *,
    partitions: int = 1,
    connections: int = 4,
    outstanding: int = 8,
) -> float:
    """Publish ``count`` batches, each connection to a partition; the seconds until all were stored."""

    async def publisher(connection: RawConnection, partition: int, left: list[int]) -> None:
        while left:
            batch = batches[left.pop() % len(batches)]
            await connection.ask(protocol.Publish(topic=topic, partition=partition), batch)

    async def run() -> float:
        opened = [await RawConnection.connect(address) for _ in range(connections)]
        left = list(range(count))
        try:
            began = time.perf_counter()
            await asyncio.gather(
                *(
                    publisher(connection, place % partitions, left)
                    for place, connection in enumerate(opened)
                    for _ in range(outstanding)
                )
            )
            return time.perf_counter() - began
        finally:
            for connection in opened:
                connection.close()

    async def bounded() -> float:
        async with asyncio.timeout(_SECONDS_MAX):
            return await run()

    return uvloop.run(bounded())
