"""Real nodes for tests of the client: one in a thread, and one in a process that can be killed.

Both keep their port, so that a client finds them again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import uvloop
from msgspec.structs import replace

from quiver.config import Address, Alerts, Limits, NodeConfig
from quiver.edge.node import Node
from quiver.edge.run import run_node
from tests.forked import processes, write_output_to
from tests.ports import free_port

_SECONDS_MAX = 60.0


class ThreadNode:
    """A node on a loop in a thread of this process, perhaps with HTTP."""

    def __init__(
        self,
        folder: Path,
        *,
        has_http: bool = False,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        self._folder = str(folder)
        self._limits = limits
        self._has_http = has_http
        self._port = free_port()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._node: Node | None = None

    @property
    def url(self) -> str:
        return f"quiver://127.0.0.1:{self._port}"

    @property
    def http_address(self) -> str:
        assert self._node is not None
        return str(self._node.http_address)

    def start(self) -> None:
        async def started() -> int:
            address = Address("127.0.0.1", self._port)
            http = Address("127.0.0.1", 0) if self._has_http else None
            config = _config(self._folder, address, http)
            self._node = await Node.start(replace(config, limits=self._limits))
            assert self._node.native_address is not None
            return self._node.native_address.port

        future = asyncio.run_coroutine_threadsafe(started(), self._loop)
        self._port = future.result(_SECONDS_MAX)

    def stop(self) -> None:
        if self._node is not None:
            node, self._node = self._node, None
            asyncio.run_coroutine_threadsafe(node.stop(), self._loop).result(_SECONDS_MAX)

    def close(self) -> None:
        try:
            self.stop()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_SECONDS_MAX)
            self._loop.close()


class ProcessNode:
    """A node in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder.with_name(f"{folder.name}.log")
        self._port = free_port()
        self._process: BaseProcess | None = None

    @property
    def url(self) -> str:
        return f"quiver://127.0.0.1:{self._port}"

    def start(self, prepare: Callable[[], None] | None = None) -> None:
        """Start it. ``prepare`` is called in its process first."""
        told, tell = processes.Pipe(duplex=False)
        arguments = str(self._folder), self._port, str(self._log), tell, prepare
        self._process = processes.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        tell.close()
        with told:
            assert told.poll(_SECONDS_MAX), f"the node is not ready: {self._log.read_text()}"
            try:
                told.recv()
            except EOFError:
                pytest.fail(f"the node ended before it was ready: {self._log.read_text()}")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def close(self) -> None:
        self._end(signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it has ended by itself."""
        process, self._process = self._process, None
        assert process is not None
        process.join(_SECONDS_MAX)
        assert process.exitcode is not None, f"the node does not end: {self._log.read_text()}"

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.pid is not None
            os.kill(process.pid, how)
            process.join(_SECONDS_MAX)
            assert process.exitcode is not None, f"the node does not end: {self._log.read_text()}"


def _serve(
    folder: str, port: int, log: str, tell: Connection, prepare: Callable[[], None] | None
) -> None:
    write_output_to(log)
    if prepare is not None:
        prepare()

    def ready(*_: Address | None) -> None:
        tell.send("ready")
        tell.close()

    config = _config(folder, Address("127.0.0.1", port))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_node(config, ready))


def _config(folder: str, native: Address, http: Address | None = None) -> NodeConfig:
    """Without alerts: whether one fires depends on the machine."""
    return NodeConfig(data=folder, http=http, native=native, alerts=Alerts(defaults=False))
