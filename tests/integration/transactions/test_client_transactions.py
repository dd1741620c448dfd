"""Transactions of the client on a real node: all of it is visible, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import quiver
from quiver import AsyncClient
from quiver.edge.node import Node
from quiver.errors import (
    StaleReceipt,
    TopicNotFound,
    TransactionFenced,
    TransactionTimedOut,
)
from quiver.model.transaction import TransactionState
from tests.integration.edge_node import config, edge_test
from tests.integration.forwarding import forwarder_of


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[AsyncClient]:
    (folder / "data").mkdir(exist_ok=True)
    node = await Node.start(config(folder))
    try:
        async with AsyncClient(f"quiver://{node.native_address}") as client:
            await client.create_queue("orders", visibility="30s", backoff={"min": 0})
            await client.create_topic("invoices", partitions=3)
            await client.create_topic("audit")
            yield client
    finally:
        await node.stop()


async def payloads(q: AsyncClient, topic: str) -> list[bytes]:
    return sorted([one.payload async for one in q.read(topic).messages()])


async def become(q: AsyncClient, topic: str, expected: list[bytes]) -> None:
    """Wait until a partition knows that a transaction before has ended."""
    while await payloads(q, topic) != expected:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.05)


@edge_test
async def test_everything_is_visible_when_a_commit_returns_and_nothing_before(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as q:
        await q.publish_many("orders", [b"1", b"2", b"3"])
        async with q.transaction() as tx:
            for message in await q.receive("orders"):
                await tx.publish("invoices", message.payload, key=message.payload)
                await tx.publish("audit", message.payload)
                tx.ack(message)
            assert await payloads(q, "invoices") == []
        assert await payloads(q, "invoices") == [b"1", b"2", b"3"]
        assert await payloads(q, "audit") == [b"1", b"2", b"3"]
        orders = await q.describe_subscription("orders")
        assert (orders.ready, orders.leased) == (0, 0)
        assert await q.describe_transaction(tx.id) is TransactionState.COMMITTED


@edge_test
async def test_after_an_abort_there_is_nothing_and_the_input_comes_again(tmp_path: Path) -> None:
    async with place(tmp_path) as q:
        await q.publish("orders", b"1")
        (message,) = await q.receive("orders")
        tx = await q.transaction()
        await tx.publish("invoices", b"1")
        tx.ack(message)
        await tx.hold()
        await tx.abort()
        assert await payloads(q, "invoices") == []
        (again,) = await q.receive("orders", wait="10s")
        assert (again.offset, again.deliveries) == (message.offset, 1)
        assert await q.describe_transaction(tx.id) is TransactionState.ABORTED


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("ordering", ["none", "key", "partition"])
@edge_test
async def test_a_consumer_takes_each_order_once_with_its_results(
    guarantee: str, ordering: str, tmp_path: Path
) -> None:
    count = 40
    async with place(tmp_path) as q:
        await q.create_queue("work", guarantee=guarantee, ordering=ordering, backoff={"min": 0})
        await q.publish_many(
            "work", [{"payload": b"%04d" % n, "key": b"%d" % (n % 3)} for n in range(count)]
        )
        done, failures = 0, {7, 20}
        async with q.consumer("work") as messages:
            async for message in messages:
                number = int(message.payload)
                try:
                    async with q.transaction() as tx:
                        await tx.publish("audit", message.payload, key=message.key)
                        tx.ack(message)
                        if number in failures:
                            failures.discard(number)
                            raise ValueError("once")
                except ValueError:
                    continue
                done += 1
                if done == count:
                    break
        stored = [one.payload async for one in q.read("audit").messages()]
        assert sorted(stored) == [b"%04d" % n for n in range(count)]
        if ordering == "partition":
            assert stored == sorted(stored), "an abort does not let others overtake"
        work = await q.describe_subscription("work")
        assert (work.ready, work.leased, work.delayed) == (0, 0, 0)


@edge_test
async def test_a_loop_that_is_left_inside_the_transaction_loses_nothing(tmp_path: Path) -> None:
    async with place(tmp_path) as q:
        await q.publish_many("orders", [b"1", b"2", b"3"])
        async with q.transaction() as tx, q.consumer("orders") as messages:
            async for message in messages:
                await tx.publish("audit", message.payload)
                tx.ack(message)
                break
        assert await payloads(q, "audit") == [b"1"]
        rest = await q.receive("orders", wait="5s")
        assert [message.payload for message in rest] == [b"2", b"3"]
        assert [message.deliveries for message in rest] == [1, 1]


@edge_test
async def test_messages_are_not_given_to_others_while_the_transaction_is_open(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as q:
        await q.create_queue("short", visibility="2s", backoff={"min": 0})
        await q.publish("short", b"1")
        (message,) = await q.receive("short")
        async with q.transaction() as tx:
            tx.ack(message)
            assert await q.receive("short", wait="4s") == [], "its lease would have ended by now"
        assert await q.receive("short", wait="1s") == []


@edge_test
async def test_a_lease_that_ended_before_fails_the_commit_and_undoes_the_rest(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as q:
        await q.create_queue("short", visibility="1s", backoff={"min": 0})
        await q.publish("short", b"1")
        (message,) = await q.receive("short")
        (again,) = await q.receive("short", wait="10s")
        tx = await q.transaction()
        await tx.publish("audit", b"1")
        tx.ack(message)
        with pytest.raises(StaleReceipt, match="offset 0 of 'short'"):
            await tx.commit()
        assert await payloads(q, "audit") == []
        await again.ack()


@edge_test
async def test_a_client_with_the_same_name_fences_the_one_before(tmp_path: Path) -> None:
    async with place(tmp_path) as q, AsyncClient(q.url) as other:
        old = await q.transaction("billing")
        await old.publish("audit", b"old")
        async with other.transaction("billing") as new:
            await new.publish("audit", b"new")
        with pytest.raises(TransactionFenced):
            await old.commit()
        await become(q, "audit", [b"new"])


@edge_test
async def test_after_its_time_limit_a_transaction_is_aborted_and_holds_nobody_up(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as q:
        tx = await q.transaction(timeout="2s")
        await tx.publish("audit", b"late")
        await q.publish("audit", b"after")
        assert await payloads(q, "audit") == []
        await become(q, "audit", [b"after"])
        with pytest.raises(TransactionTimedOut):
            await tx.commit()
        assert await payloads(q, "audit") == [b"after"]


@edge_test
async def test_a_topic_that_is_deleted_meanwhile_undoes_all(tmp_path: Path) -> None:
    async with place(tmp_path) as q:
        await q.create_topic("gone")
        tx = await q.transaction()
        await (await tx.publish("audit", b"x"))
        await (await tx.publish("gone", b"x"))
        await q.delete_topic("gone")
        await tx.publish("gone", b"y")
        with pytest.raises(TopicNotFound):
            await tx.commit()
        assert await payloads(q, "audit") == []


@edge_test
async def test_tables_dedup_ids_delays_and_priorities_work_in_a_transaction(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as q:
        async with q.transaction() as tx:
            await tx.publish_table(
                "invoices", pa.table({"payload": [b"a", b"b"], "key": [b"1", b"2"]})
            )
            await tx.publish("orders", b"later", delay="1h")
            await tx.publish("orders", b"now", priority=9, dedup_id="once")
            await tx.publish("orders", b"again", dedup_id="once")
        assert await payloads(q, "invoices") == [b"a", b"b"]
        assert [one.payload for one in await q.receive("orders", wait="5s")] == [b"now"]


@edge_test
async def test_many_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    async with place(tmp_path) as q:

        async def one(number: int) -> None:
            for part in range(5):
                async with q.transaction() as tx:
                    await tx.publish("invoices", b"%d-%d" % (number, part), key=str(number))
                    if number % 4 == 0:
                        await tx.abort()

        await asyncio.gather(*map(one, range(32)))
        expected = [b"%d-%d" % (n, part) for n in range(32) if n % 4 for part in range(5)]
        assert await payloads(q, "invoices") == sorted(expected)


@edge_test
async def test_a_partition_is_split_within_a_transaction(tmp_path: Path) -> None:
    async with place(tmp_path) as q:
        async with q.transaction() as tx:
            for number in range(50):
                await tx.publish("audit", b"%02d" % number, key=str(number))
        assert len(await payloads(q, "audit")) == 50
        tx = await q.transaction()
        for number in range(50):
            await tx.publish("audit", b"%02d" % (50 + number), key=str(number))
        splitting = asyncio.create_task(q.split_partition("audit", 0))
        await asyncio.sleep(0)
        for number in range(50, 100):
            await tx.publish("audit", b"%02d" % (50 + number), key=str(number))
        await tx.commit()
        await splitting
        assert len(await payloads(q, "audit")) == 150


def test_a_blocking_client_and_an_embedded_broker_do_the_same(tmp_path: Path) -> None:
    with quiver.open(tmp_path / "data") as q:
        q.create_queue("orders")
        q.create_topic("invoices")
        q.publish_many("orders", [b"%d" % n for n in range(10)])
        taken = 0
        with q.consumer("orders") as messages:
            for message in messages:
                with q.transaction() as tx:
                    tx.publish("invoices", message.payload)
                    tx.ack(message)
                taken += 1
                if taken == 10:
                    break
        assert len(list(q.read("invoices").messages())) == 10
        orders = q.describe_subscription("orders")
        assert (orders.ready, orders.leased) == (0, 0)
    with quiver.open(tmp_path / "data") as q:
        assert q.describe_transaction(tx.id) is TransactionState.COMMITTED
        assert len(list(q.read("invoices").messages())) == 10


@edge_test
async def test_a_client_behind_a_forwarder_has_transactions(tmp_path: Path) -> None:
    async with (
        place(tmp_path) as q,
        forwarder_of(q.url) as forwarder,
        AsyncClient(f"quiver://{forwarder.native_address}") as behind,
    ):
        await q.publish_many("orders", [b"1", b"2"])
        taken = 0
        async with behind.consumer("orders") as messages:
            async for message in messages:
                async with behind.transaction() as tx:
                    await tx.publish("invoices", message.payload, key=message.payload)
                    tx.ack(message)
                taken += 1
                if taken == 2:
                    break
        assert await payloads(q, "invoices") == [b"1", b"2"]
