"""Queues over restarts, orderly and not: what was confirmed holds, leases and attempts go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quiver
from quiver.broker.delivery.partition_delivery import PartitionDelivery
from quiver.broker.subscription.catalog import SubscriptionRecord
from quiver.broker.subscription.directory import SubscriptionDirectory
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.integration.client_node import ProcessNode
from tests.integration.queue_node import clocked

pytestmark = pytest.mark.process


class Restartable:
    """A node that is stopped or killed and started again; its clients find it at the same place."""

    def __init__(self, folder: Path, *, kill: bool) -> None:
        self._node = ProcessNode(folder)
        self._kill = kill
        self._node.start()
        self.client = quiver.Client(self._node.url)

    def restart(self) -> None:
        if self._kill:
            self._node.kill()
        else:
            self._node.stop()
        self._node.start()

    def close(self) -> None:
        self.client.close()
        self._node.close()


@pytest.fixture(params=["stopped", "killed"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Restartable]:
    restartable = Restartable(tmp_path / "data", kill=request.param == "killed")
    try:
        yield restartable
    finally:
        restartable.close()


def test_acknowledgements_leases_and_receipts_hold_over_a_restart(node: Restartable) -> None:
    q = node.client
    q.create_queue("jobs", partitions=2, visibility="1h", guarantee="exactly-once")
    q.publish_many("jobs", [b"%d" % n for n in range(100)])
    held = q.receive("jobs", 50)
    q.ack("jobs", held[:30])
    node.restart()
    rest = q.receive("jobs", 100)
    assert {m.payload for m in rest}.isdisjoint(m.payload for m in held)
    assert len(rest) == 50
    q.ack("jobs", held[30:])
    q.ack("jobs", rest)
    node.restart()
    info = q.describe_subscription("jobs")
    assert (info.ready, info.leased, info.delayed, info.unseen) == (0, 0, 0, 0)


def test_attempts_count_over_restarts_so_poison_reaches_the_dead_letters(
    node: Restartable,
) -> None:
    q = node.client
    q.create_queue("jobs", max_deliveries=2)
    q.create_subscription("mourner", ["jobs.dlq"])
    q.publish("jobs", b"poison")
    for attempt in (1, 2):
        (message,) = q.receive("jobs", wait=20)
        assert message.deliveries == attempt
        message.nack(error="bad")
        node.restart()
    q.describe_subscription("jobs")
    letters = q.receive_batch("mourner", wait=20).to_pylist()
    assert [(row["payload"], row["last_error"]) for row in letters] == [(b"poison", "bad")]


def test_order_by_key_holds_over_a_restart(node: Restartable) -> None:
    q = node.client
    q.create_queue("jobs", ordering="key", visibility="1h", guarantee="exactly-once")
    q.publish_many("jobs", [{"payload": b"%d" % n, "key": "ab"[n % 2]} for n in range(6)])
    (first,) = q.receive("jobs", 1)
    node.restart()
    others = q.receive("jobs", 10)
    assert {m.key for m in others}.isdisjoint({first.key})
    first.ack()
    following = q.receive("jobs", 1, wait=20)
    assert [int(m.payload) for m in following] == [int(first.payload) + 2]


@async_test
async def test_leases_that_ended_while_the_node_was_down_have_ended_when_it_is_asked(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", visibility="30s", backoff={"min": 0})
        await q.publish_many("jobs", [b"1", b"2"])
        assert len(await q.receive("jobs", 2)) == 2
    await clock.advance(31)
    async with clocked(tmp_path, clock) as q:
        described = await q.describe_subscription("jobs")
        assert (described.ready, described.leased) == (2, 0)


@async_test
async def test_an_ack_that_comes_first_after_a_restart_counts_though_its_lease_has_ended(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", visibility="30s", max_deliveries=1)
        await q.publish("jobs", b"1")
        (message,) = await q.receive("jobs", 1)
    await clock.advance(31)
    async with clocked(tmp_path, clock) as q:
        await q.ack("jobs", [message.receipt])
        described = await q.describe_subscription("jobs")
        assert (described.ready, described.leased, described.dead) == (0, 0, 0)


@async_test
async def test_a_worker_has_time_to_come_back_after_all_partitions_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with clocked(tmp_path / "killed", clock) as q:
        await q.create_topic("jobs", partitions=2)
        await q.create_subscription("work", ["jobs"], start="earliest", visibility="30m")
        await q.publish("jobs", b"1", partition=0)
        consumer = q.consume("work")
        message = await anext(consumer)
        await q.create_subscription("other", ["jobs"], start="earliest")
        await q.ack("other", await q.receive("other", 1))  # stored, and with it what was leased
        shutil.copytree(tmp_path / "killed", tmp_path / "started")
        await consumer.aclose()
    open_one = SubscriptionDirectory._delivery

    async def slowly(
        self: SubscriptionDirectory, record: SubscriptionRecord, *args: Any
    ) -> PartitionDelivery:
        opened = await open_one(self, record, *args)
        if record.name == "work":
            await clock.advance(3)
        return opened

    monkeypatch.setattr(SubscriptionDirectory, "_delivery", slowly)
    async with clocked(tmp_path / "started", clock) as q:
        assert (await q.describe_subscription("work")).leased == 1
        await q.ack("work", [message.receipt])
        assert (await q.describe_subscription("work")).leased == 0
