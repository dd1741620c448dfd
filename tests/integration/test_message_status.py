"""What became of a message: each end has its own name, and who acknowledged and when is known."""

from __future__ import annotations

import asyncio
from pathlib import Path

import quiver
from quiver.client import AsyncClient
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.integration.queue_node import clocked
from tests.integration.test_unread_messages import SMALL, eventually, node_clock, pass_time


async def status(
    q: AsyncClient, topic: str, message_id: str, name: str | None = None
) -> quiver.SubscriptionStatus:
    found = await q.message_status(topic, message_id)
    return next(one for one in found.subscriptions if one.subscription == (name or topic))


async def state(q: AsyncClient, topic: str, message_id: str, name: str | None = None) -> str:
    return (await status(q, topic, message_id, name)).state


@async_test
async def test_who_acknowledged_a_message_and_when_is_known(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        place = await q.publish("jobs", b"1")
        await clock.advance(5)
        received = await q.receive("jobs", consumer="anna")
        await clock.advance(5)
        await q.ack("jobs", received)
        found = await status(q, "jobs", place.id)
        assert (found.state, found.consumer, found.deliveries) == ("acknowledged", "anna", 1)
        assert found.at is not None
        assert abs(found.at.timestamp() * 1e6 - clock.time_us()) < 1e6


@async_test
async def test_who_acknowledged_a_message_is_known_after_restarts_and_snapshots(
    tmp_path: Path,
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        place = await q.publish("jobs", b"1")
        first = await q.receive("jobs", consumer="anna")
        await q.nack("jobs", first, delay=0)
        second = await q.receive("jobs", consumer="bert", wait=1)
        await q.ack("jobs", second)
    for _ in range(2):
        async with clocked(tmp_path, clock) as q:
            found = await status(q, "jobs", place.id)
            assert (found.state, found.consumer, found.deliveries) == ("acknowledged", "bert", 2)


@async_test
async def test_an_expired_message_is_not_acknowledged(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        unseen = await q.publish("jobs", b"1", ttl=5)
        held = await q.publish("jobs", b"2", ttl=10)
        assert len(await q.receive("jobs", 2)) == 2
        await clock.advance(60)  # leases lapse too

        async def both_expired() -> bool:
            states = [await state(q, "jobs", one.id) for one in (unseen, held)]
            return states == ["expired", "expired"]

        await eventually(clock, both_expired)


@async_test
async def test_a_cancelled_message_is_not_acknowledged(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        place = await q.publish("jobs", b"1", delay=3600)
        assert await q.cancel("jobs", [place.id]) == 1
        assert await state(q, "jobs", place.id) == "cancelled"


@async_test
async def test_a_purged_message_is_not_acknowledged(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        one, two = [await q.publish("jobs", b"1", priority=p) for p in (1, 2)]
        await q.purge("jobs", filter="priority = 1")
        assert await state(q, "jobs", one.id) == "purged"
        assert await state(q, "jobs", two.id) == "pending"
        await q.purge("jobs")
        assert await state(q, "jobs", two.id) == "purged"


@async_test
async def test_a_message_that_a_seek_passed_over_is_not_acknowledged(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        one, two = [await q.publish("jobs", b"1") for _ in range(2)]
        await q.ack("jobs", await q.receive("jobs", 1))
        await q.seek("jobs", "latest")
        assert await state(q, "jobs", one.id) == "acknowledged"
        assert await state(q, "jobs", two.id) == "skipped"
        await q.seek("jobs", "earliest")
        assert await state(q, "jobs", one.id) == "pending"


@async_test
async def test_a_message_from_before_a_subscription_was_never_its_own(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("events")
        place = await q.publish("events", b"1")
        await q.create_subscription("late", ["events"])
        assert await state(q, "events", place.id, "late") == "before-subscription"


@async_test
async def test_a_message_that_the_filter_holds_back_is_filtered(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("events")
        await q.create_subscription("urgent", ["events"], filter="priority > 5")
        place = await q.publish("events", b"1", priority=1)
        other = await q.publish("events", b"2", priority=9)
        assert len(await q.receive("urgent", wait=1)) == 1
        assert await state(q, "events", place.id, "urgent") == "filtered"
        assert await state(q, "events", other.id, "urgent") == "leased"


@async_test
async def test_a_dead_letter_is_dead_lettered_also_when_it_is_gone(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", retention=quiver.Retention(age=5), **SMALL)
        place = await q.publish("jobs", b"1")
        (message,) = await q.receive("jobs", consumer="anna")
        await message.reject(error="no")
        found = await status(q, "jobs", place.id)
        assert (found.state, found.consumer) == ("dead-lettered", "anna")
        await pass_time(clock, 20)
        found = await status(q, "jobs", place.id)
        assert found.state == "dead-lettered"


@async_test
async def test_an_unread_message_that_retention_dropped_is_told_so_and_fires_an_alert(
    tmp_path: Path,
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        retention = quiver.Retention(age=5, unread="drop")
        await q.create_queue("jobs", retention=retention, **SMALL)
        place = await q.publish("jobs", b"1")
        await eventually(clock, lambda: _is_lost(q))
        assert await state(q, "jobs", place.id) == "dropped-unread"
        await eventually(clock, lambda: _fires(q, "unread-lost", "jobs"))
    async with clocked(tmp_path, clock) as q:
        assert await state(q, "jobs", place.id) == "dropped-unread"


async def _is_lost(q: AsyncClient) -> bool:
    return (await q.describe_node()).counters["quiver_unread_lost_messages_total"] >= 1


async def _fires(q: AsyncClient, rule: str, subject: str) -> bool:
    alerts = await q.alerts()
    return any((one.rule, one.subject) == (rule, subject) for one in alerts.firing)


@async_test
async def test_what_a_consumer_meets_as_gone_is_counted_as_lost(tmp_path: Path) -> None:
    """A receive may learn that messages are gone before maintenance does."""
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        retention = quiver.Retention(age=5, unread="drop")
        await q.create_queue("jobs", retention=retention, **SMALL)
        for _ in range(3):
            await q.publish("jobs", b"1")
            await clock.advance(2)
        for _ in range(20):
            await clock.advance(1)
            await asyncio.sleep(0.005)
            for message in await q.receive("jobs", 1):
                await message.nack(delay=0)
        await eventually(clock, lambda: _is_lost(q))
        assert (await q.describe_node()).counters["quiver_unread_lost_messages_total"] == 3
