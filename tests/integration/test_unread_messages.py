"""Retention and messages that nobody has finished: what is kept, what is dropped, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import quiver
from quiver.client import AsyncClient
from quiver.errors import InvalidSetting, TopicFull
from quiver.model.clock import SystemClock
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.integration.queue_node import clocked

DAY_S = 10.0
"""Short, because the clock goes through every second of it."""
HOUR_S = 20.0
WEEK = quiver.Retention(age=7 * DAY_S)
SMALL = {"segment_bytes": 1 << 20, "segment_age_s": 1}
LOST = "quiver_unread_lost_messages_total"


def node_clock() -> ManualClock:
    """Begins now: the client tells when a message is due, by its own clock."""
    return ManualClock(start_us=SystemClock().time_us())


async def pass_time(clock: ManualClock, seconds: float) -> None:
    """Let time pass, and maintenance run often enough to do all that is due then."""
    await clock.advance(seconds)
    for _ in range(4):
        await clock.advance(2)
        await asyncio.sleep(0.02)


async def eventually(
    clock: ManualClock, holds: Callable[[], Awaitable[bool]], step_s: float = 2
) -> None:
    async with asyncio.timeout(50):
        while not await holds():
            await clock.advance(step_s)
            await asyncio.sleep(0.01)


async def start_of(q: AsyncClient, topic: str) -> int:
    return (await q.describe_topic(topic)).partitions[0].start_offset or 0


async def lost(q: AsyncClient) -> float:
    return (await q.describe_node()).counters[LOST]


async def received(q: AsyncClient, name: str) -> list[bytes]:
    return [message.payload for message in await q.receive(name, 100)]


@async_test
async def test_a_queue_keeps_what_nobody_has_read_beyond_the_age_of_its_retention(
    tmp_path: Path,
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", retention=quiver.Retention(age=5), **SMALL)
        for number in range(3):
            await q.publish("jobs", b"%d" % number)
            await clock.advance(2)
        await pass_time(clock, 3 * DAY_S)
        assert await received(q, "jobs") == [b"0", b"1", b"2"]
        assert await lost(q) == 0


@async_test
async def test_a_queue_drops_what_is_finished_and_old_up_to_the_first_that_is_not(
    tmp_path: Path,
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", retention=quiver.Retention(age=5), **SMALL)
        for number in range(5):
            await q.publish("jobs", b"%d" % number)
            await clock.advance(2)
        messages = await q.receive("jobs", 5)
        await q.ack("jobs", [one for one in messages if one.payload != b"2"])
        await messages[2].nack(delay=0)
        await pass_time(clock, DAY_S)
        assert await start_of(q, "jobs") == 2
        assert await lost(q) == 0
        assert await received(q, "jobs") == [b"2"]


@async_test
async def test_a_limit_in_bytes_drops_finished_messages_and_no_others(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", retention=quiver.Retention(bytes=1), **SMALL)
        for number in range(4):
            await q.publish("jobs", b"%d" % number)
            await clock.advance(2)
        await q.ack("jobs", await q.receive("jobs", 1))
        await pass_time(clock, 10)
        assert await start_of(q, "jobs") == 1
        assert await lost(q) == 0


@async_test
async def test_a_topic_that_keeps_unread_messages_waits_for_every_subscription(
    tmp_path: Path,
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        retention = quiver.Retention(age=5, unread="keep")
        await q.create_topic("events", retention=retention, **SMALL)
        for name in ("fast", "slow"):
            await q.create_subscription(name, ["events"], start="earliest")
        await q.publish("events", b"first")
        await clock.advance(2)
        await q.publish("events", b"second")
        await q.ack("fast", await q.receive("fast", 10))
        await pass_time(clock, DAY_S)
        assert await start_of(q, "events") == 0
        await q.ack("slow", await q.receive("slow", 10))
        await eventually(clock, lambda: _starts_at(q, "events", 2))
        assert await lost(q) == 0


async def _starts_at(q: AsyncClient, topic: str, offset: int) -> bool:
    return await start_of(q, topic) == offset


@async_test
async def test_a_plain_topic_drops_unread_messages_by_age_as_it_always_did(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("events", retention=quiver.Retention(age=5), **SMALL)
        await q.create_subscription("reader", ["events"], start="earliest")
        await q.publish("events", b"first")
        await clock.advance(2)
        await q.publish("events", b"second")
        await eventually(clock, lambda: _has_lost(q, 2))
        await eventually(clock, lambda: _starts_at(q, "events", 2))
        assert await received(q, "reader") == []
        assert await lost(q) == 2


async def _has_lost(q: AsyncClient, count: int) -> bool:
    return await lost(q) >= count


@pytest.mark.parametrize("is_queue", [True, False])
@async_test
async def test_a_scheduled_message_outlives_the_retention_and_is_delivered_when_it_is_due(
    tmp_path: Path, is_queue: bool
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        if is_queue:
            await q.create_queue("jobs", retention=WEEK, **SMALL)
        else:
            await q.create_topic("jobs", retention=WEEK, **SMALL)
            await q.create_subscription("jobs", ["jobs"], start="earliest")
        await q.publish("jobs", b"in a month", delay=30 * DAY_S)
        await pass_time(clock, 10 * DAY_S)
        await pass_time(clock, 10 * DAY_S)
        assert await received(q, "jobs") == []
        await pass_time(clock, 11 * DAY_S)
        assert await received(q, "jobs") == [b"in a month"]
        assert await lost(q) == 0


@async_test
async def test_the_age_of_a_scheduled_message_counts_from_when_it_is_due(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("events", retention=WEEK, **SMALL)
        await q.create_subscription("reader", ["events"], start="earliest")
        await q.publish("events", b"in a month", delay=30 * DAY_S)
        await pass_time(clock, 36 * DAY_S)
        assert await lost(q) == 0
        await pass_time(clock, 2 * DAY_S)
        await eventually(clock, lambda: _has_lost(q, 1))


@async_test
async def test_a_topic_that_drops_unread_messages_drops_scheduled_ones_too(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        retention = quiver.Retention(age=5, unread="drop")
        await q.create_queue("jobs", retention=retention, **SMALL)
        await q.publish("jobs", b"in a month", delay=30 * DAY_S)
        await clock.advance(2)
        await eventually(clock, lambda: _has_lost(q, 1))
        assert (await q.describe_subscription("jobs")).delayed == 0


@async_test
async def test_what_was_kept_is_kept_over_a_restart(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("events", retention=quiver.Retention(age=5), **SMALL)
        await q.create_subscription("reader", ["events"], start="earliest")
        await q.create_queue("jobs", retention=quiver.Retention(age=5), **SMALL)
        await q.publish("jobs", b"job")
        await q.publish("events", b"tomorrow", delay=DAY_S)
        await clock.advance(HOUR_S)
    async with clocked(tmp_path, clock) as q:
        await pass_time(clock, HOUR_S)
        assert await received(q, "jobs") == [b"job"]
        await pass_time(clock, DAY_S)
        assert await lost(q) in (0, 1)
    # A minute after it was due it may go; until then it was there.


@async_test
async def test_dead_letters_are_kept_until_they_are_handled(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", **SMALL)
        await q.publish("jobs", b"bad")
        (message,) = await q.receive("jobs", 1)
        await message.reject(error="no")
        await q.alter_topic("jobs.dlq", retention={"age": 5}, segment_age_s=1)
        await pass_time(clock, 6 * DAY_S)
        assert await q.redrive("jobs") == 1
        assert await received(q, "jobs") == [b"bad"]
        assert await lost(q) == 0
        await clock.advance(2)
        await eventually(clock, lambda: _starts_at(q, "jobs.dlq", 1))


@async_test
async def test_expired_messages_are_finished_also_where_nobody_consumes(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", retention=quiver.Retention(age=5), **SMALL)
        await q.publish("jobs", b"short-lived", ttl=3)
        await clock.advance(2)
    async with clocked(tmp_path, clock) as q:
        await q.publish("jobs", b"stays")
        await pass_time(clock, DAY_S)
        await eventually(clock, lambda: _starts_at(q, "jobs", 1))
        assert await lost(q) == 0


# ---------------------------------------------------------------------- limits of what is unread


async def fill(q: AsyncClient, queue: str) -> tuple[int, TopicFull]:
    """Publish until that is refused: how often it was not, and the error."""
    for stored in range(100):
        try:
            await q.publish(queue, bytes(10_000))
        except TopicFull as error:
            return stored, error
    raise AssertionError("it was never refused")


@async_test
async def test_a_full_queue_refuses_publishes_until_something_is_finished(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", retention=quiver.Retention(unread_bytes=100_000), **SMALL)
        stored, refused = await fill(q, "jobs")
        assert refused.code == "topic_full"
        assert "unread_bytes" in refused.message
        assert 5 <= stored <= 10
        assert await lost(q) == 0
        await q.ack("jobs", await q.receive("jobs", 100))
        await clock.advance(2)
        await asyncio.sleep(0.05)
        await q.publish("jobs", bytes(10_000))


@async_test
async def test_a_full_queue_is_full_after_a_restart(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", retention=quiver.Retention(unread_bytes=100_000), **SMALL)
        await fill(q, "jobs")
    async with clocked(tmp_path, clock) as q:
        with pytest.raises(TopicFull):
            await q.publish("jobs", bytes(10_000))


@async_test
async def test_a_queue_with_an_unread_message_that_is_too_old_refuses_publishes(
    tmp_path: Path,
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", retention=quiver.Retention(unread_age=HOUR_S), **SMALL)
        await q.publish("jobs", b"later", delay=30 * DAY_S)
        await pass_time(clock, 2 * HOUR_S)
        await q.publish("jobs", b"now")  # what is scheduled is not late
        await pass_time(clock, 2 * HOUR_S)
        with pytest.raises(TopicFull) as refused:
            await q.publish("jobs", b"more")
        assert "unread_age" in refused.value.message
        await q.ack("jobs", await q.receive("jobs", 1))
        await pass_time(clock, 1)
        await q.publish("jobs", b"more")


@async_test
async def test_a_queue_may_drop_the_oldest_unread_messages_at_its_limit(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        retention = quiver.Retention(unread_bytes=100_000, unread_overflow="drop")
        await q.create_queue("jobs", retention=retention, **SMALL)
        for _ in range(20):
            await q.publish("jobs", bytes(10_000))
            await clock.advance(2)
        await pass_time(clock, 10)
        assert 0 < await start_of(q, "jobs") <= 11
        assert await lost(q) > 0


@async_test
async def test_a_queue_may_drop_unread_messages_that_are_too_old(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        retention = quiver.Retention(age=5, unread_age=2 * HOUR_S, unread_overflow="drop")
        await q.create_queue("jobs", retention=retention, **SMALL)
        await q.publish("jobs", b"old")
        await clock.advance(2)
        await q.publish("jobs", b"older than the age")
        await pass_time(clock, HOUR_S)
        assert await start_of(q, "jobs") == 0
        await pass_time(clock, HOUR_S)
        await eventually(clock, lambda: _has_lost(q, 1))


def test_limits_for_unread_messages_are_refused_where_these_are_dropped() -> None:
    with pytest.raises(InvalidSetting, match="unread"):
        quiver.Retention(unread="drop", unread_bytes="1GB")
