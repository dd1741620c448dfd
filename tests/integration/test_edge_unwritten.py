"""A connection that closes before a reply is written: the messages in it are ready again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quiver import protocol
from quiver.edge.limits.connections import ConnectionBound
from quiver.edge.native.server import NativeConnection
from quiver.edge.node import Node
from quiver.model.batch import Bytes
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.protocol.frames import PREFACE, frame
from tests.aio import async_test
from tests.integration.edge_node import config, until
from tests.integration.native_peer import batch_of


class Wire:
    """The transport of a connection without a socket."""

    def __init__(self, node: Node) -> None:
        self.written = 0
        server: Any = SimpleNamespace(
            bound=ConnectionBound(10), opened=_nothing, lost=_nothing, progressed=lambda: None
        )
        self.connection = NativeConnection(node.services, server)
        self.connection.connection_made(self)  # type: ignore[arg-type]
        self._send(PREFACE)
        self.request(protocol.Hello(versions=[1], client="test", id=1))

    def request(self, request: protocol.AnyRequest) -> None:
        self._send(b"".join(frame(protocol.encode(request))))

    def _send(self, data: bytes) -> None:
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def writelines(self, buffers: Sequence[Bytes]) -> None:
        self.written += 1

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, _: str) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...


def _nothing(_: object) -> None: ...


@async_test
async def test_messages_of_a_reply_that_was_not_written_are_ready_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    node = await Node.start(config(tmp_path), listen=False)
    try:
        broker = node.services.broker
        await broker.topics.create("t", TopicSettings())
        settings = SubscriptionSettings(topics=["t"], visibility=600.0)
        await broker.leaders.catalog.create("s", settings, {})
        batch = batch_of(b"1")
        await broker.publisher.store_batch("t", 0, memoryview(batch.head + bytes(batch.body)))
        wire = Wire(node)
        connection = wire.connection
        await until(lambda: wire.written == 1)

        def reply_and_lose(reply: protocol.AnyReply, body: Sequence[Bytes] = ()) -> None:
            connection._reply(reply, body)
            connection.connection_lost(None)

        connection._session._send = reply_and_lose
        wire.request(protocol.Receive(subscription="s", id=2))
        subscription = await broker.directory.get("s")
        await until(lambda: connection._transport is None, 5)
        await until(lambda: subscription.depth.ready == 1, 5)
        assert (wire.written, subscription.depth.leased) == (1, 0)
    finally:
        await node.stop()
