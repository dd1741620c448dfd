"""Producers while partitions are split: every message is stored once, in its place, in key order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pyarrow as pa
import pytest

from quiver import protocol
from quiver.errors import Overloaded
from quiver.model.key_hash import KeyRouter
from quiver.model.topic import Acks
from tests.aio import async_test, turns
from tests.unit.client.producer.test_producer import numbered, scripted
from tests.unit.client.scripted_node import Fate, ScriptedNode

KEYS = [f"key-{number}" for number in range(12)]


def router(node: ScriptedNode) -> KeyRouter:
    return KeyRouter.of([one.first_hash for one in node.topics["orders"].partitions])


def keys_of(node: ScriptedNode, partition: int) -> list[str]:
    return [key for key in KEYS if router(node).partition(key.encode()) == partition]


def stored_by_key(node: ScriptedNode) -> dict[str, list[tuple[int, bytes]]]:
    """By key: partition and payload of everything stored, partitions one after the other."""
    found: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for index, partition in enumerate(node.partitions["orders"]):
        for entry in partition.entries:
            rows = entry.record_batch()
            for key, payload in zip(
                rows.column("key").to_pylist(), rows.column("payload").to_pylist(), strict=True
            ):
                found[key.decode()].append((index, payload))
    return found


@async_test
async def test_a_batch_of_keys_that_part_is_divided_and_each_message_knows_its_place() -> None:
    async with scripted() as (client, node, _, _):
        producer = await client.producer("orders", linger="60s")
        await (await producer.send(b"before", key=KEYS[0]))
        node.open.clear()
        first = await producer.send(b"first", key=KEYS[0])  # alone in its batch
        sent = [(key, await producer.send(key.encode(), key=key)) for key in KEYS]
        node.split("orders", 0)
        node.open.set()
        assert (await first).partition == router(node).partition(KEYS[0].encode())
        for key, delivery in sent:
            published = await delivery
            assert published.partition == router(node).partition(key.encode())
            assert published.offset is not None
            (entry,) = (
                entry
                for entry in node.partitions["orders"][published.partition].entries
                if entry.base_offset <= published.offset < entry.next_offset
            )
            payloads = entry.record_batch().column("payload").to_pylist()
            assert payloads[published.offset - entry.base_offset] == key.encode()
        await producer.flush()
    assert {len(places) for key, places in stored_by_key(node).items() if key != KEYS[0]} == {1}


@async_test
async def test_what_was_stored_before_the_split_though_nobody_said_so_is_not_stored_again() -> None:
    async with scripted() as (client, node, _, _):
        producer = await client.producer("orders")
        moving = KEYS[3]
        node.fate = lambda number: Fate.REPLY_LOST if number == 1 else Fate.ANSWERED

        def split_then_answer(number: int) -> Fate:
            if number == 2:
                node.split("orders", 0)
            return Fate.REPLY_LOST if number == 1 else Fate.ANSWERED

        node.fate = split_then_answer
        published = await (await producer.send(b"stored", key=moving))
        assert (published.partition, published.offset) == (0, 0)
        await (await producer.send(b"later", key=moving))
    owner = router(node).partition(moving.encode())
    assert stored_by_key(node)[moving] == [(0, b"stored"), (owner, b"later")]


@async_test
async def test_messages_stay_where_the_user_put_them() -> None:
    async with scripted() as (client, node, _, _):
        producer = await client.producer("orders", linger="60s")
        await (await producer.send(b"x", key=KEYS[0]))
        node.open.clear()
        await producer.send(b"first", key=KEYS[0])
        pinned = [await producer.send(b"pinned", key=key, partition=0) for key in KEYS]
        routed = [await producer.send(b"routed", key=key) for key in KEYS]
        loose = await producer.send(b"loose")
        node.split("orders", 0)
        node.open.set()
        assert {(await delivery).partition for delivery in pinned} == {0}
        assert {(await delivery).partition for delivery in routed} == {0, 1}
        assert (await loose).partition == 0


@async_test
async def test_without_acknowledgements_messages_go_where_they_belong_too() -> None:
    async with scripted() as (client, node, _, _):
        producer = await client.producer("orders", acks=Acks.NONE)
        for key in KEYS:
            await producer.send(b"a", key=key)
        await producer.flush()
        node.split("orders", 0)
        for key in KEYS:
            await producer.send(b"b", key=key)
        await producer.flush()
    for key in KEYS:
        owner = router(node).partition(key.encode())
        assert stored_by_key(node)[key] == [(0, b"a"), (owner, b"b")]


@async_test
async def test_a_rerun_that_meets_a_split_stores_no_number_again() -> None:
    async with scripted() as (client, node, _, _):
        async with client.producer("orders", name="import") as producer:
            for number, key in enumerate(KEYS):
                await producer.send(b"%d" % number, key=key, sequence=number)
        async with client.producer("orders", name="import") as again:
            await again.send(b"0", key=KEYS[0], sequence=0)
            node.split("orders", 0)
            await again.send(b"new", key=KEYS[0], sequence=len(KEYS))
            await again.flush()
        # The run before the split knew of one partition: what it stored of the other is in there.
        fresh = len(KEYS) + 1
        async with client.producer("orders", name="import") as third:
            node.split("orders", 0)
            (await (await third.send(b"more", key=KEYS[0], sequence=fresh)))
            assert third.last_sequences[router(node).partition(KEYS[0].encode())] == fresh
    assert sum(map(len, stored_by_key(node).values())) == len(KEYS) + 2


@async_test
async def test_numbers_of_an_earlier_run_are_known_in_a_partition_that_is_split_off() -> None:
    async with scripted() as (client, node, _, _):
        async with client.producer("orders", name="import") as producer:
            for number, key in enumerate(KEYS):
                await producer.send(b"%d" % number, key=key, sequence=number)
        again = await client.producer("orders", name="import")
        node.split("orders", 0)
        # It learns of the split with a message of its own, then repeats the earlier ones.
        moved = keys_of(node, 1)
        await again.opened_sender.refresh_layout()
        for number, key in enumerate(KEYS):
            published = await (await again.send(b"%d" % number, key=key, sequence=number))
            assert published.duplicate, key
        assert moved
        assert node.payloads("orders")[1] == []


@async_test
async def test_the_rows_of_a_table_are_routed_by_the_layout_of_the_moment() -> None:
    async with scripted() as (client, node, _, _):
        producer = await client.producer("orders", buffer_bytes=3000, batch_count=4)
        await (await producer.send(b"x", key=KEYS[0]))
        node.open.clear()
        keys = KEYS * 20
        payloads = numbered(len(keys))
        table = pa.table({"key": [key.encode() for key in keys], "payload": payloads})
        sending = asyncio.create_task(producer.send_arrow(table))
        await turns()
        assert not sending.done()  # it waits for room
        node.split("orders", 0)
        node.open.set()
        published = await (await sending)
        for key, one in zip(keys, published, strict=True):
            if key in keys_of(node, 1):
                assert one.partition == 1
        await producer.flush()
    found = stored_by_key(node)
    for key in KEYS:
        wanted = [payload for other, payload in zip(keys, payloads, strict=True) if other == key]
        assert [payload for _, payload in found[key] if payload != b"x"] == wanted


@async_test
async def test_a_message_that_fails_after_a_split_fails_alone() -> None:
    async with scripted() as (client, node, _, _):
        producer = await client.producer("orders", linger="60s", delivery_timeout="20s")
        await (await producer.send(b"x", key=KEYS[0]))
        node.open.clear()
        await producer.send(b"first", key=KEYS[0])
        sent = {key: await producer.send(b"y", key=key) for key in KEYS}
        node.split("orders", 0)
        original = node._partition

        def only_the_parent(topic: str, index: int):  # type: ignore[no-untyped-def]
            if index == 1:
                raise Overloaded
            return original(topic, index)

        node._partition = only_the_parent  # type: ignore[method-assign]
        node.open.set()
        moved = keys_of(node, 1)
        for key, delivery in sent.items():
            if key in moved:
                with pytest.raises(Overloaded):
                    await delivery
                assert isinstance(delivery.outcome(), Overloaded)
            else:
                assert (await delivery).partition == 0
        assert isinstance(sent[moved[0]].exception(), Overloaded)
        assert sent[keys_of(node, 0)[0]].exception() is None


@pytest.mark.parametrize("seed", range(40))
@async_test
async def test_whatever_happens_each_key_is_stored_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    fates = [Fate.REQUEST_LOST, Fate.REPLY_LOST, Fate.OVERLOADED, Fate.UNAVAILABLE, Fate.UNANSWERED]
    async with scripted(partitions=chance.randint(1, 3)) as (client, node, _, _):

        def fate(_: int) -> Fate:
            if chance.random() < 0.05 and len(node.topics["orders"].partitions) < 8:
                node.split("orders", chance.randrange(len(node.topics["orders"].partitions)))
            return chance.choice(fates) if chance.random() < 0.2 else Fate.ANSWERED

        node.fate = fate
        sent: dict[str, list[bytes]] = defaultdict(list)
        deliveries = []
        async with client.producer(
            "orders", batch_count=chance.randint(1, 20), linger="1ms", delivery_timeout="10m"
        ) as producer:
            for payload in numbered(400):
                key = chance.choice(KEYS)
                sent[key].append(payload)
                deliveries.append((payload, await producer.send(payload, key=key)))
                if chance.random() < 0.05:
                    await asyncio.sleep(0.001)
        for payload, delivery in deliveries:
            published = await delivery
            if published.offset is not None:
                partition = node.partitions["orders"][published.partition]
                assert partition.payloads()[published.offset] == payload
    assert node.count(protocol.Publish) > 10
    found = stored_by_key(node)
    for key, payloads in sent.items():
        assert sorted(payload for _, payload in found[key]) == payloads
        # A partition's messages come after those of the one it was split from, whose index is lower.
        assert [payload for _, payload in found[key]] == payloads
