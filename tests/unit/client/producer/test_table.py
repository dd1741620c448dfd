"""Arrow tables as they are: split by key, bounded, and stored in the order of their rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from quiver.client import AsyncClient
from quiver.client.producer.delivery import BatchPromise, Placement, Published
from quiver.client.producer.table import TableDelivery, partitions_of, pieces
from quiver.errors import (
    InvalidBatch,
    InvalidRequest,
    MessageTooLarge,
    PartitionNotFound,
    TopicNotFound,
)
from quiver.model.key_hash import KeyRouter
from tests.aio import async_test
from tests.unit.client.scripted_node import HastyClock, ScriptedDialer, ScriptedNode


def client_of(node: ScriptedNode) -> AsyncClient:
    return AsyncClient(dialer=ScriptedDialer(node), clock=HastyClock())


def node_with(partitions: int, **settings: object) -> ScriptedNode:
    node = ScriptedNode()
    node.add_topic("orders", partitions, **settings)
    return node


class TestPublishing:
    @async_test
    async def test_rows_with_keys_go_where_their_keys_belong(self) -> None:
        node, router = node_with(4), KeyRouter.even(4)
        keys = [f"customer-{number % 13}" for number in range(500)]
        table = pa.table({"key": keys, "payload": [b"%d" % number for number in range(500)]})
        async with client_of(node) as client:
            published = await client.publish_many("orders", table)
        for number, each in enumerate(published):
            assert each.partition == router.partition(keys[number].encode())
            stored = node.partitions["orders"][each.partition].payloads()
            assert stored[each.offset or 0] == b"%d" % number

    @async_test
    async def test_rows_without_keys_stay_together(self) -> None:
        node = node_with(4)
        batch = pa.record_batch({"payload": [b"a", b"b", b"c"], "priority": [1, None, 9]})
        async with client_of(node) as client:
            published = await client.publish_many("orders", batch)
        assert len({each.partition for each in published}) == 1
        assert [each.offset for each in published] == [0, 1, 2]

    @async_test
    async def test_a_table_may_be_stored_without_asking_where_each_row_is(self) -> None:
        node = node_with(2, message_bytes_max=100)
        async with client_of(node) as client:
            table = pa.table({"payload": [b"a", b"b", b"c"]})
            assert await client.publish_table("orders", table) == 3
            with pytest.raises(MessageTooLarge):
                await client.publish_table("orders", pa.table({"payload": [bytes(101)]}))
            del node.topics["orders"], node.partitions["orders"]
            with pytest.raises(TopicNotFound):
                await client.publish_table("orders", table)

    @async_test
    async def test_each_row_of_a_table_has_its_position_or_its_error(self) -> None:
        delivery, failure = TableDelivery(3), PartitionNotFound()
        kept, broken = BatchPromise("orders", 0), BatchPromise("orders", 1)
        delivery.add(kept, [0, 2])
        delivery.add(broken, [1])
        kept.keep(Placement(5, 7, 1))
        broken.fail(failure)
        assert await delivery.outcomes() == [
            Published("orders", 0, 5, 7, 1),
            failure,
            Published("orders", 0, 6, 7, 1),
        ]

    @async_test
    async def test_a_table_for_a_topic_that_is_gone_is_refused_as_a_whole(self) -> None:
        node, table = node_with(2), pa.table({"payload": [b"a", b"b"]})
        async with client_of(node) as client:
            assert len(await client.publish_each("orders", table)) == 2
            del node.topics["orders"], node.partitions["orders"]
            with pytest.raises(TopicNotFound):
                await client.publish_each("orders", table)

    @async_test
    async def test_rows_without_keys_keep_their_places_where_there_is_one_partition(self) -> None:
        node, payloads = node_with(1), [b"a", b"b", b"c"]
        table = pa.table({"key": [None, b"k", None], "payload": payloads})
        async with client_of(node) as client:
            await client.publish_many("orders", table)
        assert node.partitions["orders"][0].payloads() == payloads

    @async_test
    async def test_a_table_in_pieces_is_one_table(self) -> None:
        node = node_with(1)
        whole = pa.table({"payload": [b"%d" % number for number in range(10)]})
        table = pa.concat_tables([whole.slice(0, 3), whole.slice(3, 0), whole.slice(3)])
        async with client_of(node) as client:
            assert len(await client.publish_many("orders", table)) == 10
            assert await client.publish_many("orders", whole.slice(0, 0)) == []
        assert node.payloads("orders") == [[b"%d" % number for number in range(10)]]

    @pytest.mark.parametrize(
        "columns",
        [
            {"value": [b"x"]},
            {"payload": [b"x"], "other": [1]},
            {"payload": pa.array([b"x", None])},
            {"payload": [b"x"], "priority": [10]},
            {"payload": [b"x"], "key": [1.5]},
            {"payload": [b"x"], "headers": ["a"]},
        ],
    )
    @async_test
    async def test_what_is_not_a_table_of_messages_is_refused(
        self, columns: dict[str, list[object]]
    ) -> None:
        node = node_with(2)
        async with client_of(node) as client:
            with pytest.raises(InvalidBatch):
                await client.publish_many("orders", pa.table(columns))
        assert node.publishes == 0

    @async_test
    async def test_a_row_over_the_topics_limit_is_refused(self) -> None:
        node = node_with(1, message_bytes_max=100)
        async with client_of(node) as client:
            with pytest.raises(MessageTooLarge):
                await client.publish_many("orders", pa.table({"payload": [b"x", bytes(101)]}))

    @async_test
    async def test_a_named_producers_rerun_leaves_out_rows_that_are_stored(self) -> None:
        node = node_with(3)
        table = pa.table(
            {"payload": [b"%d" % number for number in range(100)], "sequence": range(100)}
        )
        async with client_of(node) as client:
            async with client.producer("orders", name="spark-1") as producer:
                await (await producer.send_arrow(table.slice(0, 40)))
            async with client.producer("orders", name="spark-1") as producer:
                published = await (await producer.send_arrow(table))
                assert [each.duplicate for each in published] == [True] * 40 + [False] * 60
                with pytest.raises(InvalidRequest, match="sequences must increase"):
                    await producer.send_arrow(table)
            with pytest.raises(InvalidRequest, match="a named producer"):
                await client.publish_many("orders", table)
        stored = [payload for payloads in node.payloads("orders") for payload in payloads]
        assert sorted(stored, key=int) == [b"%d" % number for number in range(100)]

    @async_test
    async def test_rows_and_messages_keep_the_order_in_which_they_were_sent(self) -> None:
        node = node_with(1)
        async with client_of(node) as client, client.producer("orders") as producer:
            await producer.send(b"first")
            delivery = await producer.send_arrow(pa.table({"payload": [b"second", b"third"]}))
            await producer.send(b"fourth")
            await delivery
        assert node.payloads("orders") == [[b"first", b"second", b"third", b"fourth"]]


class TestPieces:
    @pytest.mark.parametrize("seed", range(20))
    def test_pieces_are_bounded_and_nothing_is_left_out(self, seed: int) -> None:
        chance = random.Random(seed)
        count = chance.randint(1, 400)
        rows = pa.record_batch(
            {
                "payload": [bytes(chance.choice((1, 10, 5_000))) for _ in range(count)],
                "key": [chance.choice((None, b"a", b"b", b"c")) for _ in range(count)],
            }
        )
        places = partitions_of(rows, KeyRouter.even(2))
        found: list[int] = []
        for piece in pieces(rows, places, 1000, bytes_max=10_000, count_max=50):
            assert 0 < len(piece.rows) <= 50
            assert piece.rows.nbytes <= 10_000 or len(piece.rows) == 1
            assert {places[number - 1000] for number in piece.numbers} == {piece.partition}
            assert piece.numbers == sorted(piece.numbers)
            found += piece.numbers
        assert sorted(found) == list(range(1000, 1000 + count))
