"""A sink that writes batches as shared transactions, as Spark's does, with the shipped client.

A driver has the tasks of a batch run by executors, some of them more than once, and commits the attempts
that it takes. It notes a batch when it is committed, and goes on with the next. Drivers and executors are
killed at any moment. A driver that comes back begins with the batch that was not noted, also if that is
committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import Random
from typing import TypeVar

from quiver.client.async_client import AsyncClient
from quiver.client.transaction.shared import PartReference, SharedTransactions, TransactionPart
from quiver.errors import QuiverError
from quiver.testing.simulator.history import SinkCommit, SinkPart
from quiver.testing.simulator.loop import Process, VirtualClock
from quiver.testing.simulator.receives.dialer import ConnectionDialer
from quiver.testing.simulator.sessions.consumers import World

SINK = "sink"
"""The topic, and the name of the transactions."""
_CALL_SECONDS = 4.0
_TASK_SECONDS = 6.0
"""After so long an executor that says nothing counts as lost."""
_EXECUTORS = 2
_TASKS_MAX = 3
_ROWS_MAX = 3
_TIMEOUTS_S = (3.0, 8.0)

T = TypeVar("T")


class SinkProcess:
    """A driver or an executor, with one client, until it is killed."""

    def __init__(self, name: str, world: World, timeout_s: float, rng: Random) -> None:
        self.process = Process(name)
        self.rng = rng
        self.world = world
        loop = world.loop
        self._dialer = ConnectionDialer(world.network, loop, name, self.process)
        nodes = rng.sample(world.nodes, len(world.nodes))
        self._client = AsyncClient(
            "quiver://" + ",".join(nodes),
            timeout=_CALL_SECONDS,
            dialer=self._dialer,
            clock=VirtualClock(loop),
        )
        for cluster in (self._client._cluster, self._client._read_cluster):
            cluster.pool._bootstrap = list(nodes)  # a simulated address has no port
            cluster._chance = cluster.pool._chance = Random(rng.random())
        self.transactions = SharedTransactions(self._client.cluster, SINK, timeout_s)

    def kill(self) -> None:
        self.world.loop.kill(self.process)
        self._dialer.die()

    async def carry_out(self, work: Awaitable[T], seconds: float) -> T | None:
        """What comes of something that it does, for somebody else; ``None`` if it is lost or too slow."""

        async def run() -> None:
            try:
                result: T | None = await work
            except (QuiverError, TimeoutError):
                result = None
            if not done.done():
                done.set_result(result)

        done: asyncio.Future[T | None] = self.world.loop.create_future()
        self.world.loop.start(self.process, run())
        await asyncio.wait([done], timeout=seconds)
        return done.result() if done.done() else None

    async def attempt(self, number: int, rows: list[str]) -> PartReference | None:
        """One attempt of a task; ``None`` if the batch is committed already."""
        part = await self.transactions.part(number)
        if part is None:
            return None
        transaction = part._producer.transaction
        known = SinkPart(number=number, transaction=transaction)
        self.world.history.sink_parts.append(known)
        try:
            await self._write(part, [f"{row}@{transaction}" for row in rows], known)
            if self.rng.random() < 0.1:
                raise QuiverError("the task fails")
            return await part.stored()
        except QuiverError:
            await part.abort()
            raise

    async def _write(self, part: TransactionPart, values: list[str], known: SinkPart) -> None:
        producer = await part.producer(SINK)
        for value in values:
            known.values.append(value)
            await producer.send(value, key=value.partition("@")[0])
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.uniform(0.0, 0.5))


class Sink:
    """``is_hasty``: it only wants to come to the end of its batch."""

    def __init__(self, world: World, rng: Random) -> None:
        self.is_hasty = False
        self.noted = 0
        """So many batches are noted: the next is the one to begin with."""
        self._world = world
        self._rng = rng
        self._timeout_s = rng.choice(_TIMEOUTS_S)
        self._executors = [self._made(f"executor-{number}") for number in range(_EXECUTORS)]
        self._drivers = [self._made("driver-0")]

    def _made(self, name: str) -> SinkProcess:
        return SinkProcess(name, self._world, self._timeout_s, Random(self._rng.random()))

    async def run(self) -> None:
        """Lives of drivers, one after the other; the one before may be about its batch still."""
        while not self.is_hasty:
            await self._live(self._rng.uniform(0.5, 6.0))
        while not await self._batch(self._drivers[-1], self.noted):
            pass

    async def _live(self, seconds: float) -> None:
        rng, loop = self._rng, self._world.loop
        driver = self._drivers[-1]
        working = loop.create_task(self._work(driver))
        await asyncio.wait([working], timeout=seconds)
        how = rng.random()
        if how < 0.4:
            driver.kill()
        elif how < 0.7:
            loop.pause(driver.process)
            loop.call_later(rng.uniform(0.5, 6.0), loop.resume, driver.process)
        if how < 0.7:
            working.cancel()
            self._drivers.append(self._made(f"driver-{len(self._drivers)}"))
        if rng.random() < 0.3:
            place = rng.randrange(_EXECUTORS)
            self._executors[place].kill()
            self._executors[place] = self._made(f"executor-{place}.{len(self._drivers)}")
        if not working.done():
            working.cancel()

    async def _work(self, driver: SinkProcess) -> None:
        while not self.is_hasty:
            await self._batch(driver, self.noted)

    async def _batch(self, driver: SinkProcess, number: int) -> bool:
        """Whether the driver was told that the batch is committed, and has noted it."""
        tasks = self._tasks(number)
        results = await asyncio.gather(*(self._task(number, rows) for rows in tasks))
        parts = [part for part in results if isinstance(part, PartReference)]
        if any(result is False for result in results):
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))
            if self._rng.random() < 0.5:
                await driver.carry_out(driver.transactions.abort(number, parts), _TASK_SECONDS)
            return False
        if not parts:  # all of it is published already
            self._note(number)
            return True
        commit = SinkCommit(
            number=number,
            parts=[part.transaction for part in parts],
            asked_at=self._world.loop.time(),
        )
        self._world.history.sink_commits.append(commit)
        is_done = await driver.carry_out(self._commit(driver, commit, parts), 3 * _TASK_SECONDS)
        if is_done is None or (not self.is_hasty and self._rng.random() < 0.15):
            return False  # it dies before it has noted the batch
        self._note(number)
        return True

    def _note(self, number: int) -> None:
        self.noted = max(self.noted, number + 1)

    async def _commit(
        self, driver: SinkProcess, commit: SinkCommit, parts: list[PartReference]
    ) -> bool:
        await driver.transactions.commit(commit.number, parts)
        commit.told_at = self._world.loop.time()
        return True

    def _tasks(self, number: int) -> list[list[str]]:
        """The rows of each task: the same whenever the batch is run."""
        rng = Random(f"batch {number}")
        tasks = [
            [f"{number}.{task}.{row}" for row in range(rng.randint(1, _ROWS_MAX))]
            for task in range(rng.randint(1, _TASKS_MAX))
        ]
        self._world.history.sink_rows[number] = [row for rows in tasks for row in rows]
        return tasks

    async def _task(self, number: int, rows: list[str]) -> PartReference | bool:
        """The attempt that is taken; ``True`` if there is nothing to write, ``False`` if it failed."""
        attempts = 2 if self._rng.random() < 0.3 else 1  # a task that is slow is run twice
        executors = self._rng.sample(self._executors, attempts)
        running = [asyncio.ensure_future(self._attempt(one, number, rows)) for one in executors]
        done, _ = await asyncio.wait(
            running, return_when=self._rng.choice((asyncio.FIRST_COMPLETED, asyncio.ALL_COMPLETED))
        )
        results = [one.result() for one in running if one in done]
        taken = [one for one in results if one is not False]
        return self._rng.choice(taken) if taken else False

    async def _attempt(
        self, executor: SinkProcess, number: int, rows: list[str]
    ) -> PartReference | bool:
        async def attempt() -> PartReference | bool:
            return await executor.attempt(number, rows) or True

        return await executor.carry_out(attempt(), _TASK_SECONDS) or False
