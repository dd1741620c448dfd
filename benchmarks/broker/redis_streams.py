"""Redis Streams on this machine, if Redis and its Python package happen to be there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness.child import running
from benchmarks.harness.ports import free_ports

_SECONDS_MAX = 10.0
_ADDING_S_MAX = 2.0
_PIPELINE = 1_000


class RedisStreams:
    def __init__(self, connection: Any, port: int) -> None:
        self._connection = connection
        self.port = port

    def add(self, payload: bytes, count: int) -> float:
        """Add up to ``count`` messages to an empty stream, in pipelines; how many in a second."""
        self._connection.delete("stream")
        added, seconds, began = 0, 0.0, time.perf_counter()
        while added < count and seconds < _ADDING_S_MAX:
            pipeline = self._connection.pipeline(transaction=False)
            for _ in range(_PIPELINE):
                pipeline.xadd("stream", {"payload": payload})
            pipeline.execute()
            added += _PIPELINE
            seconds = time.perf_counter() - began
        return added / seconds


def redis_is_installed() -> bool:
    return bool(shutil.which("redis-server") and importlib.util.find_spec("redis"))


@contextmanager
def redis_streams(folder: str, appendfsync: str) -> Iterator[RedisStreams]:
    """A server of its own on a free port, with an append-only file that is synced as told."""
    import redis

    (port,) = free_ports(1)
    data = os.path.abspath(f"{folder}/redis-{appendfsync}")
    os.mkdir(data)
    settings = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": data,
        "save": "",
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "auto-aof-rewrite-percentage": "0",
    }
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    with (
        running(["redis-server", *flags], f"{data}/log") as process,
        redis.Redis(host="127.0.0.1", port=port) as connection,
    ):
        deadline = time.monotonic() + _SECONDS_MAX
        while not _answers(connection, redis.exceptions.ConnectionError):
            assert process.poll() is None, f"redis-server ended: {process.returncode}"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)
        yield RedisStreams(connection, port)


def _answers(connection: Any, refusal: type[Exception]) -> bool:
    try:
        return bool(connection.ping())
    except refusal:
        return False
