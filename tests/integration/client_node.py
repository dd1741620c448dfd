"""Real nodes for tests of the client: one in a thread, and one in a process that can be killed.

Both keep their port, so that a client finds them again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import uvloop

from quiver.config import Address, Alerts, NodeConfig
from quiver.edge.node import Node
from quiver.edge.run import run_node
from tests.ports import free_port

_SECONDS_MAX = 60.0
_ROOT = str(Path(__file__).parent.parent.parent)


class ThreadNode:
    """A node on a loop in a thread of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._port = free_port()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._node: Node | None = None

    @property
    def url(self) -> str:
        return f"quiver://127.0.0.1:{self._port}"

    def start(self) -> None:
        async def started() -> int:
            address = Address("127.0.0.1", self._port)
            self._node = await Node.start(_config(self._folder, address))
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
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"quiver://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._folder), str(self._port)],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the node ended before it was ready"
        self._port = int(line)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def close(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.communicate(timeout=_SECONDS_MAX)


def _serve(folder: str, port: int) -> None:
    # What the node has to say goes to standard error; the port is all that is on standard output.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def ready(address: Address | None, _: Address | None) -> None:
        assert address is not None
        print(address.port, file=report, flush=True)

    config = _config(folder, Address("127.0.0.1", port))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_node(config, ready))


def _config(folder: str, native: Address) -> NodeConfig:
    """Without alerts: whether one fires depends on the machine."""
    return NodeConfig(data=folder, http=None, native=native, alerts=Alerts(defaults=False))


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
