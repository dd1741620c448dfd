"""A peer of the native protocol that is only a socket: it sends whatever a test wants it to.

``Peer`` keeps nothing back and checks nothing: frames may be cut, repeated, or never be frames. What
the node answers is taken apart with the model's own codecs. Every wait has a bound.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar
from weakref import WeakSet

from quiver import protocol
from quiver.config import Address
from quiver.errors import QuiverError, error_from
from quiver.model.batch import Bytes, StoredBatch, UnstoredBatch
from quiver.model.builder import BatchBuilder
from quiver.model.envelope import UNSTAMPED, ProducerStamp, entries_in
from quiver.model.topic import Compression, TopicSettings
from quiver.protocol.frames import FRAME_BYTES_MAX, PREFACE, FrameAssembler, frame

SECONDS_MAX = 50.0

ReplyType = TypeVar("ReplyType", bound=protocol.Reply)


class Hangup(Exception):
    """The node has closed the connection."""


class Peer:
    """Use ``connect``, and ``close`` or ``reset`` it in the end."""

    alive: ClassVar[WeakSet[Peer]] = WeakSet()

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameAssembler(FRAME_BYTES_MAX)
        self._replies: deque[tuple[protocol.AnyReply, memoryview]] = deque()
        self._next_id = 0
        self.alive.add(self)

    @classmethod
    async def connect(
        cls,
        address: Address,
        *,
        greet: bool = True,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Peer:
        async with asyncio.timeout(SECONDS_MAX):
            peer = cls(*await asyncio.open_connection(address.host, address.port, ssl=tls))
        if greet:
            await peer.greet(token)
        return peer

    async def greet(self, token: str | None = None) -> protocol.Welcome:
        self.write(PREFACE)
        hello = protocol.Hello(versions=[protocol.PROTOCOL_VERSION], token=token)
        return await self.ask(hello, expect=protocol.Welcome)

    # ------------------------------------------------------------------ sending

    def write(self, *buffers: Bytes) -> None:
        """Hand bytes to the socket, as they are, without waiting; for nothing if it is closed."""
        if not self._writer.transport.is_closing():
            self._writer.writelines(buffers)

    async def drain(self) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await self._writer.drain()

    def request(self, request: protocol.AnyRequest, body: Sequence[Bytes] = ()) -> int:
        """Send a request under an id of its own, and return that."""
        self._next_id += 1
        request.id = self._next_id
        self.write(*frame(protocol.encode(request), body))
        return request.id

    def publish(self, topic: str, batch: UnstoredBatch, partition: int = 0, **rest: Any) -> int:
        request = protocol.Publish(topic=topic, partition=partition, **rest)
        return self.request(request, [batch.head, batch.body])

    # ------------------------------------------------------------------ receiving

    async def reply(self) -> tuple[protocol.AnyReply, memoryview]:
        """The next reply, whichever request it is to; ``Hangup`` if there is none to come."""
        async with asyncio.timeout(SECONDS_MAX):
            while not self._replies:
                await self._receive()
        return self._replies.popleft()

    async def answer(self, request_id: int) -> tuple[protocol.AnyReply, memoryview]:
        """The reply to one request; those to others are kept."""
        passed = []
        try:
            while True:
                reply, body = await self.reply()
                if reply.id == request_id:
                    return reply, body
                passed.append((reply, body))
        finally:
            self._replies.extendleft(reversed(passed))

    async def hangup(self) -> None:
        """Wait until the node has closed the connection; replies before that are kept."""
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while True:
                    await self._receive()
        except Hangup:
            pass

    async def _receive(self) -> None:
        try:
            data = await self._reader.read(1 << 18)
        except ConnectionError as error:
            raise Hangup from error
        if not data:
            raise Hangup
        while data:
            room = self._frames.buffer()
            taken, data = data[: len(room)], data[len(room) :]
            room[: len(taken)] = taken
            for header, body in self._frames.received(len(taken)):
                self._replies.append((protocol.decode_reply(header), body))

    # ------------------------------------------------------------------ calls

    async def ask(
        self,
        request: protocol.AnyRequest,
        body: Sequence[Bytes] = (),
        *,
        expect: type[ReplyType],
    ) -> ReplyType:
        """Send a request and wait for its reply; a failure is raised as the error it names."""
        return await self.expect(self.request(request, body), expect)

    async def expect(self, request_id: int, kind: type[ReplyType]) -> ReplyType:
        reply, _ = await self.answer(request_id)
        if isinstance(reply, protocol.Failed):
            raise error_from(reply.code, reply.message, reply.details)
        assert isinstance(reply, kind), reply
        return reply

    async def refusal(self, request_id: int) -> QuiverError:
        """The error that a request is answered with."""
        reply, _ = await self.answer(request_id)
        assert isinstance(reply, protocol.Failed), reply
        return error_from(reply.code, reply.message, reply.details)

    async def create(self, name: str, **settings: Any) -> protocol.TopicInfo:
        request = protocol.CreateTopic(name=name, settings=TopicSettings(**settings))
        return (await self.ask(request, expect=protocol.Topic)).topic

    async def store(
        self, topic: str, batch: UnstoredBatch, partition: int = 0, **rest: Any
    ) -> protocol.Published:
        return await self.expect(self.publish(topic, batch, partition, **rest), protocol.Published)

    async def entries(
        self, topic: str, offset: int = 0, partition: int = 0, **rest: Any
    ) -> list[StoredBatch]:
        request = protocol.Fetch(topic=topic, partition=partition, offset=offset, **rest)
        reply, body = await self.answer(self.request(request))
        if isinstance(reply, protocol.Failed):
            raise error_from(reply.code, reply.message, reply.details)
        return entries_in(body)

    async def payloads(self, topic: str, partition: int = 0) -> list[bytes]:
        """Every payload of a partition, in order."""
        found: list[bytes] = []
        offset = 0
        while entries := await self.entries(topic, offset, partition):
            for entry in entries:
                found += entry.record_batch().column("payload").to_pylist()
            offset = entries[-1].next_offset
        return found

    async def counters(self) -> dict[str, float]:
        return (await self.ask(protocol.DescribeNode(), expect=protocol.Node)).counters

    # ------------------------------------------------------------------ endings

    @property
    def unsent_bytes(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    def stop_reading(self) -> None:
        """Leave whatever the node sends in the kernel's buffers."""
        self._writer.transport.pause_reading()

    async def close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await self._writer.wait_closed()
        except ConnectionError:
            pass

    async def reset(self) -> None:
        """Break the connection, as a process does that dies with unread bytes."""
        transport = self._writer.transport
        if not transport.is_closing():
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        await self.close()


def batch_of(
    *payloads: bytes,
    stamp: ProducerStamp = UNSTAMPED,
    compression: Compression = Compression.NONE,
) -> UnstoredBatch:
    builder = BatchBuilder()
    for payload in payloads:
        builder.add(payload)
    return builder.build(compression, stamp)
