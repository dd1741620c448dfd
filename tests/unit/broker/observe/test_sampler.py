"""A sample shows every queue, and opens only those that somebody has used."""

from __future__ import annotations

from pathlib import Path

from quiver.broker.broker import Broker
from quiver.metrics.sample import PartitionSample
from quiver.model.topic import TopicSettings
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import batch_of, open_broker, publish


async def create_queue(broker: Broker, name: str) -> None:
    await broker.subscriptions.create_queue(name, TopicSettings(), {}, exist_ok=False)


@async_test
async def test_a_queue_that_nobody_used_is_shown_as_empty_and_not_opened(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await create_queue(broker, "orders")
        await broker.retainer.retain()
        sample = await broker.sample()
        (partition,) = (await broker.topics.describe("orders")).partitions
        assert (partition.start_offset, partition.next_offset, partition.bytes) == (0, 0, 0)
        orders_info = await broker.subscriptions.describe("orders")
        assert (orders_info.ready, orders_info.unseen, orders_info.dead) == (0, 0, 0)
        assert broker.partition_count == 0
    assert not disk.exists("/data/topics")
    shown = {one.name: one for one in sample.subscriptions}
    assert shown.keys() == {"orders", "orders.dlq"}
    orders = shown["orders"]
    assert (orders.lag, orders.dead, orders.is_complete) == (0, 0, True)
    assert orders.partitions == [PartitionSample(topic="orders", partition=0, committed=0, lag=0)]
    assert all(one.is_complete and one.size == 0 for one in sample.topics)


@async_test
async def test_after_a_start_what_was_used_is_opened_and_nothing_else(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        for name in ("used", "unused"):
            await create_queue(broker, name)
        await publish(broker, "used", batch_of(b"one"))
    async with open_broker(tmp_path, disk) as broker:
        sample = await broker.sample()
        assert broker.partition_count == 1
    assert {one.name: one.lag for one in sample.subscriptions if one.lag} == {"used": 1}
    assert all(len(one.partitions) == 1 for one in sample.subscriptions)


@async_test
async def test_a_queue_that_is_used_between_two_samples_is_shown_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock) as broker:
        await create_queue(broker, "orders")
        await broker.sample()
        await publish(broker, "orders", batch_of(b"one"))
        await clock.advance(2)
        sample = await broker.sample()
        assert broker.partition_count == 1
    (orders,) = (one for one in sample.subscriptions if one.name == "orders")
    assert [one.lag for one in orders.partitions] == [1]
