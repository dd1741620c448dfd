"""A stream of Redis with one consumer group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from benchmarks.consume.queue import MESSAGE_BYTES, Handle, Send

_GROUP = "workers"
_PIPELINE = 1_000
_BLOCK_MS = 1_000


class RedisQueue(msgspec.Struct, frozen=True):
    port: int
    name: str
    acks_together: bool = False
    """One XACK for all that was read together; otherwise one for each message."""
    read_max: int = 100
    """How many messages are read together."""

    def create(self) -> None:
        with self._connected() as connection:
            connection.xgroup_create(self.name, _GROUP, "0", mkstream=True)

    def fill(self, messages: int) -> None:
        with self.sender() as send:
            for done in range(0, messages, _PIPELINE):
                send([bytes(MESSAGE_BYTES)] * min(_PIPELINE, messages - done))

    def unsettled(self) -> int:
        with self._connected() as connection:
            (group,) = connection.xinfo_groups(self.name)
            return int(group["lag"]) + int(group["pending"])

    @contextmanager
    def sender(self) -> Iterator[Send]:
        with self._connected() as connection:

            def send(payloads: list[bytes]) -> None:
                pipeline = connection.pipeline(transaction=False)
                for payload in payloads:
                    pipeline.xadd(self.name, {"payload": payload})
                pipeline.execute()

            yield send

    def consume(self, handle: Handle) -> None:
        with self._connected() as connection:
            last = False
            while not last:
                read = connection.xreadgroup(
                    _GROUP, "worker", {self.name: ">"}, count=self.read_max, block=_BLOCK_MS
                )
                for _, messages in read or ():
                    last = self._settle(connection, messages, handle)

    def _settle(self, connection: Any, messages: list[Any], handle: Handle) -> bool:
        """Whether one of these was the last."""
        handled = []
        last = False
        for number, fields in messages:
            last = handle(fields[b"payload"])
            if self.acks_together:
                handled.append(number)
            else:
                connection.xack(self.name, _GROUP, number)
            if last:
                break
        if handled:
            connection.xack(self.name, _GROUP, *handled)
        return last

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        import redis

        with redis.Redis(host="127.0.0.1", port=self.port) as connection:
            yield connection
