"""Queues where nothing is due cost next to nothing each second, and wake with their first use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from quiver.broker.broker import Broker
from quiver.broker.subscription.subscription import Subscription
from quiver.model.topic import TopicSettings
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import batch_of, open_broker, publish


@asynccontextmanager
async def queue(folder: Path, clock: ManualClock) -> AsyncIterator[tuple[Broker, Subscription]]:
    async with open_broker(folder, SimulatedDisk(1), clock=clock) as broker:
        await broker.subscriptions.create_queue("q", TopicSettings(), {}, exist_ok=False)
        yield broker, await broker.directory.get("q")


async def receive(subscription: Subscription) -> int:
    portions = await subscription.receive(10, bytes_max=1 << 20, consumer="c", visibility_s=30)
    return sum(len(portion.taken.offsets) for portion in portions)


@async_test
async def test_a_queue_where_nothing_is_due_is_looked_at_every_tenth_second(tmp_path: Path) -> None:
    async with queue(tmp_path, ManualClock()) as (broker, subscription):
        looks = []
        tick = subscription.tick
        subscription.tick = lambda: looks.append(tick())  # type: ignore[method-assign]
        for _ in range(30):
            broker.directory.tick()
        assert subscription.is_resting
        assert len(looks) == 1 + 3


@async_test
async def test_a_queue_does_not_rest_while_a_lease_may_expire(tmp_path: Path) -> None:
    clock = ManualClock()
    async with queue(tmp_path, clock) as (broker, subscription):
        await publish(broker, "q", batch_of(b"one"))
        broker.directory.tick()
        assert subscription.is_resting
        assert await broker.directory.get("q") is subscription
        assert not subscription.is_resting
        assert await receive(subscription) == 1
        broker.directory.tick()
        assert not subscription.is_resting
        await clock.advance(31)
        broker.directory.tick()
        assert subscription.depth.ready + subscription.depth.delayed == 1
        assert subscription.depth.leased == 0
