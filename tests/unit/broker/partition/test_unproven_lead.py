"""A node that leads a partition and cannot prove it for a moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quiver.broker.broker import Broker
from quiver.broker.subscription.subscription import Subscription
from quiver.errors import NotLeader
from quiver.model.ids import Offset
from quiver.model.topic import TopicSettings
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import batch_of, open_broker, publish
from tests.unit.broker.partition.transactions import open_partition
from tests.unit.broker.partition.transactions import publish as publish_in_transaction


async def received(broker: Broker) -> int:
    """How many messages a consumer gets of the queue."""
    subscription: Subscription = await broker.directory.get("q")
    portions = await subscription.receive(10, bytes_max=1 << 20, consumer="c", visibility_s=None)
    return sum(len(portion.taken.offsets) for portion in portions)


@asynccontextmanager
async def unproven(folder: Path) -> AsyncIterator[tuple[Broker, Callable[[], None]]]:
    """A broker with a queue of which it cannot prove that it leads it, until that is called."""
    async with open_broker(folder, SimulatedDisk(1)) as broker:
        await broker.subscriptions.create_queue("q", TopicSettings(), {}, exist_ok=False)
        storage: Any = broker._partitions._store
        opened = storage.open

        async def refuse(*_: Any) -> None:
            raise NotLeader("this node may no longer be the leader")

        def prove() -> None:
            storage.open = opened

        storage.open = refuse
        storage.is_unused = lambda _: False  # as where partitions have replicas
        yield broker, prove


@async_test
async def test_its_queues_deliver_as_soon_as_it_can_prove_it(tmp_path: Path) -> None:
    async with unproven(tmp_path) as (broker, prove):
        assert await received(broker) == 0
        prove()
        await publish(broker, "q", batch_of(b"one"))
        assert await received(broker) == 1


@async_test
async def test_nobody_is_told_that_a_queue_is_empty_which_it_cannot_look_into(
    tmp_path: Path,
) -> None:
    async with unproven(tmp_path) as (broker, prove):
        with pytest.raises(NotLeader):
            await broker.subscriptions.describe("q")
        prove()
        await publish(broker, "q", batch_of(b"one"))
        seen = await broker.subscriptions.describe("q")
        assert (seen.ready, seen.unseen) in ((0, 1), (1, 0))


@pytest.mark.parametrize("offset", [0, 1, 2])
@async_test
async def test_a_reader_is_not_told_that_there_is_nothing_more(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether before, at or behind the first open transaction: the next leader may have more."""
    partition = await open_partition(SimulatedDisk(1))
    await publish_in_transaction(partition, b"in none")
    await publish_in_transaction(partition, b"in one", producer=1, sequence=0)

    async def refuse(*_: Any, **__: Any) -> None:
        raise NotLeader("this node may no longer be the leader")

    monkeypatch.setattr(partition.log, "read", refuse)
    with pytest.raises(NotLeader):
        await partition.committed.read(Offset(offset))
    monkeypatch.undo()
    await partition.close()
