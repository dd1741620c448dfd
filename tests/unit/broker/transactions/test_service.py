"""Transactions on a broker: who coordinates, who is told, and who asks."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from quiver.broker.broker import Broker
from quiver.broker.topics.catalog import TopicRecord
from quiver.broker.topics.internal_topics import TRANSACTIONS
from quiver.broker.transactions import resolver
from quiver.broker.transactions.machine import Ending
from quiver.broker.transactions.service import stored_name
from quiver.errors import (
    InvalidRequest,
    InvalidSetting,
    MetadataUnavailable,
    QuotaExceeded,
    TransactionAborted,
    TransactionFenced,
)
from quiver.model.ids import ProducerEpoch, ProducerId
from quiver.model.topic import TopicSettings
from quiver.model.transaction import TransactionId, TransactionState, transaction_id
from quiver.protocol import Participant
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import batch_of, open_broker, payloads, publish, until
from tests.unit.broker.transactions.test_crashes import TOPICS, begin, visible, write


async def made(broker: Broker) -> TransactionId:
    """A transaction that has written to two topics."""
    for topic in TOPICS:
        await broker.topics.create(topic, TopicSettings())
    transaction = await begin(broker)
    await write(broker, transaction)
    return transaction


def commit(transaction: TransactionId, *told: Participant, name: str | None = None) -> Ending:
    return Ending(transaction=transaction, is_commit=True, participants=list(told), name=name)


async def ticked(broker: Broker, clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds):
        await clock.advance(1.0)


@pytest.mark.parametrize("slice_", [1, 500], ids=["many partitions", "few partitions"])
def test_a_partition_that_nobody_told_asks(
    slice_: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "_SLICE", slice_)

    @async_test
    async def check() -> None:
        clock = ManualClock()
        async with open_broker(tmp_path, SimulatedDisk(1), clock=clock) as broker:
            transaction = await made(broker)
            await broker.transactions.end(commit(transaction, Participant(TOPICS[0], 0)))
            assert await visible(broker) == {TOPICS[0]}
            await ticked(broker, clock, 3)
            assert await visible(broker) == set(TOPICS)

    check()


@async_test
async def test_a_partition_asks_again_after_the_metadata_store_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    clock = ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock) as broker:
        transaction = await made(broker)
        await broker.transactions.end(commit(transaction, Participant(TOPICS[0], 0)))

        async def unavailable() -> TopicRecord:
            raise MetadataUnavailable

        with monkeypatch.context() as patched:
            patched.setattr(broker.transactions._coordinators, "topic", unavailable)
            await ticked(broker, clock, 3)
            assert await visible(broker) == {TOPICS[0]}
        gc.collect()
        assert reported == []
        await ticked(broker, clock, 3)
        assert await visible(broker) == set(TOPICS)


@async_test
async def test_a_partition_is_opened_with_what_is_decided_and_nothing_else(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        decided, undecided = await made(broker), await begin(broker)
        await write(broker, undecided)
        await broker.transactions.end(commit(decided))
    async with open_broker(tmp_path, disk) as broker:
        for topic in TOPICS:
            assert await payloads(broker, topic) == [b"in the transaction"]
        samples = {one.name: one for one in (await broker.sample()).topics}
        assert [samples[topic].open_transactions for topic in TOPICS] == [1, 1]
        assert await broker.transactions.describe(undecided) is TransactionState.OPEN


@async_test
async def test_what_nobody_ends_is_aborted_and_readers_go_on(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock) as broker:
        transaction = await made(broker)
        await publish(broker, TOPICS[0], batch_of(b"behind it"))
        await ticked(broker, clock, 59)
        assert await payloads(broker, TOPICS[0]) == []
        assert (await broker.sample()).topics[0].open_transactions == 1
        await ticked(broker, clock, 5)
        assert await payloads(broker, TOPICS[0]) == [b"behind it"]
        assert await broker.transactions.describe(transaction) is TransactionState.ABORTED
        sample = await broker.sample()
        assert (sample.transactions_aborted, sample.transactions_committed) == (1, 0)


@async_test
async def test_the_age_of_what_holds_readers_back_is_sampled(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock) as broker:
        await made(broker)
        await clock.advance(30)
        ages = {one.name: one.transaction_age_s for one in (await broker.sample()).topics}
        assert ages == {TOPICS[0]: 30, TOPICS[1]: 30, TRANSACTIONS: 0}


@async_test
async def test_a_single_node_has_one_coordinator(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await begin(broker)
        assert len((await broker.topics.describe(TRANSACTIONS)).partitions) == 1
        with pytest.raises(InvalidRequest):
            await broker.topics.split(TRANSACTIONS, 0, 1)


@async_test
async def test_a_name_fences_over_a_restart(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        first = await broker.transactions.begin("billing", owner="ann", names_max=10)
        second = await broker.transactions.begin("billing", owner="ann", names_max=10)
        others = await broker.transactions.begin("billing", owner="bob", names_max=10)
        assert len({first, second, others}) == 3
    async with open_broker(tmp_path, disk) as broker:
        name = stored_name("billing", "ann")
        with pytest.raises(TransactionFenced):
            await broker.transactions.end(commit(id_of(first), name=name))
        assert (await broker.transactions.end(commit(id_of(second), name=name))).is_committed
        ending = commit(id_of(others), name=stored_name("billing", "bob"))
        assert (await broker.transactions.end(ending)).is_committed


@async_test
async def test_names_are_bounded_and_checked(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await broker.transactions.begin("one", owner="ann", names_max=1)
        with pytest.raises(QuotaExceeded):
            await broker.transactions.begin("two", owner="ann", names_max=1)
        for name in ("", "a" * 201, "a|b", "a b", "\n"):
            with pytest.raises(InvalidSetting):
                await broker.transactions.begin(name, owner="ann", names_max=0)


@async_test
async def test_a_coordinator_is_there_again_after_a_start_without_being_asked(
    tmp_path: Path,
) -> None:
    """It tells whom the last one could not."""
    disk, clock = SimulatedDisk(1), ManualClock()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        await made(broker)
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        await clock.advance(1.5)
        await until(lambda: bool(broker.transactions._coordinators._open))


def id_of(producer: ProducerId) -> TransactionId:
    return transaction_id(producer, ProducerEpoch(0))


@async_test
async def test_what_reached_a_topic_that_moved_to_another_cluster_is_not_committed(
    tmp_path: Path,
) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        transaction = await made(broker)
        await broker.topics.fence(TOPICS[0], "cluster us")
        ending = commit(transaction, *(Participant(topic, 0) for topic in TOPICS))
        for _ in range(2):
            with pytest.raises(TransactionAborted, match="was moved to cluster us"):
                await broker.transactions.end(ending)
        assert await broker.transactions.describe(transaction) is TransactionState.ABORTED
        assert await visible(broker) == set()
        described = await broker.topics.describe(TOPICS[0])
        assert not described.partitions[0].has_open_transactions


@async_test
async def test_what_was_committed_before_its_topic_moved_stays_committed(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        ending = commit(await made(broker), *(Participant(topic, 0) for topic in TOPICS))
        await broker.transactions.end(ending)
        await broker.topics.fence(TOPICS[0], "cluster us")
        assert (await broker.transactions.end(ending)).is_committed


@async_test
async def test_a_description_says_where_transactions_are_open(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        transaction = await made(broker)
        assert (await broker.topics.describe(TOPICS[0])).partitions[0].has_open_transactions
        await broker.transactions.end(commit(transaction, Participant(TOPICS[0], 0)))
        assert not (await broker.topics.describe(TOPICS[0])).partitions[0].has_open_transactions
