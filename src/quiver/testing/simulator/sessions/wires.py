"""Connections of the simulated network: what is sent arrives in order, or the connection breaks.

A link that is cut or loses messages only delays what is sent, as TCP does, until patience ends. The end
of a process breaks its connections, and the other side learns of it; the end of a machine does so without
a word, and the other side learns it from silence, or when it sends something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from quiver.testing.simulator.loop import Process, VirtualLoop
from quiver.testing.simulator.network import SimulatedNetwork

_AGAIN_SECONDS = 0.2
_STUCK_SECONDS_MAX = 3.0

_NETWORK = Process("wires")


class End(Protocol):
    """What is at one end of a wire. Both calls are made in its own process."""

    def received(self, what: Any) -> None: ...

    def broken(self) -> None: ...


class Side:
    """One side of a wire: the process that has it, and what it sends."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.end: End | None = None
        self.is_open = True
        self.waiting: deque[Callable[[], None]] = deque()
        self.is_stuck = False
        self.stuck_since = 0.0
        self.arrived = 0.0


class Wire:
    def __init__(
        self, network: SimulatedNetwork, loop: VirtualLoop, client: Side, node: Side
    ) -> None:
        self.client = client
        self.node = node
        self._network = network
        self._loop = loop
        network.watch(node.name, lambda: self._break(self.client))

    def send(self, source: Side, what: Any) -> None:
        if not source.is_open:
            return
        target = self._other(source)
        source.waiting.append(lambda: self._arrive(target, what))
        if not source.is_stuck:
            self._pump(source)

    def close(self, source: Side) -> None:
        """This side is done: the other learns it after all that was sent before."""
        if source.is_open:
            source.is_open = False
            self._tell_end(source)

    def client_died(self) -> None:
        """The process at the client's side is gone: the node learns it."""
        self.client.is_open = False
        self._break(self.node)

    def lose(self, source: Side) -> None:
        """The machine of this side is gone, without a word."""
        source.is_open = False
        source.waiting.clear()

    # ------------------------------------------------------------------ on the way

    def _other(self, side: Side) -> Side:
        return self.node if side is self.client else self.client

    def _tell_end(self, source: Side) -> None:
        target = self._other(source)
        source.waiting.append(lambda: self._break(target))
        if not source.is_stuck:
            self._pump(source)

    def _pump(self, source: Side) -> None:
        target, now = self._other(source), self._loop.time()
        while source.waiting:
            if not self._network.passes(source.name, target.name):
                self._wait(source)
                return
            source.is_stuck = False
            work = source.waiting.popleft()
            source.arrived = max(source.arrived, self._network.arrival(now))
            self._loop.call_at(source.arrived, work, context=target.process.context)
        source.is_stuck = False

    def _wait(self, source: Side) -> None:
        """Nothing gets through: try again, as long as patience lasts."""
        now = self._loop.time()
        if not source.is_stuck:
            source.is_stuck, source.stuck_since = True, now
        if now - source.stuck_since > _STUCK_SECONDS_MAX:
            source.waiting.clear()
            self._loop.call_soon(self._break, source, context=source.process.context)
            return
        self._loop.call_later(_AGAIN_SECONDS, self._pump, source, context=_NETWORK.context)

    def _arrive(self, target: Side, what: Any) -> None:
        if target.is_open and target.end is not None:
            target.end.received(what)
        elif not target.is_open:
            self._tell_end(target)

    def _break(self, side: Side) -> None:
        """In the side's own process, or in the network's if that process' node is told."""
        if not side.is_open:
            return
        side.is_open = False
        side.waiting.clear()
        if side.end is not None:
            self._loop.call_soon(side.end.broken, context=side.process.context)
