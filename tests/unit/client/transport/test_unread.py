"""An answer that nobody reads: the messages in it are returned, whenever its reader left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from quiver import protocol
from quiver.client.transport.connection import Connection
from quiver.errors import RequestTimeout
from quiver.model.batch import Bytes
from quiver.protocol.frames import FRAME_BYTES_MAX, PREFACE, FrameAssembler, frame
from tests.aio import async_test, turns


class Line:
    """The transport of a connection without a socket, and the node at its other end."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.is_closed = False
        self._frames = FrameAssembler(FRAME_BYTES_MAX)
        self.connection = Connection("node")
        self.connection.connection_made(self)  # type: ignore[arg-type]

    async def open(self) -> Connection:
        greeting = asyncio.create_task(self.connection.greet(1.0))
        await turns()
        self.reply(
            protocol.Welcome(
                id=1,
                version=1,
                node="",
                software="",
                frame_bytes_max=FRAME_BYTES_MAX,
                requests_max=10,
            )
        )
        await greeting
        return self.connection

    def reply(self, reply: protocol.AnyReply) -> None:
        data = b"".join(frame(protocol.encode(reply)))
        self.connection.get_buffer(len(data))[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def received(self, request_id: int) -> protocol.Received:
        portion = protocol.PortionInfo(
            topic="t",
            topic_number=1,
            partition=0,
            lease=b"lease",
            deadline_us=0,
            offsets=b"offsets",
            size=0,
        )
        return protocol.Received(id=request_id, portions=[portion])

    @property
    def returned(self) -> list[protocol.Return]:
        return [one for one in self.requests if isinstance(one, protocol.Return)]

    @property
    def abandoned(self) -> list[int]:
        return [one.request for one in self.requests if isinstance(one, protocol.Abandon)]

    # ------------------------------------------------------------------ asyncio.Transport

    def write(self, data: Bytes) -> None:
        assert data == PREFACE

    def writelines(self, buffers: Sequence[Bytes]) -> None:
        data = b"".join(buffers)
        self._frames.buffer()[: len(data)] = data
        for header, _ in self._frames.received(len(data)):
            self.requests.append(protocol.decode_request(header))

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_extra_info(self, _: str) -> None: ...

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True
        self.connection.connection_lost(None)

    abort = close


async def asked(line: Line) -> tuple[asyncio.Task[Any], int]:
    """A program that waits for a receive, and the id of its request."""
    connection = await line.open()
    task = asyncio.create_task(connection.call(protocol.Receive(subscription="s"), timeout_s=5))
    await turns()
    return task, line.requests[-1].id


def assert_returned(line: Line) -> None:
    (returned,) = line.returned
    assert returned.subscription == "s"
    assert [(one.lease, one.offsets) for one in returned.settlements] == [(b"lease", b"offsets")]


@async_test
async def test_one_that_leaves_before_the_answer_abandons_it() -> None:
    line = Line()
    task, request_id = await asked(line)
    task.cancel()
    await turns()
    assert line.abandoned == [request_id]
    line.reply(line.received(request_id))  # it had been sent before the node heard of that
    await turns()
    assert_returned(line)


@async_test
async def test_one_that_leaves_in_the_moment_in_which_the_answer_comes() -> None:
    line = Line()
    task, request_id = await asked(line)
    task.cancel()
    line.reply(line.received(request_id))  # before the connection's own callback has run
    await turns()
    assert task.cancelled()
    assert_returned(line)


@async_test
async def test_one_that_leaves_when_the_answer_is_there_and_was_not_looked_at() -> None:
    line = Line()
    task, request_id = await asked(line)
    line.reply(line.received(request_id))
    task.cancel()
    await turns()
    assert task.cancelled()
    assert_returned(line)


@async_test
async def test_an_answer_that_comes_after_the_time_limit() -> None:
    line = Line()
    connection = await line.open()
    answer = connection.start(protocol.Receive(subscription="s"), timeout_s=0.05)
    ping = connection.start(protocol.Ping())
    await turns()
    request_id = line.requests[-2].id
    line.reply(protocol.Done(id=request_id + 1))  # the node is there, and only slow
    await ping
    with pytest.raises(RequestTimeout):
        await answer
    line.reply(line.received(request_id))
    await turns()
    assert_returned(line)


@async_test
async def test_one_that_reads_its_answer_keeps_the_messages() -> None:
    line = Line()
    task, request_id = await asked(line)
    line.reply(line.received(request_id))
    reply, _ = await task
    assert reply.portions
    await turns()
    assert line.returned == []


@async_test
async def test_closing_waits_until_what_was_abandoned_is_returned() -> None:
    line = Line()
    task, request_id = await asked(line)
    task.cancel()
    await turns()
    closing = asyncio.create_task(line.connection.close())
    await turns()
    assert not line.is_closed
    line.reply(line.received(request_id))
    abandon = next(one for one in line.requests if isinstance(one, protocol.Abandon))
    line.reply(protocol.Done(id=abandon.id))
    await turns()
    assert_returned(line)
    assert not line.is_closed
    line.reply(protocol.Settled(id=line.returned[0].id))
    await closing
    assert line.is_closed
