"""Takes samples of a node and draws them, until the person has seen enough.

Sampling and drawing go on side by side: a node that takes long to answer holds up neither keys nor a
new size of the terminal, and while it does not answer the last sample stays, with the reason.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live

from quiver.aio import cancel_and_wait
from quiver.cli.support.output import print_json
from quiver.cli.support.session import connected_async
from quiver.cli.top.keys import keyboard, pressed
from quiver.cli.top.mirrors import MirrorRates, MirrorRow
from quiver.cli.top.screen import TopSample, lines_of
from quiver.cli.top.view import View
from quiver.client import AsyncClient
from quiver.console.collector import MetricsCollector
from quiver.errors import AccessRefused, QuiverError
from quiver.model.clock import SystemClock
from quiver.protocol import NodeInfo

_STALE_AFTER = 3
"""So many intervals without a sample are told."""
_NODES_S = 5.0
"""How long the nodes of the cluster are taken as known: a large cluster describes many partitions."""
_WIDTH = 200
"""Of what is printed where there is no terminal."""


def show(
    context: typer.Context,
    url: str | None,
    view: View,
    interval_s: float,
    *,
    once: bool,
    json: bool,
) -> None:
    work = _work(context, url, view, interval_s, once=once or not sys.stdout.isatty(), json=json)
    asyncio.run(work)


async def _work(
    context: typer.Context,
    url: str | None,
    view: View,
    interval_s: float,
    *,
    once: bool,
    json: bool,
) -> None:
    async with connected_async(context, url) as client:
        sampler = NodeSampler(client, interval_s)
        if not once and not json:
            await _live(sampler, view)
            return
        sample = await sampler.take_with_rates()
        if json:
            node = msgspec.to_builtins(sample.node)
            more = {"nodes": sample.nodes, "alerts": sample.alerts, "mirrors": sample.mirrors}
            print_json({**node, **msgspec.to_builtins(more)})
            return
        console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        width = console.width if console.is_terminal else _WIDTH
        console.print(Group(*(line for line in lines_of(sample, view, width, None))))


class NodeSampler:
    """The newest sample of a node."""

    def __init__(self, client: AsyncClient, interval_s: float) -> None:
        self.latest: TopSample | None = None
        self._client = client
        self._interval_s = interval_s
        self._clock = SystemClock()
        self._collector = MetricsCollector(client, self._clock)
        self._nodes: list[NodeInfo] = []
        self._nodes_until = 0.0
        self._mirror_rates = MirrorRates()

    async def take(self) -> TopSample:
        alerts = await self._client.alerts()
        return TopSample(
            await self._collector.take(),
            alerts.firing,
            await self._known_nodes(),
            await self._mirrors(),
        )

    async def _known_nodes(self) -> list[NodeInfo]:
        now = self._clock.monotonic()
        if now >= self._nodes_until:
            self._nodes = (await self._client.describe_cluster()).nodes
            self._nodes_until = now + _NODES_S
        return self._nodes

    async def _mirrors(self) -> list[MirrorRow]:
        """Nothing, for whoever may not see them."""
        try:
            found = await self._client.list_mirrors()
        except AccessRefused:
            return []
        return self._mirror_rates.rows(found, self._clock.monotonic())

    async def take_with_rates(self) -> TopSample:
        """Rates are between two looks."""
        await self.take()
        await asyncio.sleep(self._interval_s)
        return await self.take()

    async def go_on(self, changed: asyncio.Event) -> None:
        """Sample after sample; ``changed`` is set with each, and when one is long in coming."""
        while True:
            taking = asyncio.ensure_future(self.take())
            try:
                done, _ = await asyncio.wait([taking], timeout=_STALE_AFTER * self._interval_s)
                if not done:
                    self._trouble("no answer yet", changed)
                self.latest = await taking
            except QuiverError as error:
                if not error.retryable:
                    raise
                self._trouble(error.message, changed)
            finally:
                taking.cancel()
            changed.set()
            await asyncio.sleep(self._interval_s)

    def _trouble(self, reason: str, changed: asyncio.Event) -> None:
        if self.latest is not None:
            self.latest.trouble = reason
            changed.set()


async def _live(sampler: NodeSampler, view: View) -> None:
    changed, loop = asyncio.Event(), asyncio.get_running_loop()
    running = asyncio.ensure_future(sampler.go_on(changed))
    running.add_done_callback(lambda _: changed.set())
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    console = Console(highlight=False)
    with keyboard() as keys, Live(console=console, screen=True, auto_refresh=False) as live:

        def on_keys() -> None:
            for key in pressed(keys):  # type: ignore[arg-type] # there is a keyboard if this is called
                view.press(key)
            changed.set()

        if keys is not None:
            loop.add_reader(keys, on_keys)
        try:
            while not view.is_ended and not running.done():
                if sampler.latest is not None:
                    width, height = console.size
                    lines = lines_of(sampler.latest, view, width, height)
                    live.update(Group(*lines), refresh=True)
                await changed.wait()
                changed.clear()
        finally:
            if keys is not None:
                loop.remove_reader(keys)
            loop.remove_signal_handler(signal.SIGWINCH)
            await cancel_and_wait(running)
    if not running.cancelled():
        running.result()  # why it ended by itself
