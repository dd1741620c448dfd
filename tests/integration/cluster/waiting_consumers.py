"""Consumers that wait for messages of a cluster, and an account of what they are given."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from random import Random

import msgspec

import quiver
from quiver.client import AsyncClient
from quiver.client.consumer.received import ReceivedMessage
from tests.integration.cluster.nodes import SECONDS_MAX, Cluster


class Account(msgspec.Struct):
    """What became of numbered messages."""

    handed: Counter[int] = msgspec.field(default_factory=Counter)
    after_a_lapse: list[int] = msgspec.field(default_factory=list)
    """Those that came with a delivery count above 1."""
    slowest_s: float = 0.0
    """From the confirmed publish to the program."""
    stored: dict[int, float] = msgspec.field(default_factory=dict)
    acked: int = 0
    changed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def take(self, messages: list[ReceivedMessage]) -> None:
        now = time.monotonic()
        for message in messages:
            number = int(message.payload)
            self.handed[number] += 1
            if message.deliveries > 1:
                self.after_a_lapse.append(number)
            self.slowest_s = max(self.slowest_s, now - self.stored.get(number, now))

    def settle(self, messages: list[ReceivedMessage]) -> None:
        self.acked += len(messages)
        self.changed.set()

    async def until_all(self, count: int) -> None:
        """Wait until all are acknowledged."""
        while self.acked < count:
            self.changed.clear()
            await self.changed.wait()

    def unlike(self, count: int) -> str | None:
        """What is not as it should be: each message handed over exactly once, none after a lapse."""
        missing = sorted(set(range(count)) - set(self.handed))
        twice = sorted(number for number, times in self.handed.items() if times > 1)
        if missing or twice or self.after_a_lapse:
            return (
                f"missing {missing[:20]}, twice {twice[:20]}, "
                f"after a lapse {sorted(self.after_a_lapse)[:20]} ({len(self.after_a_lapse)})"
            )
        return None


async def run(
    cluster: Cluster,
    name: str,
    count: int,
    *,
    consumers: int = 6,
    burst: int = 20,
    messages_max: int = 5,
    impatient: bool = False,
    seed: int = 0,
) -> Account:
    """Publish ``count`` messages in bursts that consumers wait for, and let them take all.

    ``impatient``: some consumers give up a receive at any moment and ask again.
    """
    account, rng = Account(), Random(seed)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(2 * SECONDS_MAX):
        workers = [
            tasks.create_task(
                _consume(cluster.address(index % 3), name, account, messages_max, impatience)
            )
            for index in range(consumers)
            for impatience in [Random(rng.random()) if impatient and index % 2 else None]
        ]
        async with AsyncClient(cluster.url) as client:
            for first in range(0, count, burst):
                numbers = range(first, min(count, first + burst))
                await asyncio.gather(*(_publish(client, name, n, account) for n in numbers))
                await asyncio.sleep(rng.uniform(0.0, 0.03))
        await account.until_all(count)
        for worker in workers:
            worker.cancel()
    return account


async def _publish(client: AsyncClient, name: str, number: int, account: Account) -> None:
    await client.publish(name, str(number), partition=number % 3)
    account.stored[number] = time.monotonic()


async def _consume(
    address: str, name: str, account: Account, messages_max: int, impatience: Random | None
) -> None:
    async with quiver.AsyncClient(f"quiver://{address}") as client:
        while True:
            limit_s = 20.0 if impatience is None else impatience.uniform(0.001, 0.03)
            try:
                async with asyncio.timeout(limit_s):
                    messages = await client.receive(name, messages_max, wait="20s")
            except TimeoutError:
                continue
            account.take(messages)
            if messages:
                await client.ack(name, messages)
                account.settle(messages)
