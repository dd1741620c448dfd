"""A cluster on this machine: starts its processes in order, watches them, and stops them in order.

A process that ends is not started again, so that the others' reaction can be observed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import http.client
import os
import shlex
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from quiver.aio import first_of
from quiver.cli.cluster.child import Child, shown_end
from quiver.cli.cluster.layout import Layout
from quiver.cli.cluster.programs import (
    etcd_command,
    etcd_program,
    node_command,
    serve_flags,
)
from quiver.cli.support.exit_codes import tell
from quiver.errors import FolderInUse, QuiverError

_START_S_MAX = 60.0
_NODE_STOP_S_MAX = 45.0
"""More than a node's own bounds: draining, then closing its logs."""
_ETCD_STOP_S_MAX = 10.0
_LOOK_S = 0.05
_LOOK_AGAIN_S = 1.0
"""How often to look for nodes that are no children."""
_RESTART_S_MAX = 5.0
"""How long a node may take to be started again when no other runs."""


class LocalCluster:
    """``run`` it until somebody asks it to end."""

    def __init__(self, folder: str, layout: Layout, settings: Sequence[str] = ()) -> None:
        self.layout = layout
        self._folder = folder
        self._flags = {
            node.id: serve_flags(folder, node, layout, settings) for node in layout.nodes
        }
        program = etcd_program()
        self._etcd = {
            member.id: Child(
                member.id,
                etcd_command(program, folder, member, layout),
                self._path(member.id, "log"),
            )
            for member in layout.etcd
        }
        self._nodes = {
            node: Child(
                node,
                node_command(flags, self._path(node, "ready")),
                self._path(node, "log"),
            )
            for node, flags in self._flags.items()
        }
        self._stopping = asyncio.Event()
        self._impatient = asyncio.Event()
        self._is_alone = False
        self._found: list[str] = []
        """The nodes that were started again, as told last."""

    @property
    def pids(self) -> dict[str, int]:
        return {name: child.pid for name, child in self._nodes.items()}

    @property
    def etcd_pids(self) -> dict[str, int]:
        return {name: child.pid for name, child in self._etcd.items()}

    async def run(self, on_ready: Callable[[], None]) -> bool:
        """Start everything, wait for SIGTERM or SIGINT, stop everything; whether that was asked."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        with self._locked():
            try:
                if await self._unless_stopping(self._start()):
                    on_ready()
                    await self._unless_stopping(self._watch())
            finally:
                await self._stop()
        return self._stopping.is_set()

    # ------------------------------------------------------------------ starting

    async def _start(self) -> None:
        await _together(self._started(one, self._etcd_is_ready) for one in self._etcd.values())
        for node in self._nodes:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(node, "ready"))
        await _together(self._started(one, self._node_is_ready) for one in self._nodes.values())

    async def _started(self, child: Child, is_ready: Callable[[str], bool]) -> None:
        await child.start()
        deadline = asyncio.get_running_loop().time() + _START_S_MAX
        while not await asyncio.to_thread(is_ready, child.name):
            if not child.is_running:
                raise QuiverError(f"{child.name} did not start: {child.last_line()}")
            if asyncio.get_running_loop().time() > deadline:
                raise QuiverError(
                    f"{child.name} is not ready after {_START_S_MAX:g} s; its log is {child.log}"
                )
            await asyncio.sleep(_LOOK_S)

    def _etcd_is_ready(self, name: str) -> bool:
        (address,) = [member.client for member in self.layout.etcd if member.id == name]
        connection = http.client.HTTPConnection(address, timeout=1)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _node_is_ready(self, name: str) -> bool:
        return os.path.exists(self._path(name, "ready"))

    # ------------------------------------------------------------------ watching

    async def _watch(self) -> None:
        """Tell of each child that ends, until no node is left, not even one that was started again."""
        watched = {
            asyncio.create_task(child.ended()): child
            for child in (*self._nodes.values(), *self._etcd.values())
        }
        try:
            while await self._has_nodes():
                pause = asyncio.create_task(asyncio.sleep(_LOOK_AGAIN_S))
                done, _ = await asyncio.wait({*watched, pause}, return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                for task in [one for one in watched if one in done]:
                    self._tell_of(watched.pop(task), task.result())
            tell("all nodes have ended")
        finally:
            for task in watched:
                task.cancel()

    async def _has_nodes(self) -> bool:
        """Whether a node runs. One that somebody starts again is waited for, for a while."""
        if any(child.is_running for child in self._nodes.values()):
            return True
        deadline = asyncio.get_running_loop().time() + _RESTART_S_MAX
        while not (found := await self._started_again()):
            if not self._is_alone:
                self._is_alone = True
                tell(f"no node runs: etcd ends in {_RESTART_S_MAX:g} s unless one is started again")
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        if found != self._found:
            self._found, self._is_alone = found, False
            tell(f"{', '.join(found)} started again: etcd goes on for as long as a node runs")
        return True

    async def _started_again(self) -> list[str]:
        """The nodes that somebody else runs at their addresses."""
        answers = await asyncio.gather(*(_accepts(node.native) for node in self.layout.nodes))
        nodes = zip(self.layout.nodes, answers, strict=True)
        return [node.id for node, is_there in nodes if is_there]

    def _tell_of(self, child: Child, code: int) -> None:
        tell(f"{child.name} {shown_end(code)}; its log is {child.log}")
        if child.name in self._flags:
            tell(f"start it again with: quiver {shlex.join(self._flags[child.name])}")

    # ------------------------------------------------------------------ stopping

    def _asked_to_stop(self) -> None:
        """The second time, nobody wants to wait."""
        if self._stopping.is_set():
            self._impatient.set()
        else:
            tell("stopping; press Ctrl-C again to kill what still runs")
        self._stopping.set()

    async def _unless_stopping(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether the work was finished before somebody asked to stop."""
        task = asyncio.create_task(work)
        finished = await first_of(task, self._stopping.wait()) is task
        if finished:
            task.result()
        return finished

    async def _stop(self) -> None:
        """The nodes first, then etcd, which they need to leave; each within its time."""
        await self._stop_all(list(self._nodes.values()), _NODE_STOP_S_MAX)
        await self._stop_all(list(self._etcd.values()), _ETCD_STOP_S_MAX)

    async def _stop_all(self, children: list[Child], within_s: float) -> None:
        stopping = asyncio.create_task(_together(child.stop(within_s) for child in children))
        hurry = asyncio.create_task(self._impatient.wait())
        await asyncio.wait([stopping, hurry], return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await _together(child.kill() for child in children if child.is_running)
        hurry.cancel()
        await stopping

    # ------------------------------------------------------------------ files

    def _path(self, name: str, ending: str) -> str:
        return os.path.join(self._folder, f"{name}.{ending}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One cluster runs in a folder at a time."""
        with open(os.path.join(self._folder, "lock"), "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderInUse(f"another cluster already runs in {self._folder}") from None
            yield


async def _accepts(address: str) -> bool:
    """Whether a process listens there."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_LOOK_AGAIN_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except OSError:  # a timeout is one, too
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


async def _together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once; the first that fails ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
