"""The leader's part of a split: it has happened or it has not, whatever the metadata store says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quiver.broker.broker import Broker
from quiver.cluster.metadata.store import Delete, Expect, MetadataStore, Put
from quiver.errors import (
    MetadataConflict,
    MetadataUnavailable,
    PartitionUnavailable,
    SequenceGap,
    StaleLayout,
)
from quiver.model.batch import UnstoredBatch
from quiver.model.topic import TopicSettings
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test, turns
from tests.unit.broker.broker_doubles import (
    Gate,
    batch_of,
    data_of,
    open_broker,
    payloads,
    stamp,
    until,
)


class Faulty:
    """A store whose commits of topics can be held up, answered wrongly, or made much later."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.fates = ["well"]
        """What befalls the next commits of topics, one after another; the last goes on."""
        self.late: list[tuple[Sequence[Expect], Sequence[Put | Delete]]] = []
        self.attempts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> int:
        is_topic = any(change.key.startswith("topics/") for change in changes)
        fate, self.attempts = self._next_fate() if is_topic else "well", self.attempts + is_topic
        if fate == "lost":
            raise MetadataUnavailable
        if fate == "late":
            self.late.append((expects, changes))
            raise MetadataUnavailable
        revision = await self._store.commit(expects, changes)
        if fate == "unanswered":
            raise MetadataUnavailable
        return revision

    def _next_fate(self) -> str:
        return self.fates.pop(0) if len(self.fates) > 1 else self.fates[0]

    async def arrive(self) -> int:
        """What was on its way is there now."""
        return await self._store.commit(*self.late.pop())


async def publish(broker: Broker, batch: UnstoredBatch, layout: int, partition: int = 0) -> Any:
    """Publish a batch that was routed by a layout."""
    offer = broker.publisher.offer("orders", data_of(batch), layout, partition)
    placed, _ = broker.publisher.store(await broker.publisher.partition("orders", partition), offer)
    return await placed


async def is_refused(broker: Broker, layout: int) -> bool:
    try:
        await publish(broker, batch_of(b"x"), layout)
    except StaleLayout:
        return True
    return False


@async_test
async def test_a_batch_that_was_stored_before_the_split_is_acknowledged_after_it(
    tmp_path: Path,
) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await broker.topics.create("orders", TopicSettings())
        before = batch_of(b"a", b"b", stamped=stamp(1, 0))
        first = await publish(broker, before, 1)
        await broker.topics.split("orders", 0, 1)
        again = await publish(broker, before, 1)
        assert again.base_offset == first.base_offset == 0
        with pytest.raises(StaleLayout) as refused:
            await publish(broker, batch_of(b"c", stamped=stamp(1, 2)), 1)
        assert refused.value.details == {"layout": 2}
        with pytest.raises(SequenceGap):  # it comes after one that was refused
            await publish(broker, batch_of(b"d", stamped=stamp(1, 3)), 1)
        assert await payloads(broker, "orders") == [b"a", b"b"]


@async_test
async def test_batches_of_partitions_that_did_not_change_are_taken_by_the_old_layout(
    tmp_path: Path,
) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await broker.topics.create("orders", TopicSettings(partitions=2))
        await broker.topics.split("orders", 0, 1)
        assert await is_refused(broker, 1)
        assert not await is_refused(broker, 2)
        await publish(broker, batch_of(b"x"), 1, partition=1)
        await publish(broker, batch_of(b"x"), 0)  # it has no keys


@async_test
async def test_whoever_asks_twice_has_it_split_once(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await broker.topics.create("orders", TopicSettings())
        for _ in range(2):
            info = await broker.topics.split("orders", 0, 1)
            assert len(info.partitions) == 2
        both = await asyncio.gather(*(broker.topics.split("orders", 0, 2) for _ in range(2)))
        assert [len(info.partitions) for info in both] == [3, 3]


@async_test
async def test_everything_before_the_split_is_stored_before_it_is_made(tmp_path: Path) -> None:
    gate, disk = Gate(), SimulatedDisk(1)
    async with open_broker(tmp_path, disk, gate=gate) as broker:
        await broker.topics.create("orders", TopicSettings())
        partition = await broker.publisher.partition("orders", 0)
        gate.shut()
        offer = broker.publisher.offer("orders", data_of(batch_of(b"x", b"y")), 1)
        placed, _ = broker.publisher.store(partition, offer)
        splitting = asyncio.create_task(broker.topics.split("orders", 0, 1))
        await turns()
        held = broker.publisher.offer("orders", data_of(batch_of(b"z")), 1)
        with pytest.raises(StaleLayout) as refused:
            broker.publisher.store(partition, held)
        assert refused.value.details == {}  # it is not decided yet
        assert not splitting.done()
        gate.open()
        info = await splitting
        assert (placed.done(), info.partitions[1].parent_offset) == (True, 2)


@async_test
async def test_a_commit_that_was_made_and_not_answered_is_found(tmp_path: Path) -> None:
    stores: list[Faulty] = []
    async with open_broker(tmp_path, SimulatedDisk(1), wrap=faulty(stores)) as broker:
        await broker.topics.create("orders", TopicSettings())
        stores[0].fates = ["unanswered", "well"]
        info = await broker.topics.split("orders", 0, 1)
        assert len(info.partitions) == 2
        assert await is_refused(broker, 1)
        assert not await is_refused(broker, 2)


@async_test
async def test_until_it_is_certain_whether_a_commit_was_made_nothing_is_taken(
    tmp_path: Path,
) -> None:
    stores, clock = list[Faulty](), ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock, wrap=faulty(stores)) as broker:
        await broker.topics.create("orders", TopicSettings())
        (store,) = stores
        store.fates = ["late", "lost"]
        splitting = asyncio.create_task(broker.topics.split("orders", 0, 1))
        await until(lambda: store.attempts == 3)  # what it does to be certain fails, too
        assert await is_refused(broker, 1)
        assert not splitting.done()
        store.fates = ["well"]
        await passed(clock, splitting)
        with pytest.raises(PartitionUnavailable, match="was not split"):
            await splitting
        # Only now are batches taken again, and what arrives late does not happen any more.
        assert not await is_refused(broker, 1)
        with pytest.raises(MetadataConflict):
            await store.arrive()
        assert len((await broker.topics.describe("orders")).partitions) == 1
        assert len((await broker.topics.split("orders", 0, 1)).partitions) == 2


@async_test
async def test_a_split_of_which_nobody_knows_does_not_keep_a_node_from_ending(
    tmp_path: Path,
) -> None:
    stores, clock = list[Faulty](), ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock, wrap=faulty(stores)) as broker:
        await broker.topics.create("orders", TopicSettings())
        stores[0].fates = ["lost"]
        splitting = asyncio.create_task(broker.topics.split("orders", 0, 1))
        await until(lambda: stores[0].attempts == 3)
        closing = asyncio.create_task(broker.close())
        await passed(clock, closing)
        await closing
        with pytest.raises(PartitionUnavailable):
            await splitting


async def passed(clock: ManualClock, task: asyncio.Task[Any]) -> None:
    """Time goes on until the task is done: it may not sleep yet when it is looked at."""
    for _ in range(10_000):
        if task.done():
            return
        await clock.advance(1)
        await asyncio.sleep(0.001)


def faulty(made: list[Faulty]) -> Any:
    def wrap(store: MetadataStore) -> Any:
        made.append(Faulty(store))
        return made[-1]

    return wrap
