"""Reading from a node in memory: ranges, columns, messages, and connections that break."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest

from quiver import protocol
from quiver.client import AsyncClient
from quiver.client.reader.columns import SCHEMA, batches_of
from quiver.client.reader.range import Mark, mark_of
from quiver.errors import InvalidRequest, OffsetOutOfRange, PartitionNotFound, TopicNotFound
from quiver.model.message import Message, datetime_of
from tests.aio import async_test, turns
from tests.unit.client.scripted_node import NOW_US, HastyClock, ScriptedDialer, ScriptedNode, until


@asynccontextmanager
async def scripted(
    partitions: int = 1,
) -> AsyncIterator[tuple[AsyncClient, ScriptedNode, ScriptedDialer]]:
    node = ScriptedNode()
    node.add_topic("orders", partitions)
    dialer = ScriptedDialer(node)
    async with AsyncClient(dialer=dialer, clock=HastyClock()) as client:
        yield client, node, dialer


async def fill(client: AsyncClient, count: int, batch_count: int = 7) -> list[bytes]:
    payloads = [b"%06d" % number for number in range(count)]
    async with client.producer("orders", batch_count=batch_count) as producer:
        for payload in payloads:
            await producer.send(payload)
    return payloads


class TestPositions:
    @pytest.mark.parametrize(
        ("position", "mark"),
        [
            (0, Mark(offset=0)),
            ("earliest", Mark(at="earliest")),
            ("latest", Mark(at="latest")),
            ("-1h", Mark(time_us=NOW_US - 3_600_000_000)),
            (timedelta(seconds=-1), Mark(time_us=NOW_US - 1_000_000)),
            (datetime(2023, 11, 14, 22, 13, 20, 5, tzinfo=UTC), Mark(time_us=NOW_US + 5)),
            (datetime(2023, 11, 14, 22, 13, 20), Mark(time_us=NOW_US)),
            (datetime(1960, 1, 1, tzinfo=UTC), Mark(time_us=0)),
        ],
    )
    def test_positions_are_understood(self, position: Any, mark: Mark) -> None:
        assert mark_of(position, NOW_US) == mark

    @pytest.mark.parametrize("position", [-1, True, 1.5, "soon", "1h", "", None, timedelta(1)])
    def test_what_is_no_position_is_refused(self, position: Any) -> None:
        with pytest.raises(InvalidRequest):
            mark_of(position, NOW_US)


class TestRanges:
    @async_test
    async def test_everything_is_read_in_order(self) -> None:
        async with scripted() as (client, _, _):
            payloads = await fill(client, 100)
            table = await client.read("orders").table()
            assert table.column("payload").to_pylist() == payloads
            assert table.column("offset").to_pylist() == list(range(100))

    @pytest.mark.parametrize(
        ("start", "end"), [(0, 100), (3, 4), (6, 8), (13, 61), (50, None), (0, 0), (100, None)]
    )
    @async_test
    async def test_a_range_within_batches_is_cut_exactly(self, start: int, end: int | None) -> None:
        async with scripted() as (client, _, _):
            payloads = await fill(client, 100)
            table = await client.read("orders", start=start, end=end).table()
            assert table.column("payload").to_pylist() == payloads[start:end]
            assert table.column("offset").to_pylist() == list(range(100))[start:end]

    @async_test
    async def test_a_reader_ends_where_the_topic_ended_when_it_began(self) -> None:
        async with scripted() as (client, _, _):
            payloads = await fill(client, 10)
            reader = client.read("orders")
            first = await anext(reader)
            await client.publish("orders", b"later")
            rest = [batch async for batch in reader]
            read = [row for batch in (first, *rest) for row in batch.column("payload").to_pylist()]
            assert read == payloads

    @async_test
    async def test_times_are_found_in_the_log(self) -> None:
        async with scripted() as (client, _, _):
            await fill(client, 30, batch_count=10)
            start = datetime_of(NOW_US + 1)
            table = await client.read("orders", start=start, end=datetime_of(NOW_US + 2)).table()
            assert table.column("offset").to_pylist() == list(range(10, 20))
            assert set(table.column("timestamp").to_pylist()) == {start}

    @async_test
    async def test_an_offset_that_is_gone_is_told_with_the_first_that_is_there(self) -> None:
        async with scripted() as (client, node, _):
            await fill(client, 30)
            node.partitions["orders"][0].start_offset = 10
            with pytest.raises(OffsetOutOfRange) as caught:
                await client.read("orders", start=3).table()
            assert caught.value.details["start_offset"] == 10
            with pytest.raises(OffsetOutOfRange):
                await client.read("orders", start=31).table()

    @async_test
    async def test_partitions_are_read_side_by_side(self) -> None:
        async with scripted(partitions=3) as (client, _, _):
            for partition in range(3):
                for number in range(5):
                    await client.publish("orders", b"%d" % number, partition=partition)
            table = await client.read("orders").table()
            for partition in range(3):
                rows = table.filter(pa.compute.equal(table.column("partition"), partition))
                assert rows.column("payload").to_pylist() == [b"%d" % n for n in range(5)]
            one = await client.read("orders", partition=2, start=3).table()
            assert one.column("partition").to_pylist() == [2, 2]
            with pytest.raises(PartitionNotFound, match="0 to 2, not 3"):
                await client.read("orders", partition=3).table()

    @async_test
    async def test_an_empty_topic_gives_an_empty_table_of_the_same_schema(self) -> None:
        async with scripted(partitions=2) as (client, _, _):
            table = await client.read("orders").table()
            assert table.num_rows == 0
            assert table.schema == SCHEMA
            with pytest.raises(TopicNotFound):
                await client.read("invoices").table()

    @pytest.mark.parametrize(
        "options",
        [
            {"start": "soon"},
            {"end": -1},
            {"partition": -1},
            {"partition": "first"},
            {"columns": ["value"]},
            {"columns": "payload"},
            {"columns": []},
            {"columns": ["key", "key"]},
            {"follow": True, "end": "latest"},
        ],
    )
    @async_test
    async def test_what_cannot_be_read_is_told_before_anything_is_asked(self, options: Any) -> None:
        async with scripted() as (client, node, _):
            with pytest.raises(InvalidRequest):
                client.read("orders", **options)
            assert not node.requests


class TestColumns:
    @async_test
    async def test_every_batch_has_the_same_schema_whatever_it_carries(self) -> None:
        async with scripted() as (client, _, _):
            await client.publish("orders", b"plain")
            await client.publish("orders", b"keyed", key="k")
            await client.publish(
                "orders",
                b"full",
                key=b"\x00",
                headers={"a": "1", "b": "2"},
                priority=9,
                delay="1h",
                ttl="2h",
                event_time=datetime(2024, 1, 1, tzinfo=UTC),
                dedup_id="once",
            )
            batches = [batch async for batch in client.read("orders")]
            assert {batch.schema for batch in batches} == {SCHEMA}
            rows = pa.Table.from_batches(batches).to_pylist()
            assert [row["key"] for row in rows] == [None, b"k", b"\x00"]
            full = rows[2]
            assert full["headers"] == [("a", "1"), ("b", "2")]
            assert full["priority"] == 9
            assert full["event_time"] == datetime(2024, 1, 1, tzinfo=UTC)
            assert full["expires_at"] - full["deliver_at"] == timedelta(hours=1)
            assert full["dedup_id"] == "once"
            assert rows[0]["headers"] is None

    @async_test
    async def test_columns_may_be_chosen(self) -> None:
        async with scripted() as (client, _, _):
            await fill(client, 10)
            reader = client.read("orders", columns=["payload", "offset", "dedup_id"])
            table = await reader.table()
            assert table.schema.names == ["payload", "offset", "dedup_id"] == reader.schema.names
            assert table.column("dedup_id").null_count == 10

    @async_test
    async def test_small_batches_are_joined_and_keep_their_own_times(self) -> None:
        async with scripted() as (client, _, _):
            for number in range(20):
                await client.publish("orders", b"%d" % number)
            (batch,) = [batch async for batch in client.read("orders")]
            times = [NOW_US + number for number in range(20)]
            assert batch.column("timestamp").view(pa.int64()).to_pylist() == times

    @async_test
    async def test_large_batches_are_not_copied(self) -> None:
        async with scripted() as (client, _, _):
            async with client.producer("orders") as producer:
                for _ in range(200):
                    await producer.send(bytes(1000))
            reader = client.read("orders", start=1)
            chunk = await reader.next_chunk()
            assert chunk is not None
            entry = chunk.entries[-1]
            *_, batch = batches_of(chunk, reader.schema)
            assert len(batch) > 100
            begin = pa.py_buffer(entry.body).address
            values = batch.column("payload").buffers()[2]
            assert begin <= values.address < begin + len(entry.body)


class TestMessages:
    @async_test
    async def test_messages_have_all_that_was_published(self) -> None:
        async with scripted() as (client, _, _):
            await client.publish("orders", {"id": 1})
            published = await client.publish(
                "orders", "text", key="k", headers={"a": "1"}, priority=0, event_time=7
            )
            plain, full = [message async for message in client.read("orders").messages()]
            assert plain == Message("orders", 0, 0, NOW_US, 1, b'{"id":1}')
            assert plain.json() == {"id": 1}
            assert full.id == published.id
            assert (full.text(), full.key, full.headers) == ("text", b"k", {"a": "1"})
            assert (full.priority, full.event_time_us) == (0, 7)

    @async_test
    async def test_rows_with_and_without_a_value_share_a_batch(self) -> None:
        async with scripted() as (client, _, _):
            await client.publish_many(
                "orders",
                [
                    {"payload": b"a", "headers": {"x": "1", "y": "2"}},
                    {"payload": b"b"},
                    {"payload": b"c", "headers": {"z": "3"}, "priority": 1, "dedup_id": "d"},
                ],
            )
            for start in range(3):
                reader = client.read("orders", start=start)
                found = [message async for message in reader.messages()]
                assert [message.headers for message in found] == [
                    {"x": "1", "y": "2"},
                    {},
                    {"z": "3"},
                ][start:]
                assert [message.priority for message in found] == [4, 4, 1][start:]
                assert [message.dedup_id for message in found] == [None, None, "d"][start:]


class TestFollowing:
    @async_test
    async def test_what_is_stored_later_is_read_too(self) -> None:
        async with scripted() as (client, _, _):
            await fill(client, 10)
            reader = client.read("orders", start=8, follow=True, end=13)
            found: list[bytes] = []

            async def read() -> None:
                async for message in reader.messages():
                    found.append(message.payload)

            reading = asyncio.create_task(read())
            await until(lambda: len(found) == 2)
            for number in range(5):
                await client.publish("orders", b"later %d" % number)
            await reading
            assert found[2:] == [b"later 0", b"later 1", b"later 2"]

    @pytest.mark.parametrize("seed", range(5))
    @async_test
    async def test_broken_connections_lose_and_repeat_nothing(self, seed: int) -> None:
        chance = random.Random(seed)
        async with scripted(partitions=2) as (client, _, dialer):
            reader = client.read("orders", follow=True)
            found: dict[int, list[int]] = {0: [], 1: []}

            async def read() -> None:
                async for message in reader.messages():
                    found[message.partition].append(message.offset)

            reading = asyncio.create_task(read())
            for number in range(60):
                await client.publish("orders", b"%d" % number)
                if chance.random() < 0.3:
                    dialer.lose_all()
            await until(lambda: sum(map(len, found.values())) >= 60)
            reading.cancel()
            await asyncio.wait([reading])
            await reader.close()
            for offsets in found.values():
                assert offsets == list(range(len(offsets))), f"seed {seed}"

    @async_test
    async def test_a_reader_fetches_no_more_than_it_may_hold(self) -> None:
        async with scripted() as (client, node, _):
            async with client.producer("orders", batch_bytes="1MiB") as producer:
                for _ in range(40):
                    await producer.send(bytes(1_000_000))
            reader = client.read("orders")
            await anext(reader)
            await turns()
            assert node.count(protocol.Fetch) <= 4
            await reader.close()

    @async_test
    async def test_a_topic_made_anew_is_another_topic(self) -> None:
        async with scripted() as (client, node, _):
            await fill(client, 3)
            reader = client.read("orders", follow=True)
            await anext(reader)
            node.topics["orders"].number = 99
            with pytest.raises(TopicNotFound, match="created again"):
                await anext(reader)
            await reader.close()

    @async_test
    async def test_a_closed_reader_reads_nothing(self) -> None:
        async with scripted() as (client, _, _):
            reader = client.read("orders")
            await reader.close()
            with pytest.raises(InvalidRequest, match="closed"):
                await anext(reader)

    @async_test
    async def test_a_reader_that_nobody_holds_stops_fetching(self) -> None:
        async with scripted() as (client, node, _):
            await fill(client, 3)
            reader = client.read("orders", follow=True)
            await anext(reader)
            tasks = asyncio.all_tasks()
            del reader
            await until(lambda: len(asyncio.all_tasks()) < len(tasks))
            fetches = node.count(protocol.Fetch)
            await fill(client, 3)
            assert node.count(protocol.Fetch) == fetches
