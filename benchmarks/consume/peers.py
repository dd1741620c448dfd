"""The servers that Quiver is measured beside, those that are installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from benchmarks.broker.redis_streams import redis_is_installed, redis_streams
from benchmarks.consume.rabbitmq_server import rabbitmq_is_installed, rabbitmq_server


class Peers(msgspec.Struct, frozen=True):
    """The ports of the servers; ``None`` where one is not installed."""

    redis: int | None
    rabbitmq: int | None


@contextmanager
def peers(folder: str) -> Iterator[Peers]:
    """Redis that syncs before it answers, and RabbitMQ."""
    with ExitStack() as stack:
        redis = rabbitmq = None
        if redis_is_installed():
            redis = stack.enter_context(redis_streams(folder, "always")).port
        else:
            print("redis is not installed: rows left out (make bench-tools)")
        if rabbitmq_is_installed():
            rabbitmq = stack.enter_context(rabbitmq_server(folder))
        else:
            print("rabbitmq is not installed: rows left out (make bench-tools)")
        yield Peers(redis, rabbitmq)
