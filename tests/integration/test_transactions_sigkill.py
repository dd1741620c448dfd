"""A node that is killed while it commits: after each start all of a transaction is there, or nothing.

Each worker moves messages from a queue to two topics. Nothing is lost, nothing is there twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from random import Random

import pytest

from quiver.client import AsyncClient
from quiver.errors import QuiverError
from tests.aio import run
from tests.integration.client_node import ProcessNode

pytestmark = pytest.mark.process

ROUNDS, MESSAGES, WORKERS = 6, 200, 4
SEED = 17


async def move(url: str, is_over: asyncio.Event) -> None:
    """Take messages, publish each to both topics, acknowledge: in one transaction."""
    async with AsyncClient(url) as client:
        while not is_over.is_set():
            with contextlib.suppress(QuiverError):
                async with client.transaction(timeout="10s") as tx:
                    for message in await client.receive("work", 4, wait="200ms"):
                        await tx.publish("left", message.payload)
                        await tx.publish("right", message.payload)
                        await tx.ack(message)


async def seen(client: AsyncClient, topic: str) -> list[bytes]:
    async with client.read(topic) as reader:
        return sorted([one async for batch in reader for one in batch["payload"].to_pylist()])


async def all_moved(client: AsyncClient) -> None:
    """Until there are as many messages as there were."""
    count = 0
    async with client.read("right", follow=True) as reader:
        async for batch in reader:
            count += batch.num_rows
            if count >= MESSAGES:
                return


def test_all_or_nothing_however_often_the_node_is_killed(tmp_path: Path) -> None:
    node, random = ProcessNode(tmp_path / "node"), Random(SEED)
    node.start()

    async def check() -> None:
        is_over = asyncio.Event()
        async with AsyncClient(node.url) as client:
            for topic in ("left", "right"):
                await client.create_topic(topic)
            await client.create_queue("work", max_deliveries=0)
            await client.publish_many("work", [b"%d" % n for n in range(MESSAGES)])
            workers = [asyncio.create_task(move(node.url, is_over)) for _ in range(WORKERS)]
            for _ in range(ROUNDS):
                await asyncio.sleep(random.uniform(0.05, 0.4))
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
            await all_moved(client)
            is_over.set()
            await asyncio.gather(*workers)
            expected = sorted(b"%d" % n for n in range(MESSAGES))
            assert await seen(client, "left") == expected, f"seed {SEED}"
            assert await seen(client, "right") == expected, f"seed {SEED}"

    try:
        run(check(), timeout_seconds=200)
    finally:
        node.close()
