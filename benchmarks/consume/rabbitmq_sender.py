"""Publishing to RabbitMQ without waiting for each message, and all of them confirmed at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.consume.queue import Send

_UNCONFIRMED_MAX = 5_000
_SECONDS_MAX = 60.0
_POLL_S = 0.001


@contextmanager
def confirmed_sender(port: int, queue: str) -> Iterator[Send]:
    """A publisher with confirms; its connection has a thread of its own."""
    import pika

    sender = _Sender(queue)
    connection = pika.SelectConnection(
        pika.ConnectionParameters("127.0.0.1", port), on_open_callback=sender.opened
    )
    thread = threading.Thread(target=connection.ioloop.start, daemon=True)
    thread.start()
    try:
        sender.wait(lambda: sender.is_ready)
        yield sender.send
        sender.wait(sender.all_are_stored)
    finally:
        connection.ioloop.add_callback_threadsafe(connection.ioloop.stop)
        thread.join(_SECONDS_MAX)


class _Sender:
    def __init__(self, queue: str) -> None:
        import pika

        self.is_ready = False
        self._queue = queue
        self._persistent = pika.BasicProperties(delivery_mode=2)
        self._channel: Any = None
        self._connection: Any = None
        self._sent = 0
        self._published = 0
        self._unconfirmed: dict[int, None] = {}
        """Numbers of messages, in order."""
        self._confirmed = 0
        self._refused = 0

    def opened(self, connection: Any) -> None:
        self._connection = connection
        connection.channel(on_open_callback=self._with_channel)

    def send(self, payloads: list[bytes]) -> None:
        self.wait(lambda: self._sent - self._confirmed < _UNCONFIRMED_MAX)
        self._sent += len(payloads)
        self._connection.ioloop.add_callback_threadsafe(lambda: self._publish(payloads))

    def all_are_stored(self) -> bool:
        return self._confirmed == self._sent

    def wait(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _SECONDS_MAX
        while not condition():
            assert not self._refused, "RabbitMQ refused a message"
            assert time.monotonic() < until, "RabbitMQ does not confirm"
            time.sleep(_POLL_S)

    def _with_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._answered, callback=self._confirming)

    def _confirming(self, _: Any) -> None:
        self.is_ready = True

    def _publish(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            self._published += 1
            self._unconfirmed[self._published] = None
            self._channel.basic_publish("", self._queue, payload, self._persistent)

    def _answered(self, frame: Any) -> None:
        """A confirm is of one message, or of all up to it."""
        method = frame.method
        self._refused += method.NAME != "Basic.Ack"
        if method.multiple:
            while self._unconfirmed and next(iter(self._unconfirmed)) <= method.delivery_tag:
                del self._unconfirmed[next(iter(self._unconfirmed))]
        else:
            del self._unconfirmed[method.delivery_tag]
        self._confirmed = self._published - len(self._unconfirmed)
