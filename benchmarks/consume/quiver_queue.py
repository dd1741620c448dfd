"""A queue of a node, consumed by the blocking client or by the async one; and a topic, followed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import uvloop

from benchmarks.consume.queue import MESSAGE_BYTES, Handle, Send
from benchmarks.harness.child import Child
from benchmarks.harness.raw_client import publish_pipelined
from benchmarks.log.subject import ready_batch
from quiver import AsyncClient, Client

_BATCH = 1_000


class QuiverQueue(msgspec.Struct, frozen=True):
    node: Child
    name: str

    def create(self) -> None:
        with Client(self.node.url) as client:
            client.create_queue(self.name, durability="fsync")

    def fill(self, messages: int) -> None:
        size = min(_BATCH, messages)
        batch = ready_batch(size, MESSAGE_BYTES)
        publish_pipelined(self.node.address, self.name, [batch], messages // size)

    def unsettled(self) -> int:
        with Client(self.node.url) as client:
            return unsettled(client, self.name)

    @contextmanager
    def sender(self) -> Iterator[Send]:
        with Client(self.node.url) as client, client.producer(self.name, linger=0) as producer:

            def send(payloads: list[bytes]) -> None:
                for payload in payloads:
                    producer.send(payload)

            yield send

    def consume(self, handle: Handle) -> None:
        with Client(self.node.url) as client:
            for message in client.consume(self.name):
                last = handle(message.payload)
                message.ack()
                if last:
                    break


class AsyncQuiverQueue(QuiverQueue, frozen=True):
    def consume(self, handle: Handle) -> None:
        uvloop.run(self._consume(handle))

    async def _consume(self, handle: Handle) -> None:
        async with AsyncClient(self.node.url) as client:
            async for message in client.consume(self.name):
                last = handle(message.payload)
                message.ack()
                if last:
                    break


class FollowedTopic(QuiverQueue, frozen=True):
    """Nobody acknowledges anything: a reader that waits at the end of a topic."""

    def create(self) -> None:
        with Client(self.node.url) as client:
            client.create_topic(self.name, durability="fsync")

    def consume(self, handle: Handle) -> None:
        with Client(self.node.url) as client, client.read(self.name, follow=True) as reader:
            for message in reader.messages():
                if handle(message.payload):
                    break


def unsettled(client: Client, queue: str) -> int:
    """How many messages of a queue are not acknowledged."""
    info = client.describe_subscription(queue)
    counts = (info.ready, info.delayed, info.leased, info.dead, info.unseen)
    return sum(count or 0 for count in counts)
