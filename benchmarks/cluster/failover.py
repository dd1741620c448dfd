"""How long publishing pauses when the node that leads a partition is killed, stopped or paused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time

import uvloop

from benchmarks.cluster.stage import Stage, cluster_of
from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row, Target, at_most
from quiver import AsyncClient, Client
from quiver.errors import QuiverError

RATE = 100
_LEASE_S = 3
_SECONDS_MAX = 60.0
_AFTER = 20
_PAYLOAD = bytes(1000)


class Publishing:
    """One partition is published to at a steady rate, whatever happens."""

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self.failed = 0
        self._client = client
        self._topic = topic
        self._sends: list[tuple[float, float]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while True:
            task = asyncio.create_task(self._send(time.monotonic()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(1 / RATE)

    async def wait(self, count: int, since: float) -> None:
        """Until so many were confirmed of those that were sent later."""
        async with asyncio.timeout(_SECONDS_MAX):
            while sum(sent > since for sent, _ in self._sends) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def pause_s(self, since: float) -> float:
        """The longest time after ``since`` without a confirmation."""
        ends = sorted(ended for _, ended in self._sends if ended > since)
        return max(b - a for a, b in itertools.pairwise([since, *ends]))

    async def finish(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _send(self, began: float) -> None:
        try:
            await self._client.publish(self._topic, _PAYLOAD, partition=0)
        except QuiverError:
            self.failed += 1
        else:
            self._sends.append((began, time.monotonic()))


def fail_over(bench: Bench) -> list[Row]:
    with bench.folder() as folder, cluster_of(folder, 3) as stage:
        kills = _pauses(stage, signal.SIGKILL, bench.pick(20, 1))
        stops = _pauses(stage, signal.SIGTERM, bench.pick(5, 1))
        naps = _pauses(stage, signal.SIGSTOP, bench.pick(3, 0))
    rows = [
        *_rows("SIGKILL", kills, at_most(2.0)),
        *_rows("SIGTERM", stops, at_most(0.3)),
        Row(
            name="failed publishes over all SIGTERM",
            value=float(sum(failed for _, failed in stops)),
            unit="messages",
            target=at_most(0),
        ),
    ]
    return rows + (_rows("SIGSTOP", naps, at_most(2.0 * _LEASE_S + 2)) if naps else [])


def _rows(how: str, measured: list[tuple[float, int]], target: Target) -> list[Row]:
    pauses = sorted(pause for pause, _ in measured)
    place = min(len(pauses) - 1, round(0.99 * len(pauses)))
    return [
        Row(
            name=f"longest pause of publishing after {how} of the leader, p99",
            value=pauses[place],
            unit="s",
            target=target,
            note=f"{len(pauses)} times, median {pauses[len(pauses) // 2]:.2f} s; "
            f"{RATE} publishes/s to one partition of three replicas",
        )
    ]


def _pauses(stage: Stage, how: signal.Signals, times: int) -> list[tuple[float, int]]:
    """For each time: the longest pause, and how many publishes failed."""
    topic, found = f"failing-{how.name.lower()}", []
    with Client(stage.url) as client:
        client.create_topic(topic, partitions=1, replicas=3)
    for _ in range(times):
        stage.wait_whole()
        leader = stage.leader(topic)
        found.append(uvloop.run(_pause(stage, topic, leader, how)))
        # Not on another thread: a child ends with the thread that has started it.
        stage.end(leader)
        stage.start(leader)
    return found


async def _pause(stage: Stage, topic: str, leader: str, how: signal.Signals) -> tuple[float, int]:
    async with AsyncClient(stage.url) as client:
        publishing = Publishing(client, topic)
        running = asyncio.create_task(publishing.run())
        try:
            await publishing.wait(_AFTER, 0.0)
            moment = time.monotonic()
            stage.send(leader, how)
            await publishing.wait(_AFTER, moment)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        await publishing.finish()
    return publishing.pause_s(moment), publishing.failed
