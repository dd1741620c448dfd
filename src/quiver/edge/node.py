"""A node: one process, one event loop, one data folder.

``Node.start`` opens the folder, the metadata store, the broker and the listeners; ``Node.stop``
drains: nothing new is accepted, what is under way is finished and synced, within a bound.
``run_node`` does both around the wait for SIGTERM or SIGINT.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from quiver.broker.broker import Broker, BrokerLimits
from quiver.cluster.sqlite_store import SqliteStore
from quiver.config import Address, NodeConfig
from quiver.edge.native import NativeServer
from quiver.edge.session import NodeServices
from quiver.log.disk import Disk, FolderLock
from quiver.log.folder_lock import lock_folder
from quiver.log.real_disk import RealDisk
from quiver.metrics import NodeMetrics
from quiver.model.clock import Clock, SystemClock

METADATA = "metadata.db"
_DISK_THREADS = 8

logger = structlog.get_logger()

T = TypeVar("T")


class Node:
    """Not yet running; ``start`` it, and ``stop`` it whatever happens."""

    def __init__(
        self, config: NodeConfig, *, disk: Disk | None = None, clock: Clock | None = None
    ) -> None:
        self.config = config
        self._disk = disk or RealDisk()
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(_DISK_THREADS, thread_name_prefix="quiver-disk")
        self._lock: FolderLock | None = None
        self._store: SqliteStore | None = None
        self._broker: Broker | None = None
        self._native: NativeServer | None = None
        self.services: NodeServices | None = None

    async def start(self, *, listen: bool = True) -> Address | None:
        """Open everything; where the native protocol is spoken, if it is."""
        try:
            services = await self._open()
            if not listen:
                return None
            self._native = NativeServer(services)
            native = self.config.native
            return Address(*await self._native.start(native.host, native.port))
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> NodeServices:
        started, folder = self._clock.monotonic(), self.config.data
        self._lock = lock_folder(self._disk, folder)
        self._store = await SqliteStore.open(f"{folder}/{METADATA}", self._clock)
        limits = self.config.limits
        self._broker = Broker(
            folder,
            self._store,
            disk=self._disk,
            clock=self._clock,
            run_blocking=self._run_blocking,
            limits=BrokerLimits(
                retention_interval_s=limits.retention_interval_s,
                free_bytes_min=limits.free_bytes_min,
                tail_bytes_total=limits.tail_bytes_total,
            ),
        )
        await self._broker.open()
        self.services = NodeServices(
            broker=self._broker,
            metrics=NodeMetrics(),
            limits=limits,
            clock=self._clock,
            node=self.config.name,
            started=started,
        )
        return self.services

    async def stop(self) -> None:
        """Drain, then close from the outside in. May be called twice."""
        if self._native is not None:
            await self._native.drain(self.config.limits.drain_timeout_s)
            self._native = None
        if self._broker is not None:
            await self._broker.close()
            self._broker = None
        if self._store is not None:
            await self._store.close()
            self._store = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._threads.shutdown(wait=False)

    async def _run_blocking(self, call: Callable[[], T], /) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


async def run_node(config: NodeConfig, on_ready: Callable[[Address], None]) -> None:
    """Run a node until SIGTERM or SIGINT. ``on_ready`` is told where it listens."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node = Node(config)
    try:
        address = await node.start()
        assert address is not None
        logger.info("node is ready", node=config.name, native=str(address), data=config.data)
        on_ready(address)
        await stopping.wait()
        logger.info("node is stopping", node=config.name)
    finally:
        await node.stop()
    logger.info("node has stopped", node=config.name)
