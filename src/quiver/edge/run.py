"""A node as a process: it runs until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
from collections.abc import Callable

import structlog

from quiver.config import Address, NodeConfig
from quiver.config.processes import ProcessPlace
from quiver.edge.forwarder import Forwarder
from quiver.edge.node import Node
from quiver.errors import LeaseLost, MetadataConflict, MetadataUnavailable
from quiver.version import __version__

_STORE_WAIT_S = 30.0
"""How long a node that starts waits for a metadata store that does not answer."""
_STORE_AGAIN_S = 0.5

logger = structlog.get_logger()


def _allow_many_files() -> None:
    """Let the process have as many files and sockets open as the system lets it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _collect_rarely() -> None:
    """Look for garbage less often, and not among what lives as long as the node."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _leave_garbage() -> None:
    """The process ends: the system takes all memory at once, the interpreter would free each object."""
    gc.freeze()


async def run_node(
    config: NodeConfig,
    on_ready: Callable[[Address | None, Address | None], None],
    process: ProcessPlace | None = None,
) -> None:
    """Run a node until SIGTERM or SIGINT. ``on_ready`` is told where it listens: native, HTTP."""
    _allow_many_files()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    started = await _started(config, stopping, process)
    if started is None:
        logger.info("node has stopped", node=config.name)
        return
    node, native, http = started
    try:
        logger.info(
            "node is ready",
            node=config.name,
            version=__version__,
            data=config.data,
            role=config.role,
            native=str(native or "off"),
            http=str(http or "off"),
        )
        _collect_rarely()
        on_ready(native, http)
        await stopping.wait()
        logger.info("node is stopping", node=config.name)
    finally:
        await node.stop()
    logger.info("node has stopped", node=config.name)
    _leave_garbage()


async def _started(
    config: NodeConfig, stopping: asyncio.Event, process: ProcessPlace | None
) -> tuple[Node | Forwarder, Address | None, Address | None] | None:
    """A node that runs. While its metadata store elects, or is not there yet, it is waited for.

    ``None`` if the process is told to stop meanwhile.
    """
    if config.role == "forwarder":
        forwarder = Forwarder(config)
        try:
            await forwarder.start()
            return forwarder, forwarder.native_address, forwarder.http_address
        except BaseException:
            await forwarder.stop()
            raise
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _STORE_WAIT_S
    while True:
        try:
            node = await Node.start(config, process=process)
            return node, node.native_address, node.http_address
        except (MetadataUnavailable, MetadataConflict, LeaseLost) as error:
            if stopping.is_set():
                return None
            if loop.time() > deadline:
                raise
            logger.warning("the metadata store is waited for", error=error.message)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _STORE_AGAIN_S)
            return None
