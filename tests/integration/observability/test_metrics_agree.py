"""Descriptions and metrics show the same numbers, also before anybody has used a queue again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from quiver import AsyncClient
from tests.integration.edge_node import edge_test
from tests.integration.observability.test_metrics import Figures, client


async def _described(q: AsyncClient) -> dict[tuple[str, ...], float]:
    """What descriptions say, by the name and labels of the metric that shows the same."""
    told: dict[tuple[str, ...], float] = {}
    for listed in await q.list_subscriptions():
        one = await q.describe_subscription(listed.name)
        states = {
            "ready": (one.ready or 0) + (one.unseen or 0),
            "delayed": one.delayed or 0,
            "leased": one.leased or 0,
            "dead": one.dead or 0,
        }
        for state, count in states.items():
            told["subscription_messages", one.name, state] = count
        told["subscription_lag_messages", one.name] = sum(p.lag for p in one.partitions or ())
        for p in one.partitions or ():
            place = (one.name, p.topic, str(p.partition))
            told["subscription_partition_lag_messages", *place] = p.lag
            told["subscription_partition_committed_offset", *place] = p.committed
    topics = await q.list_topics()
    for topic in topics:
        partitions = (await q.describe_topic(topic.name)).partitions
        told["topic_size_bytes", topic.name] = sum(p.bytes or 0 for p in partitions)
    told["topics",] = len(topics)
    told["subscriptions",] = len(await q.list_subscriptions())
    told["partitions",] = (await q.describe_node()).partitions
    return told


def _differences(told: dict[tuple[str, ...], float], text: str) -> dict[tuple[str, ...], object]:
    figures = Figures(text)
    shown = {names: figures.get(*names) for names in told}
    return {names: (told[names], shown[names]) for names in told if shown[names] != told[names]}


async def _busy(q: AsyncClient) -> None:
    await q.create_queue("emails", partitions=2, max_deliveries=1)
    await q.create_topic("orders")
    await q.create_subscription("untouched", ["orders"])
    await q.create_subscription("billing", ["orders"], max_deliveries=1)
    await q.publish_many("emails", [b"%d" % n for n in range(20)])
    await q.publish("emails", b"later", delay="1h")
    await q.publish_many("orders", [b"%d" % n for n in range(20)])
    for name in ("emails", "billing"):
        got = await q.receive(name, 8, wait=20)
        await q.ack(name, got[:3])
        await q.nack(name, got[3:6], error="no")
    async with asyncio.timeout(50):
        while (await q.describe_subscription("billing")).dead != 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@edge_test
async def test_the_first_metrics_after_a_restart_say_what_describe_says(tmp_path: Path) -> None:
    async with client(tmp_path) as q:
        await _busy(q)
        before = await _described(q)
    async with client(tmp_path) as q:
        first = await q.metrics()  # nobody has used anything
        after = await _described(q)
    assert _differences(after, first) == {}
    alike = {names for names in after if not names[-1].startswith("__alerts")}
    assert {names: before.get(names) for names in alike} == {names: after[names] for names in alike}


@edge_test
async def test_a_subscription_that_nobody_has_used_yet_shows_its_lag(tmp_path: Path) -> None:
    async with client(tmp_path) as q:
        await q.create_topic("orders")
        await q.publish_many("orders", [b"a", b"b", b"c"])
        await q.create_subscription("late", ["orders"], start="earliest")
        async with asyncio.timeout(50):
            while True:  # metrics may be a second old
                figures = Figures(await q.metrics())
                if figures.get("subscription_lag_messages", "late") == 3:
                    break
                await asyncio.sleep(0.1)
