"""The network of the simulator: it delays, loses, repeats and reorders, and can be cut anywhere.

A message takes a random time, so that two may overtake each other. A link that is cut in one
direction loses what is sent that way; whoever waits learns nothing until its patience ends. A dead
process refuses connections, and those it had break, which is noticed at once. A living process may
refuse them too, for a while, as with a full backlog or a firewall that rejects.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from math import ceil
from random import Random
from typing import Any

from quiver.errors import NodeGone, QuiverError, RequestTimeout, error_from
from quiver.testing.simulator.loop import Process, VirtualLoop

Handler = Callable[[Any], Awaitable[Any]]
OnBroken = Callable[[str], None]

STORE = "store"
"""The name of the metadata store as a place in the network."""


class SimulatedNetwork:
    def __init__(self, loop: VirtualLoop, rng: Random) -> None:
        self.delay_s = (0.0002, 0.002)
        self.step_s = 0.0
        """What arrives over wires in one such step arrives together, as when a process looks at its
        sockets once for all of them."""
        self.repeated_share = 0.0
        self.lost_share = 0.0
        self._loop = loop
        self._rng = rng
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._refusals: Counter[str] = Counter()
        self._serving: dict[str, tuple[Process, Handler, OnBroken]] = {}
        self._watchers: dict[str, list[Callable[[], None]]] = {}

    def serve(self, name: str, process: Process, handler: Handler, on_broken: OnBroken) -> None:
        self._serving[name] = (process, handler, on_broken)

    def end(self, name: str) -> None:
        """The process has died: all that it was connected to learn that."""
        for other, (process, _, on_broken) in self._serving.items():
            if other != name and not process.is_dead and self.passes(name, other):
                self._later(self._break, process, on_broken, name)
        for call in self._watchers.pop(name, ()):
            self._later(call)

    def watch(self, name: str, call: Callable[[], None]) -> None:
        """Call this when the process of that name has died."""
        self._watchers.setdefault(name, []).append(call)

    def _break(self, process: Process, on_broken: OnBroken, name: str) -> None:
        async def notify() -> None:
            on_broken(name)

        if not process.is_dead:
            self._loop.start(process, notify())

    # ------------------------------------------------------------------ what goes wrong

    def cut(self, source: str, target: str) -> None:
        """From now on nothing gets from one to the other; the way back is another."""
        self._cuts[source, target] += 1

    def mend(self, source: str, target: str) -> None:
        """Take one cut back; the link works when all are."""
        self._cuts[source, target] = max(0, self._cuts[source, target] - 1)

    def refuse(self, name: str) -> None:
        """From now on nobody can connect to it, though it lives."""
        self._refusals[name] += 1

    def accept(self, name: str) -> None:
        """Take one refusal back."""
        self._refusals[name] = max(0, self._refusals[name] - 1)

    def heal(self) -> None:
        self._cuts.clear()
        self._refusals.clear()
        self.calm()

    def calm(self) -> None:
        """Neither slow nor lossy any more."""
        self.delay_s = (0.0002, 0.002)
        self.repeated_share = self.lost_share = 0.0

    def passes(self, source: str, target: str) -> bool:
        """Whether a message that is sent now will arrive."""
        if self._cuts[source, target]:
            return False
        return not (self.lost_share and self._rng.random() < self.lost_share)

    def delay(self) -> float:
        return self._rng.uniform(*self.delay_s)

    def arrival(self, now: float) -> float:
        """When something that is sent now arrives."""
        at = now + self.delay()
        return ceil(at / self.step_s) * self.step_s if self.step_s else at

    def share(self) -> float:
        """Between 0 and 1."""
        return self._rng.random()

    # ------------------------------------------------------------------ calls

    async def call(self, source: str, target: str, request: Any, timeout_s: float) -> Any:
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._send(source, target, request, reply)
        if self.repeated_share and self._rng.random() < self.repeated_share:
            self._send(source, target, request, reply)
        timer = self._loop.call_later(timeout_s, _give_up, reply)
        try:
            return await reply
        finally:
            timer.cancel()

    def _send(self, source: str, target: str, request: Any, reply: asyncio.Future[Any]) -> None:
        if self.passes(source, target):
            self._later(self._arrive, source, target, request, reply)

    def _arrive(self, source: str, target: str, request: Any, reply: asyncio.Future[Any]) -> None:
        serving = self._serving.get(target)
        if serving is None or serving[0].is_dead or self._refusals[target]:
            if self.passes(target, source):
                self._later(_answer, reply, None, NodeGone())
            return
        process, handler, _ = serving
        self._loop.start(process, self._handle(source, target, handler, request, reply))

    async def _handle(
        self, source: str, target: str, handler: Handler, request: Any, reply: asyncio.Future[Any]
    ) -> None:
        answer, error = None, None
        try:
            answer = await handler(request)
        except QuiverError as raised:
            # As over a real wire: what arrives is another object of the same kind.
            error = error_from(raised.code, raised.message, raised.details)
        if self.passes(target, source):
            self._later(_answer, reply, answer, error)

    def _later(self, work: Callable[..., None], *args: Any) -> None:
        # In the network's own context: what is on its way outlives its sender.
        self._loop.call_later(self.delay(), work, *args, context=_NETWORK.context)


_NETWORK = Process("network")


def _answer(reply: asyncio.Future[Any], answer: Any, error: QuiverError | None) -> None:
    if reply.done():
        return
    if error is not None:
        reply.set_exception(error)
    else:
        reply.set_result(answer)


def _give_up(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(RequestTimeout())


class NodeNetwork:
    """The network as one process sees it: it fits ``quiver.cluster.replica.network.Network``."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network = network
        self._name = name

    async def call(self, node: str, request: Any, timeout_s: float) -> Any:
        return await self._network.call(self._name, node, request, timeout_s)
