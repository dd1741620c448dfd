"""A quorum queue of RabbitMQ: durable, consumed with a prefetch, acknowledged by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from benchmarks.consume.queue import MESSAGE_BYTES, Handle, Send
from benchmarks.consume.rabbitmq_sender import confirmed_sender

_PREFETCH = 1_000
"""Of 100, 500 and 1,000 the fastest with acks one by one."""
_SENT_TOGETHER = 500


class RabbitQueue(msgspec.Struct, frozen=True):
    port: int
    name: str
    ack_every: int = 1
    """How many messages one ack is for."""

    def create(self) -> None:
        with self._channel() as channel:
            channel.queue_declare(self.name, durable=True, arguments={"x-queue-type": "quorum"})

    def fill(self, messages: int) -> None:
        with self.sender() as send:
            for done in range(0, messages, _SENT_TOGETHER):
                send([bytes(MESSAGE_BYTES)] * min(_SENT_TOGETHER, messages - done))

    def unsettled(self) -> int:
        """Those that are ready: with no consumer connected there are no others."""
        with self._channel() as channel:
            return int(channel.queue_declare(self.name, passive=True).method.message_count)

    def sender(self) -> AbstractContextManager[Send]:
        return confirmed_sender(self.port, self.name)

    def consume(self, handle: Handle) -> None:
        taken = 0

        def received(channel: Any, method: Any, _: Any, payload: bytes) -> None:
            nonlocal taken
            taken += 1
            last = handle(payload)
            if last or taken % self.ack_every == 0:
                channel.basic_ack(method.delivery_tag, multiple=self.ack_every > 1)
            if last:
                channel.stop_consuming()

        with self._channel() as channel:
            channel.basic_qos(prefetch_count=_PREFETCH)
            channel.basic_consume(self.name, received)
            channel.start_consuming()

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        import pika

        parameters = pika.ConnectionParameters("127.0.0.1", self.port)
        with pika.BlockingConnection(parameters) as connection:
            yield connection.channel()
