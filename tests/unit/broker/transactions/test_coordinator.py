"""A coordinator over a real partition: nobody hears of a decision that is not durable."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quiver.broker.broker import Broker
from quiver.broker.topics.internal_topics import TRANSACTIONS
from quiver.broker.transactions import transaction_log
from quiver.broker.transactions.completions import COMPLETE_S
from quiver.broker.transactions.coordinator import (
    TransactionCoordinator,
    TransactionCounts,
)
from quiver.broker.transactions.machine import Ending
from quiver.broker.transactions.outcome_sender import Outcomes
from quiver.errors import (
    DiskFull,
    PartitionUnavailable,
    QuiverError,
    TopicNotFound,
    TransactionError,
    TransactionTimedOut,
)
from quiver.model.ids import ProducerEpoch, ProducerId
from quiver.model.transaction import TransactionId, TransactionState, transaction_id
from quiver.protocol import Participant
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test, turns
from tests.unit.broker.broker_doubles import Gate, open_broker, until

ORDERS, AUDIT = Participant("orders", 0), Participant("audit", 3)


def transaction(epoch: int = 0) -> TransactionId:
    return transaction_id(ProducerId(7), ProducerEpoch(epoch))


def commit(epoch: int, *participants: Participant, age_s: float = 0) -> Ending:
    return Ending(
        transaction=transaction(epoch),
        is_commit=True,
        participants=list(participants),
        age_us=round(age_s * 1_000_000),
    )


class Partitions:
    """Participants that note what they are told, and fail if they are to."""

    def __init__(self) -> None:
        self.told: dict[Participant, Outcomes] = {}
        self.calls = 0
        self.error: QuiverError | None = None
        self.durable: asyncio.Future[None] | None = None

    async def close(
        self, participant: Participant, outcomes: Outcomes
    ) -> asyncio.Future[None] | None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        self.told.setdefault(participant, {}).update(outcomes)
        return self.durable


@asynccontextmanager
async def coordinator(
    broker: Broker, partitions: Partitions, clock: ManualClock | None = None
) -> AsyncIterator[TransactionCoordinator]:
    record = await broker.topics.internal(TRANSACTIONS)
    partition = await broker._partitions.get(record, 0)
    opened = await TransactionCoordinator.open(
        partition, partitions.close, TransactionCounts(), clock or ManualClock()
    )
    try:
        yield opened
    finally:
        await opened.close()


@async_test
async def test_a_commit_is_answered_when_all_participants_know(tmp_path: Path) -> None:
    partitions = Partitions()
    async with (
        open_broker(tmp_path, SimulatedDisk(1)) as broker,
        coordinator(broker, partitions) as one,
    ):
        ended = await one.end(commit(0, ORDERS, AUDIT))
        assert (ended.is_committed, ended.is_complete) == (True, True)
        assert partitions.told == {ORDERS: {transaction(): True}, AUDIT: {transaction(): True}}


@async_test
async def test_a_commit_is_answered_when_readers_see_it_and_complete_when_it_is_durable(
    tmp_path: Path,
) -> None:
    partitions, clock = Partitions(), ManualClock()
    partitions.durable = asyncio.get_running_loop().create_future()
    async with (
        open_broker(tmp_path, SimulatedDisk(1)) as broker,
        coordinator(broker, partitions, clock) as one,
    ):
        assert (await one.end(commit(0, ORDERS))).is_complete
        assert (await one.end(commit(0, ORDERS))).is_complete
        assert one.unfinished_count == 1
        assert [told.participants for told in one._machine.undelivered()] == [[ORDERS]]
        partitions.durable.set_result(None)
        await turns()
        assert one.unfinished_count == 0


@async_test
async def test_a_participant_that_could_not_make_it_durable_is_told_again(tmp_path: Path) -> None:
    partitions, clock = Partitions(), ManualClock()
    partitions.durable = asyncio.get_running_loop().create_future()
    async with (
        open_broker(tmp_path, SimulatedDisk(1)) as broker,
        coordinator(broker, partitions, clock) as one,
    ):
        await one.end(commit(0, ORDERS))
        lost, partitions.durable = partitions.durable, None
        lost.set_exception(PartitionUnavailable("its disk is gone"))
        await until(lambda: one.unfinished_count == 0)
        assert partitions.calls == 2


@async_test
async def test_nobody_hears_of_a_decision_before_it_is_durable(tmp_path: Path) -> None:
    partitions, gate = Partitions(), Gate()
    async with (
        open_broker(tmp_path, SimulatedDisk(1), gate=gate) as broker,
        coordinator(broker, partitions) as one,
    ):
        gate.shut()
        ending = asyncio.ensure_future(one.end(commit(0, ORDERS)))
        await turns()
        asked = [
            asyncio.ensure_future(one.resolve([transaction()])),
            asyncio.ensure_future(one.describe(transaction())),
            asyncio.ensure_future(one.end(commit(0, ORDERS))),
        ]
        await turns()
        assert not ending.done()
        assert not any(task.done() for task in asked)
        assert partitions.calls == 0
        gate.open()
        assert (await ending).is_committed
        assert await asked[0] == {transaction(): TransactionState.COMMITTED}
        assert await asked[1] is TransactionState.COMMITTED


@async_test
async def test_decisions_of_one_moment_share_one_entry_and_one_call(tmp_path: Path) -> None:
    partitions = Partitions()
    async with (
        open_broker(tmp_path, SimulatedDisk(1)) as broker,
        coordinator(broker, partitions) as one,
    ):
        await asyncio.gather(*(one.end(commit(epoch, ORDERS)) for epoch in range(64)))
        log = one._log.partition.log
        entries = await log.read(log.start_offset, 1 << 20)
        assert [entry.count for entry in entries] == [64]
        assert partitions.calls == 1


@async_test
async def test_a_participant_that_fails_is_told_until_it_knows(tmp_path: Path) -> None:
    partitions, clock = Partitions(), ManualClock()
    partitions.error = PartitionUnavailable("its leader is gone")
    async with (
        open_broker(tmp_path, SimulatedDisk(1)) as broker,
        coordinator(broker, partitions, clock) as one,
    ):
        ending = asyncio.ensure_future(one.end(commit(0, ORDERS)))
        await until(lambda: partitions.calls == 1)
        await clock.advance(COMPLETE_S)
        ended = await ending
        assert (ended.is_committed, ended.is_complete) == (True, False)
        again = asyncio.ensure_future(one.end(commit(0, ORDERS)))
        await turns()
        partitions.error = None
        await clock.advance(COMPLETE_S - 0.1)
        assert (await again).is_complete
        assert partitions.told == {ORDERS: {transaction(): True}}


@async_test
async def test_a_topic_that_was_deleted_takes_part_no_more(tmp_path: Path) -> None:
    partitions, clock = Partitions(), ManualClock()
    partitions.error = TopicNotFound("there is no topic named 'orders'")
    async with (
        open_broker(tmp_path, SimulatedDisk(1)) as broker,
        coordinator(broker, partitions, clock) as one,
    ):
        ending = asyncio.ensure_future(one.end(commit(0, ORDERS)))
        await turns()
        await clock.advance(COMPLETE_S - 0.1)
        assert (await ending).is_complete
        assert one.unfinished_count == 0


@async_test
async def test_the_next_one_tells_whom_the_last_one_could_not(tmp_path: Path) -> None:
    partitions, disk = Partitions(), SimulatedDisk(1)
    partitions.error = PartitionUnavailable("its leader is gone")
    async with (
        open_broker(tmp_path, disk) as broker,
        coordinator(broker, partitions) as one,
    ):
        ending = asyncio.ensure_future(one.end(commit(0, ORDERS)))
        await until(lambda: partitions.calls == 1)
    assert not (await ending).is_complete
    partitions.error = None
    async with open_broker(tmp_path, disk) as broker, coordinator(broker, partitions) as one:
        await until(lambda: one.unfinished_count == 0)
        assert partitions.told == {ORDERS: {transaction(): True}}
        assert (await one.end(commit(0, ORDERS))).is_complete


@async_test
async def test_a_write_that_fails_decides_nothing(tmp_path: Path) -> None:
    partitions, disk = Partitions(), SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        async with coordinator(broker, partitions) as one:
            await one.end(commit(0, ORDERS))
            disk.fail("append", errno.ENOSPC, times=None)
            with pytest.raises(DiskFull):
                await one.end(commit(1, ORDERS))
            with pytest.raises(DiskFull):
                await one.describe(transaction(1))
            assert not one.serves(one._log.partition)
        assert partitions.told == {ORDERS: {transaction(): True}}
        disk.heal()
    async with open_broker(tmp_path, disk) as broker, coordinator(broker, partitions) as one:
        assert await one.describe(transaction()) is TransactionState.COMMITTED
        assert await one.describe(transaction(1)) is TransactionState.UNKNOWN


@async_test
async def test_what_is_open_for_too_long_is_aborted(tmp_path: Path) -> None:
    partitions, clock = Partitions(), ManualClock()
    async with (
        open_broker(tmp_path, SimulatedDisk(1)) as broker,
        coordinator(broker, partitions, clock) as one,
    ):
        await one.join(transaction(), 60_000_000, [ORDERS])
        await clock.advance(60)
        one.tick()
        await until(lambda: ORDERS in partitions.told)
        assert partitions.told[ORDERS] == {transaction(): False}
        with pytest.raises(TransactionTimedOut):
            await one.end(commit(0, ORDERS))


@async_test
async def test_an_abort_of_a_committed_one_says_so(tmp_path: Path) -> None:
    async with (
        open_broker(tmp_path, SimulatedDisk(1)) as broker,
        coordinator(broker, Partitions()) as one,
    ):
        await one.end(commit(0))
        with pytest.raises(TransactionError, match="committed already"):
            await one.end(Ending(transaction=transaction(), is_commit=False))


@async_test
async def test_a_checkpoint_drops_what_is_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_log, "CHECKPOINT_BYTES", 1000)
    partitions, disk, clock = Partitions(), SimulatedDisk(1), ManualClock()
    async with (
        open_broker(tmp_path, disk) as broker,
        coordinator(broker, partitions, clock) as one,
    ):
        for epoch in range(100):
            await one.end(commit(epoch, ORDERS))
        one.tick()
        log = one._log.partition.log
        await until(lambda: log.start_offset > 0)
        assert log.start_offset == 200  # the decisions, and that each is complete
    async with open_broker(tmp_path, disk) as broker, coordinator(broker, partitions) as one:
        for epoch in range(100):
            assert await one.describe(transaction(epoch)) is TransactionState.COMMITTED
        assert one.unfinished_count == 0
