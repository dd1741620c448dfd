"""A node for tests of the edge, in this process, and disks that misbehave under it.

The tests run on uvloop, as a served node does, unless they say otherwise. Nothing a test starts is
left behind: a node is stopped whatever happens, and tasks that remain are a failure.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ParamSpec

import structlog
import uvloop

from quiver.config import Address, Alerts, Limits, NodeConfig, Quotas, Security
from quiver.edge.native.server import NativeConnection
from quiver.edge.node import Node
from quiver.log.disk.disk import AppendFile, Bytes, Disk
from quiver.model.clock import Clock
from quiver.testing.disk import SimulatedDisk
from tests.integration.native_peer import Peer

SECONDS_MAX = 60.0

Parameters = ParamSpec("Parameters")


def edge_test(
    test: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, None]:
    """Run an async test on uvloop, within a bound."""

    @functools.wraps(test)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        with (
            _without_debug_lines(),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(_limited(test(*args, **kwargs)))

    return wrapper


@contextmanager
def _without_debug_lines() -> Iterator[None]:
    """Log what a node logs by default: a line for each connection would be most of some tests."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        yield
    finally:
        structlog.configure(**before)


async def _limited(test: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await test
    finally:
        for peer in list(Peer.alive):  # a loop does not close over what a failure left open
            await peer.reset()
        Peer.alive.clear()


def config(
    folder: Path,
    *,
    security: Security = Security(),  # noqa: B008 - frozen
    quotas: Quotas = Quotas(),  # noqa: B008 - frozen
    **limits: Any,
) -> NodeConfig:
    """The settings of a node on a free port of the loopback interface."""
    limits.setdefault("free_bytes_min", 0)
    return NodeConfig(
        data=str(folder / "data"),
        http=None,
        native=Address("127.0.0.1", 0),
        limits=Limits(**limits),
        security=security,
        quotas=quotas,
        alerts=Alerts(defaults=False),
    )


class Running:
    """A node that runs, and the peers that were connected to it."""

    def __init__(self, node: Node, address: Address) -> None:
        self.node = node
        self.address = address
        self._peers: list[Peer] = []

    async def peer(self, *, greet: bool = True, **access: Any) -> Peer:
        peer = await Peer.connect(self.address, greet=greet, **access)
        self._peers.append(peer)
        return peer

    def counter(self, name: str) -> float:
        """One of the node's numbers, by name and labels; 0 if it was never counted."""
        return self.node.services.metrics.values().get(name, 0)

    @property
    def connections(self) -> list[NativeConnection]:
        assert self.node.native is not None
        return list(self.node.native._connections)

    @property
    def unsent_bytes(self) -> int:
        """What the node holds of replies that nobody has read."""
        transports = [connection._transport for connection in self.connections]
        return sum(transport.get_write_buffer_size() for transport in transports if transport)

    def closed(self, reason: str) -> float:
        return self.counter(f"quiver_connections_closed_total{{reason={reason}}}")

    def errors(self, code: str) -> float:
        return self.counter(f"quiver_errors_total{{code={code}}}")

    async def drop_peers(self) -> None:
        for peer in self._peers:
            await peer.reset()


@asynccontextmanager
async def running(
    folder: Path, *, disk: Disk | None = None, clock: Clock | None = None, **limits: Any
) -> AsyncIterator[Running]:
    # The metadata is in a real folder, also when the logs are on a simulated disk.
    (folder / "data").mkdir(exist_ok=True)
    node = await Node.start(config(folder, **limits), disk=disk, clock=clock)
    assert node.native_address is not None
    run = Running(node, node.native_address)
    try:
        yield run
    finally:
        await run.drop_peers()
        await node.stop()
    await until(lambda: len(asyncio.all_tasks()) == 1)  # nothing goes on after the end


async def until(reached: Callable[[], bool], seconds_max: float = 50.0) -> None:
    """Wait for something that the node does in its own time."""
    deadline = time.monotonic() + seconds_max
    while not reached():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.002)


class GatedDisk(SimulatedDisk):
    """A disk that syncs and opens no file while its gate is shut, as a disk does that hangs."""

    def __init__(self, seed: int = 0, **rest: Any) -> None:
        super().__init__(seed, **rest)
        self._barrier = threading.Event()
        self._barrier.set()
        self.waiting = 0

    def shut(self) -> None:
        self._barrier.clear()

    def open(self) -> None:
        self._barrier.set()

    def pass_gate(self) -> None:
        if not self._barrier.is_set():
            self.waiting += 1
            passed = self._barrier.wait(SECONDS_MAX)
            self.waiting -= 1
            assert passed, "the gate was never opened"

    def open_append(self, path: str) -> AppendFile:
        self.pass_gate()
        return _GatedFile(self, super().open_append(path))


class _GatedFile(AppendFile):
    def __init__(self, disk: GatedDisk, file: AppendFile) -> None:
        self._disk = disk
        self._file = file

    def append(self, buffers: Sequence[Bytes]) -> None:
        self._file.append(buffers)

    def overwrite(self, position: int, data: Bytes) -> None:
        self._file.overwrite(position, data)

    def sync(self) -> None:
        self._disk.pass_gate()
        self._file.sync()

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()
