"""A broker that ends at any step of a transaction: all of it is visible then, or nothing.

Publishes to two topics, the decision, the markers: each step is cut off, by a kill and by a loss of power.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from quiver.broker.broker import Broker
from quiver.broker.transactions.machine import Ending
from quiver.errors import DiskFull, QuiverError
from quiver.log.group_commit import LEISURE_S
from quiver.model.builder import BatchBuilder
from quiver.model.envelope import TRANSACTIONAL, ProducerStamp, seal_batch
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.model.topic import TopicSettings
from quiver.model.transaction import TransactionId, TransactionState, transaction_id
from quiver.protocol import Participant
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test, run, turns
from tests.unit.broker.broker_doubles import Gate, open_broker, payloads, publish

T = TypeVar("T")
TOPICS = ("invoices", "audit")
REACHED = [Participant(topic, 0) for topic in TOPICS]


async def begin(broker: Broker) -> TransactionId:
    producer = await broker.transactions.begin(None, owner="", names_max=0)
    return transaction_id(producer, ProducerEpoch(0))


async def write(broker: Broker, transaction: TransactionId) -> None:
    """Publish a message to each topic, in a transaction."""
    builder = BatchBuilder()
    builder.add(b"in the transaction")
    plain = builder.build()
    stamp = ProducerStamp(ProducerId(transaction >> 20), ProducerEpoch(0), Sequence(0))
    for topic in TOPICS:
        batch = seal_batch(plain.body, 1, plain.columns, stamp, TRANSACTIONAL)
        await publish(broker, topic, batch)


async def commit(broker: Broker, transaction: TransactionId) -> bool:
    ending = Ending(transaction=transaction, is_commit=True, participants=REACHED)
    return (await broker.transactions.end(ending)).is_committed


async def visible(broker: Broker) -> set[str]:
    return {topic for topic in TOPICS if await payloads(broker, topic)}


async def settle(broker: Broker, clock: ManualClock) -> None:
    """Let the partitions ask, until a transaction that nobody has ended is aborted."""
    await broker.transactions.describe(TransactionId(1))
    for topic in TOPICS:
        await broker.publisher.partition(topic, 0)
    for _ in range(70):
        await clock.advance(1.0)
        broker.transactions.tick()
        await turns(20)


class DyingGate(Gate):
    """Lets so many calls of the disk through, and none after that."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    async def __call__(self, call: Callable[[], T], /) -> T:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.EIO, "the disk is gone")
        return await super().__call__(call)


async def first_life(
    place: Path, disk: SimulatedDisk, steps: int
) -> tuple[TransactionId, bool, bool]:
    """A transaction, on a disk that fails after so many steps; whether it was committed, and failed."""
    gate, clock = DyingGate(), ManualClock()
    async with open_broker(place, disk, clock=clock, gate=gate) as broker:
        for topic in TOPICS:
            await broker.topics.create(topic, TopicSettings())
            await broker.publisher.partition(topic, 0)
        transaction = await begin(broker)
        await broker.transactions.describe(transaction)
        gate.left = steps
        is_committed = False
        try:
            await write(broker, transaction)
            async with asyncio.timeout(1):  # participants that cannot be told are told again
                is_committed = await commit(broker, transaction)
        except (QuiverError, TimeoutError):
            pass
        if is_committed:
            assert await visible(broker) == set(TOPICS), "it is answered and not visible"
        await clock.advance(2 * LEISURE_S)  # the markers
        return transaction, is_committed, gate.left < 0


async def is_all_or_nothing(place: Path, steps: int, end: str) -> tuple[bool, bool]:
    """Whether the disk failed meanwhile, and whether all is visible in the end."""
    disk = SimulatedDisk(steps)
    transaction, is_committed, has_failed = await first_life(place, disk, steps)
    getattr(disk, end)()
    clock = ManualClock()
    async with open_broker(place, disk, clock=clock) as broker:
        if is_committed:
            assert await visible(broker) == set(TOPICS), "what was visible is not any more"
        await settle(broker, clock)
        seen = await visible(broker)
        assert seen in (set(), set(TOPICS)), f"half of it is visible: {seen}"
        assert seen or not is_committed, "what was committed is gone"
        state = await broker.transactions.describe(transaction)
        assert (state is TransactionState.COMMITTED) == bool(seen)
    return has_failed, bool(seen)


def folder(within: Path, number: int) -> Path:
    made = within / str(number)
    made.mkdir()
    return made


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_a_broker_that_ends_at_any_step_shows_all_or_nothing(end: str, tmp_path: Path) -> None:
    outcomes, steps = [], 0
    while True:
        has_failed, is_visible = run(is_all_or_nothing(folder(tmp_path, steps), steps, end))
        if not has_failed:
            break
        outcomes.append(is_visible)
        steps += 1
    assert outcomes == [False, False, False, True, True]  # two batches, the decision, two markers
    assert is_visible


@async_test
async def test_a_disk_that_fills_up_before_the_commit_shows_nothing_of_it(tmp_path: Path) -> None:
    disk, clock = SimulatedDisk(1), ManualClock()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        for topic in TOPICS:
            await broker.topics.create(topic, TopicSettings())
        transaction = await begin(broker)
        await write(broker, transaction)
        await broker.transactions.describe(transaction)
        disk.fail("append", errno.ENOSPC, times=None)
        with pytest.raises(DiskFull):
            await commit(broker, transaction)
        assert await visible(broker) == set()
        disk.heal()
        with contextlib.suppress(QuiverError):
            await commit(broker, transaction)  # the partition is not open again yet
        await settle(broker, clock)
        assert await visible(broker) == set()
        assert await broker.transactions.describe(transaction) is TransactionState.ABORTED


@async_test
async def test_a_commit_that_met_a_full_disk_can_be_repeated(tmp_path: Path) -> None:
    disk, clock = SimulatedDisk(1), ManualClock()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        for topic in TOPICS:
            await broker.topics.create(topic, TopicSettings())
        transaction = await begin(broker)
        await write(broker, transaction)
        await broker.transactions.describe(transaction)
        disk.fail("append", errno.ENOSPC, times=None)
        with pytest.raises(DiskFull):
            await commit(broker, transaction)
        disk.heal()
        for _ in range(10):
            await clock.advance(1.0)
            with contextlib.suppress(QuiverError):
                if await commit(broker, transaction):
                    break
        assert await visible(broker) == set(TOPICS)
