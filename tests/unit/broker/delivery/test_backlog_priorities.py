"""Priorities of a backlog: an urgent message goes first, however the node came to know of it."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from quiver.broker.broker import Broker
from quiver.broker.delivery import look_ahead
from quiver.broker.subscription.subscription import Subscription
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import BatchBuilder
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import data_of, open_broker, publish

BATCHES, EACH, SIZE = 60, 50, 1000
"""3 MB, which is more than one look at the disk shows."""
PLAIN = b"." * SIZE


def messages(payloads: Iterable[bytes], **columns: Any) -> UnstoredBatch:
    builder = BatchBuilder()
    for payload in payloads:
        builder.add(payload, **columns)
    return builder.build()


async def fill(broker: Broker, **columns: Any) -> None:
    """A backlog of plain messages, then one that is urgent."""
    for _ in range(BATCHES):
        await publish(broker, "jobs", messages([PLAIN] * EACH, **columns))
    await publish(broker, "jobs", messages([b"urgent"], priority=9, **columns))


async def first(broker: Broker, name: str = "jobs", limit: int = 1) -> list[bytes]:
    """The payloads of what a receive gets now."""
    return await received(await broker.directory.get(name), limit)


async def received(subscription: Subscription, limit: int = 1) -> list[bytes]:
    portions = await subscription.receive(limit, bytes_max=1 << 20, consumer="", visibility_s=None)
    return [
        payload
        for portion in portions
        for entry in portion.entries
        for payload in entry.record_batch().column("payload").to_pylist()
    ]


def kill(disk: SimulatedDisk) -> None:
    """The process ends here: what follows in its program changes nothing on the disk."""
    disk.kill()
    disk.fail("create", errno.EIO, times=None)


async def create(broker: Broker, **settings: Any) -> None:
    await broker.subscriptions.create_queue("jobs", TopicSettings(), settings, exist_ok=False)


@pytest.mark.parametrize(
    "settings", [{}, {"filter": "headers.kind = 'job'"}, {"fairness": "headers.kind"}]
)
@async_test
async def test_an_urgent_message_goes_first_after_a_crash(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await create(broker, **settings)
        await fill(broker, headers={"kind": "job"})
        kill(disk)
    disk.heal()
    async with open_broker(tmp_path, disk) as broker:
        assert await first(broker) == [b"urgent"]


@async_test
async def test_an_urgent_message_goes_first_after_a_seek(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await create(broker)
        await fill(broker)
        while await first(broker, limit=1000):
            pass
        subscription = await broker.directory.get("jobs")
        for delivery in subscription.deliveries.values():
            delivery.seek(delivery.state.data.start_offset)
        assert await first(broker) == [b"urgent"]


@async_test
async def test_a_new_subscription_from_earliest_begins_with_what_is_urgent(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await broker.topics.create("jobs", TopicSettings(), exist_ok=False)
        await fill(broker)
        kill(disk)
    disk.heal()
    async with open_broker(tmp_path, disk) as broker:
        settings = SubscriptionSettings(topics=["jobs"])
        await broker.subscriptions.create("late", settings, start="earliest")
        assert await first(broker, "late") == [b"urgent"]


@async_test
async def test_an_urgent_message_goes_first_however_many_are_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_ahead, "_PENDING_MAX", EACH)
    monkeypatch.setattr(look_ahead, "_KNOWN_BYTES_MAX", 10 * BATCHES * EACH)
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await create(broker)
        assert await first(broker) == []
        await fill(broker)
        assert await first(broker) == [b"urgent"]


@async_test
async def test_what_is_known_in_advance_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_ahead, "_KNOWN_BYTES_MAX", 6 * EACH)
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await create(broker)
        assert await first(broker) == []
        for _ in range(BATCHES):
            await publish(broker, "jobs", messages([PLAIN] * EACH, priority=9))
        subscription = await broker.directory.get("jobs")
        (delivery,) = subscription.deliveries.values()
        assert len(delivery.view.in_state("ready")) == 2 * EACH
        for place in range(0, BATCHES * EACH, EACH):
            assert await first(broker, limit=EACH) == [PLAIN] * EACH, place
        assert await first(broker) == []


@async_test
async def test_low_priorities_wait_after_a_crash(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await create(broker, ageing=0)
        for _ in range(BATCHES):
            await publish(broker, "jobs", messages([PLAIN] * EACH, priority=1))
        await publish(broker, "jobs", messages([b"plain"]))
        kill(disk)
    disk.heal()
    async with open_broker(tmp_path, disk) as broker:
        assert await first(broker) == [b"plain"]


@async_test
async def test_delays_and_expiries_hold_after_a_crash(tmp_path: Path) -> None:
    disk, clock = SimulatedDisk(1), ManualClock()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        await create(broker, ageing=0)
        now = clock.time_us()
        for _ in range(BATCHES):
            await publish(broker, "jobs", messages([PLAIN] * EACH))
        soon = now + 60_000_000
        await publish(broker, "jobs", messages([b"later"], priority=9, deliver_at=soon))
        await publish(broker, "jobs", messages([b"stale"], priority=8, expires_at=soon))
        await publish(broker, "jobs", messages([b"fresh"], priority=7))
        kill(disk)
    disk.heal()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        assert await first(broker) == [b"stale"]
        subscription = await broker.directory.get("jobs")
        assert [one.view.depth.delayed for one in subscription.deliveries.values()] == [1]
    await clock.advance(61)
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        assert [await first(broker) for _ in range(3)] == [[b"later"], [b"fresh"], [PLAIN]]


@async_test
async def test_a_message_for_one_subscription_stays_with_it_after_a_crash(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await create(broker)
        await broker.subscriptions.create("others", SubscriptionSettings(topics=["jobs"]))
        await fill(broker)
        redriven = messages([b"again"], priority=9, origin_subscription="jobs")
        await broker.publisher.store_batch("jobs", 0, data_of(redriven))
        kill(disk)
    disk.heal()
    async with open_broker(tmp_path, disk) as broker:
        assert await first(broker, limit=2) == [b"urgent", b"again"]
        assert await first(broker, "others", limit=2) == [PLAIN, b"urgent"]
