"""A session without a carrier: every request is answered once, whenever the end comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quiver import protocol
from quiver.edge.node import Node
from quiver.edge.session import Session
from quiver.model.batch import Bytes
from quiver.model.topic import TopicSettings
from tests.aio import async_test
from tests.integration.edge_node import GatedDisk, config, until
from tests.integration.native_peer import batch_of


class Heard:
    """The replies that a session has sent."""

    def __init__(self) -> None:
        self.replies: list[protocol.AnyReply] = []

    def __call__(self, reply: protocol.AnyReply, _: Sequence[Bytes] = ()) -> None:
        self.replies.append(reply)

    @property
    def ids(self) -> list[int]:
        return [reply.id for reply in self.replies]

    def codes(self) -> list[str]:
        return [reply.code for reply in self.replies if isinstance(reply, protocol.Failed)]


@asynccontextmanager
async def conversation(folder: Path, disk: GatedDisk) -> AsyncIterator[tuple[Session, Heard]]:
    (folder / "data").mkdir()
    node = await Node.start(config(folder), listen=False, disk=disk)
    heard = Heard()
    session = Session(node.services, heard)
    await node.services.broker.topics.create("orders", TopicSettings())
    try:
        yield session, heard
    finally:
        disk.open()
        session.close()
        await node.stop()


def _publish(session: Session, request_id: int, payload: bytes = b"p") -> None:
    batch = batch_of(payload)
    body = memoryview(batch.head + bytes(batch.body))
    session.receive(protocol.Publish(topic="orders", partition=0, id=request_id), body)


NOTHING = memoryview(b"")


@async_test
async def test_a_shutdown_in_the_same_moment_answers_what_has_not_even_begun(
    tmp_path: Path,
) -> None:
    async with conversation(tmp_path, GatedDisk()) as (session, heard):
        session.receive(protocol.Fetch(topic="orders", partition=0, offset=0, id=1), NOTHING)
        session.receive(protocol.ListTopics(id=2), NOTHING)
        _publish(session, 3)  # the partition is not open yet
        _publish(session, 4)
        session.drain()
        await until(lambda: session.is_idle, 5)
        assert sorted(heard.ids) == [1, 2, 3, 4]
        assert heard.codes() == ["shutting_down"] * 3


@async_test
async def test_after_the_shutdown_nothing_that_was_refused_is_stored(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with conversation(tmp_path, disk) as (session, heard):
        disk.shut()
        for request_id in range(1, 11):
            _publish(session, request_id)
        await until(lambda: disk.waiting > 0)
        session.drain()
        disk.open()
        assert heard.codes() == ["shutting_down"] * 10
        broker = session._services.broker
        await until(lambda: not session._tasks, 5)
        read = await broker.reader.fetch("orders", 0, 0, bytes_max=1)
        assert read.next_offset == 0


@async_test
async def test_what_draining_did_not_see_the_end_of_is_answered_too(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with conversation(tmp_path, disk) as (session, heard):
        _publish(session, 1)
        await until(lambda: heard.ids == [1])
        disk.shut()
        _publish(session, 2)
        session.drain()
        assert heard.ids == [1]
        session.give_up()
        assert heard.ids == [1, 2]
        disk.open()
        await until(lambda: not session._tasks and not disk.waiting)
        assert heard.ids == [1, 2]


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_nothing_is_sent_after_the_client_is_gone(turns: int, tmp_path: Path) -> None:
    @async_test
    async def check() -> None:
        disk = GatedDisk()
        async with conversation(tmp_path, disk) as (session, heard):
            _publish(session, 1)
            session.receive(protocol.DescribeTopic(name="orders", id=2), NOTHING)
            session.receive(protocol.Fetch(topic="orders", partition=0, offset=0, id=3), NOTHING)
            for _ in range(turns):
                await asyncio.sleep(0)
            session.close()
            before = list(heard.ids)
            await until(lambda: not session._tasks, 5)
            assert heard.ids == before

    check()


@async_test
async def test_publishes_keep_their_order_while_the_partition_opens(tmp_path: Path) -> None:
    async with conversation(tmp_path, GatedDisk()) as (session, heard):
        for request_id in range(1, 101):
            _publish(session, request_id, b"%d" % request_id)
            if request_id % 7 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(heard.ids) == 100)
        offsets = {r.id: r.base_offset for r in heard.replies if isinstance(r, protocol.Published)}
        assert offsets == {request_id: request_id - 1 for request_id in range(1, 101)}
