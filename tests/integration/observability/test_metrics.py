"""The figures of a node that runs: what is counted, and what is looked up when somebody asks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from quiver import AsyncClient
from quiver.config import Limits, NodeConfig
from quiver.embedded import EmbeddedDialer
from quiver.testing.clock import ManualClock
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node


def client(folder: Path, clock: ManualClock | None = None) -> AsyncClient:
    config = NodeConfig(data=str(folder / "data"), limits=Limits(free_bytes_min=0))
    return AsyncClient(dialer=EmbeddedDialer(config, clock))


class Figures:
    def __init__(self, text: str) -> None:
        self._values = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def get(self, name: str, *labels: str) -> float | None:
        return self._values.get((f"quiver_{name}", *sorted(labels)))

    def __call__(self, name: str, *labels: str) -> float:
        return self._values[f"quiver_{name}", *sorted(labels)]


async def shown(q: AsyncClient, name: str, *labels: str, value: float) -> Figures:
    """The figures once they show this: they may be a second or two old."""
    async with asyncio.timeout(50):
        while True:
            figures = Figures(await q.metrics())
            if figures.get(name, *labels) == value:
                return figures
            await asyncio.sleep(0.05)


@edge_test
async def test_what_passes_through_a_queue_is_counted(tmp_path: Path) -> None:
    async with client(tmp_path) as q:
        await q.create_queue("emails", max_deliveries=2, backoff={"min": 0, "max": 0})
        await q.publish_many("emails", [{"n": n} for n in range(10)])
        first = await q.receive("emails", max_messages=4, wait="20s")
        await q.ack("emails", first[:3])
        await q.nack("emails", first[3:], delay=0)
        again = await q.receive("emails", max_messages=7, wait="20s")
        assert sum(message.deliveries == 2 for message in again) == 1
        await q.nack("emails", [one for one in again if one.deliveries == 2], error="poison")
        figures = await shown(q, "topic_messages_total", "emails.dlq", value=1)
    assert figures("topic_messages_total", "emails") == 10
    assert figures("topic_bytes_total", "emails") > 100
    assert figures("publish_seconds_count", "emails") >= 1
    assert figures("fsync_seconds_count") >= 1
    assert figures("subscription_delivered_messages_total", "emails") == 11
    assert figures("subscription_delivered_bytes_total", "emails") > 100
    assert figures("subscription_redelivered_messages_total", "emails") == 1
    assert figures("subscription_acked_messages_total", "emails") == 3
    assert figures("subscription_nacked_messages_total", "emails") == 2
    assert figures("subscription_dead_lettered_messages_total", "emails") == 1
    assert figures("subscription_time_in_queue_seconds_count", "emails") == 3
    assert figures("subscription_messages", "emails", "leased") == 6
    assert figures("subscription_messages", "emails", "dead") == 1
    assert figures("subscription_lag_messages", "emails") == 6
    assert figures("subscription_lag_messages", "emails.dlq") == 1


@edge_test
async def test_ages_are_of_the_oldest_message_that_is_not_finished(tmp_path: Path) -> None:
    clock = ManualClock()
    async with client(tmp_path, clock) as q:
        await q.create_queue("emails", visibility="1h")
        await q.publish("emails", 1)
        await clock.advance(60)
        await q.publish("emails", 2)
        await clock.advance(30)
        (oldest,) = await q.receive("emails", max_messages=1)
        assert Figures(await q.metrics())("subscription_oldest_age_seconds", "emails") == 90
        await oldest.ack()
        await clock.advance(2)  # what is shown may be a second old
        figures = Figures(await q.metrics())
        assert figures("subscription_oldest_age_seconds", "emails") == 32
        assert figures("subscription_time_in_queue_seconds_sum", "emails") == 90


@edge_test
async def test_what_waits_for_its_time_has_no_age(tmp_path: Path) -> None:
    clock = ManualClock()
    async with client(tmp_path, clock) as q:
        await q.create_queue("emails")
        await q.publish("emails", 1, delay="1h")
        await clock.advance(60)
        figures = Figures(await q.metrics())
        assert figures("subscription_messages", "emails", "delayed") == 1
        assert figures("subscription_oldest_age_seconds", "emails") == 0


@edge_test
async def test_after_a_restart_a_queue_that_nobody_uses_is_seen_again(tmp_path: Path) -> None:
    clock = ManualClock()
    async with client(tmp_path, clock) as q:
        await q.create_topic("orders")
        await q.create_subscription("billing", topics=["orders"], ordering="key")
        await q.publish_many("orders", [1, 2, 3])
    later = ManualClock(start_us=clock.time_us())
    async with client(tmp_path, later) as q:
        await q.describe_node()
        await later.advance(70)  # upkeep opens every partition once a minute
        for _ in range(1000):
            figures = Figures(await q.metrics())
            if figures("subscription_lag_messages", "billing"):
                break
            await later.advance(1.1)
            await asyncio.sleep(0.001)
        assert figures("subscription_lag_messages", "billing") == 3
        assert figures("subscription_oldest_age_seconds", "billing") >= 70


@edge_test
async def test_rebalances_are_counted(tmp_path: Path) -> None:
    async with client(tmp_path) as q:
        await q.create_topic("orders", partitions=2)
        await q.create_subscription("group", topics=["orders"], ordering="partition")
        await q.receive("group", consumer="a")  # gets both partitions
        await q.receive("group", consumer="b")  # gets one of them
        await shown(q, "subscription_rebalances_total", "group", value=2)
        info = await q.describe_subscription("group")
        assert info.members is not None
        assert sorted(map(len, info.members.values())) == [1, 1]


@edge_test
async def test_many_who_ask_at_once_cost_one_answer(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue("emails")
        replies = await asyncio.gather(*(node.http.get("/metrics") for _ in range(20)))
        assert {reply.status_code for reply in replies} == {200}
        assert len({reply.text for reply in replies}) <= 2
        assert replies[0].headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "process_resident_memory_bytes" in replies[0].text
        assert "quiver_disk_free_bytes" in replies[0].text
