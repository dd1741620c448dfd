"""A node's partitions are split while they are used: nothing is lost, doubled or out of key order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from pathlib import Path

import pytest

from quiver.client import AsyncClient
from quiver.client.consumer.received import ReceivedMessage
from quiver.errors import InvalidRequest, PartitionNotFound, QuiverError, TopicNotFound
from quiver.model.clock import SystemClock
from quiver.model.key_hash import KeyRouter
from quiver.testing.clock import ManualClock
from tests.aio import async_test, turns
from tests.integration.client_node import ProcessNode
from tests.integration.queue_node import clocked
from tests.unit.broker.broker_doubles import until

KEYS = [f"key-{number}" for number in range(16)]


async def owner(client: AsyncClient, topic: str, key: str) -> int:
    info = await client.describe_topic(topic)
    return KeyRouter.of([one.first_hash for one in info.partitions]).partition(key.encode())


async def moved_keys(client: AsyncClient, topic: str, child: int) -> list[str]:
    return [key for key in KEYS if await owner(client, topic, key) == child]


async def stored(client: AsyncClient, topic: str) -> dict[str, list[bytes]]:
    """By key: all that is stored, in the order of its partitions."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for partition in (await client.describe_topic(topic)).partitions:
        async for message in client.read(topic, partition=partition.index).messages():
            assert message.key is not None
            found[message.key.decode()].append(message.payload)
    return found


async def received(client: AsyncClient, name: str, **options: object) -> list[ReceivedMessage]:
    """What is to be had at once."""
    return await client.receive(name, max_messages=1000, wait=0, **options)  # type: ignore[arg-type]


@async_test
async def test_half_of_the_keys_go_to_a_new_partition(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders", partitions=2)
        for key in KEYS:
            await client.publish("orders", b"before", key=key)
        before = {key: await owner(client, "orders", key) for key in KEYS}
        child = await client.split_partition("orders", 0)
        assert (child.index, child.parent) == (2, 0)
        assert child.parent_offset == sum(place == 0 for place in before.values())
        for key in KEYS:
            after = (await client.publish("orders", b"after", key=key)).partition
            assert after == before[key] or (before[key], after) == (0, 2)
        assert {await owner(client, "orders", key) for key in KEYS} == {0, 1, 2}
        info = await client.describe_topic("orders")
        assert (len(info.partitions), info.settings.partitions) == (3, 2)
        # Who declares the topic as it was made finds it.
        await client.create_topic("orders", partitions=2, exist_ok=True)


@async_test
async def test_a_split_outlives_its_node(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as client:
        await client.create_topic("orders")
        await client.split_partition("orders", 0)
        await client.split_partition("orders", 1)
        for key in KEYS:
            await client.publish("orders", b"x", key=key)
    async with clocked(tmp_path, clock) as client:
        info = await client.describe_topic("orders")
        assert [(one.index, one.parent) for one in info.partitions] == [(0, None), (1, 0), (2, 1)]
        assert await stored(client, "orders") == {key: [b"x"] for key in KEYS}


@async_test
async def test_what_cannot_be_split_is_said(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders")
        with pytest.raises(TopicNotFound):
            await client.split_partition("others", 0)
        with pytest.raises(PartitionNotFound, match="0 to 0"):
            await client.split_partition("orders", 1)
        await client.create_subscription("alerts", topics=["__alerts"])
        with pytest.raises(InvalidRequest, match="an internal topic of Quiver"):
            await client.split_partition("__alerts", 0)


# ---------------------------------------------------------------------- consumers


@pytest.mark.parametrize("ordering", ["key", "partition"])
@async_test
async def test_where_order_matters_a_child_waits_for_what_was_before_it(
    tmp_path: Path, ordering: str
) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders")
        await client.create_subscription("billing", topics=["orders"], ordering=ordering)
        for key in KEYS:
            await client.publish("orders", b"before", key=key)
        child = await client.split_partition("orders", 0)
        moved = await moved_keys(client, "orders", child.index)
        for key in moved:
            await client.publish("orders", b"after", key=key)
        first = await received(client, "billing", consumer="one")
        assert [message.payload for message in first] == [b"before"] * len(KEYS)
        last = first.pop()
        for message in first:
            await message.ack()
        assert await received(client, "billing", consumer="one") == []
        await last.ack()
        second = await received(client, "billing", consumer="one")
        assert [message.key.decode() for message in second if message.key] == moved
        assert {message.partition for message in second} == {child.index}


@async_test
async def test_where_order_does_not_matter_nobody_waits(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders")
        await client.create_subscription("work", topics=["orders"])
        await client.publish("orders", b"before", key=KEYS[0])
        child = await client.split_partition("orders", 0)
        moved = await moved_keys(client, "orders", child.index)
        await client.publish("orders", b"after", key=moved[0])
        payloads = {message.payload for message in await received(client, "work")}
        assert payloads == {b"before", b"after"}


@async_test
async def test_a_child_s_child_waits_for_the_first_parent_too(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders")
        await client.create_subscription("billing", topics=["orders"], ordering="key")
        for key in KEYS:
            await client.publish("orders", b"before", key=key)
        child = await client.split_partition("orders", 0)
        grandchild = await client.split_partition("orders", child.index)
        assert grandchild.parent_offset == 0
        for key in await moved_keys(client, "orders", grandchild.index):
            await client.publish("orders", b"after", key=key)
        first = await received(client, "billing")
        assert {message.payload for message in first} == {b"before"}
        for message in first:
            await message.ack()
        assert {message.payload for message in await received(client, "billing")} == {b"after"}


@async_test
async def test_a_message_scheduled_for_later_holds_up_no_child(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders")
        await client.create_subscription("billing", topics=["orders"], ordering="key")
        await client.publish("orders", b"tomorrow", key=KEYS[0], delay="1d")
        child = await client.split_partition("orders", 0)
        moved = await moved_keys(client, "orders", child.index)
        await client.publish("orders", b"now", key=moved[0])
        assert [message.payload for message in await received(client, "billing")] == [b"now"]


@async_test
async def test_whoever_waits_is_served_when_the_child_s_turn_comes(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders")
        await client.create_subscription("billing", topics=["orders"], ordering="key")
        await client.publish("orders", b"before", key=KEYS[0])
        child = await client.split_partition("orders", 0)
        moved = await moved_keys(client, "orders", child.index)
        await client.publish("orders", b"after", key=moved[0])
        (first,) = await received(client, "billing")
        waiting = asyncio.create_task(client.receive("billing", wait=20))
        await turns()
        assert not waiting.done()
        await first.ack()
        (second,) = await waiting
        assert second.payload == b"after"


@async_test
async def test_a_replay_is_in_order_too(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders")
        await client.create_subscription("billing", topics=["orders"], ordering="key")
        await client.publish("orders", b"before", key=KEYS[0])
        child = await client.split_partition("orders", 0)
        moved = await moved_keys(client, "orders", child.index)
        await client.publish("orders", b"after", key=moved[0])
        for payload in (b"before", b"after"):
            (message,) = await received(client, "billing")
            assert message.payload == payload
            await message.ack()
        await client.seek("billing", "earliest")
        assert [message.payload for message in await received(client, "billing")] == [b"before"]


@async_test
async def test_a_subscription_that_begins_after_a_split_waits_for_nothing(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders")
        await client.publish("orders", b"before", key=KEYS[0])
        child = await client.split_partition("orders", 0)
        await client.create_subscription("billing", topics=["orders"], ordering="key")
        moved = await moved_keys(client, "orders", child.index)
        await client.publish("orders", b"after", key=moved[0])
        assert [message.payload for message in await received(client, "billing")] == [b"after"]


@async_test
async def test_members_of_a_group_read_the_child_as_well(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders")
        await client.create_subscription("group", topics=["orders"], ordering="partition")
        assert await received(client, "group", consumer="one") == []
        child = await client.split_partition("orders", 0)
        for key in KEYS:
            await client.publish("orders", b"x", key=key)
        found = [await received(client, "group", consumer="one") for _ in range(2)]
        assert {message.partition for some in found for message in some} == {0, child.index}
        described = await client.describe_subscription("group")
        assert described.members == {"one": ["orders/0", "orders/1"]}


# ---------------------------------------------------------------------- readers


@async_test
async def test_whoever_follows_a_topic_reads_the_child_after_the_parent_s_part(
    tmp_path: Path,
) -> None:
    async with clocked(tmp_path, ManualClock()) as client:
        await client.create_topic("orders")
        sent: dict[str, list[bytes]] = defaultdict(list)

        async def publish(*payloads: bytes) -> None:
            for payload in payloads:
                for key in KEYS:
                    await client.publish("orders", payload, key=key)
                    sent[key].append(payload)

        await publish(b"1", b"2")
        found: dict[str, list[bytes]] = defaultdict(list)
        async with client.read("orders", follow=True) as reader:
            messages = reader.messages()
            first = await anext(messages)
            assert first.key is not None
            found[first.key.decode()].append(first.payload)
            for index in (0, 0, 1):
                await client.split_partition("orders", index)
                await publish(b"3 after %d" % index)
            while sum(map(len, found.values())) < sum(map(len, sent.values())):
                message = await anext(messages)
                assert message.key is not None
                found[message.key.decode()].append(message.payload)
        assert found == sent


# ---------------------------------------------------------------------- stored once


@async_test
async def test_an_id_seen_before_a_split_is_known_after_it(tmp_path: Path) -> None:
    clock = ManualClock()
    ids = [f"id-{number}" for number in range(20)]
    async with clocked(tmp_path, clock) as client:
        await client.create_topic("orders")
        for one in ids:
            assert not (await client.publish("orders", b"x", dedup_id=one)).duplicate
        await client.split_partition("orders", 0)
        again = [await client.publish("orders", b"x", dedup_id=one) for one in ids]
        assert all(published.duplicate for published in again)
        assert {published.partition for published in again} == {0, 1}
    async with clocked(tmp_path, clock) as client:  # it is written down
        await client.split_partition("orders", 1)
        for one in ids:
            assert (await client.publish("orders", b"x", dedup_id=one)).duplicate
        ends = [part.next_offset for part in (await client.describe_topic("orders")).partitions]
        assert ends == [len(ids), 0, 0]
        await clock.advance(301)
        assert not (await client.publish("orders", b"x", dedup_id=ids[0])).duplicate


@async_test
async def test_a_named_producer_s_numbers_are_known_in_the_child(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as client:
        await client.create_topic("orders")
        async with client.producer("orders", name="import") as producer:
            for number in range(40):
                await producer.send(b"%d" % number, key=KEYS[number % 16], sequence=number)
        await client.split_partition("orders", 0)
    async with clocked(tmp_path, clock) as client:
        async with client.producer("orders", name="import") as producer:
            assert producer.last_sequences == {0: 39, 1: 39}
            for number in range(60):
                await producer.send(b"%d" % number, key=KEYS[number % 16], sequence=number)
        found = await stored(client, "orders")
    numbers = sorted(int(payload) for payloads in found.values() for payload in payloads)
    assert numbers == list(range(60))


# ---------------------------------------------------------------------- all at once


class Traffic:
    """Producers that number what they send of each key, and consumers that write down the order."""

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self._client, self._topic = client, topic
        self.sent: dict[str, list[bytes]] = defaultdict(list)
        self.got: dict[str, list[bytes]] = defaultdict(list)
        self.is_over = False

    async def produce(self, who: str, seed: int, **options: object) -> None:
        chance, number = random.Random(seed), 0
        async with self._client.producer(self._topic, **options) as producer:  # type: ignore[arg-type]
            while not self.is_over:
                key, number = f"{who}-{chance.choice(KEYS)}", number + 1
                payload = b"%08d" % number
                numbered = {"sequence": number} if "name" in options else {}
                await producer.send(payload, key=key, **numbered)  # type: ignore[arg-type]
                self.sent[key].append(payload)
                if number % 5 == 0:
                    await asyncio.sleep(0.01)

    async def consume(self, subscription: str, consumer: str) -> None:
        while not self.is_over or self.missing:
            some = await self._client.receive(
                subscription, max_messages=50, wait=0.2, consumer=consumer
            )
            for message in some:
                assert message.key is not None
                self.got[message.key.decode()].append(message.payload)
            if some:
                await self._client.ack(subscription, some)

    async def goes_on(self, count: int = 200) -> None:
        """Wait until so many more were sent."""
        goal = self._sent_count + count
        await until(lambda: self._sent_count >= goal)

    @property
    def _sent_count(self) -> int:
        return sum(map(len, self.sent.values()))

    @property
    def missing(self) -> int:
        return self._sent_count - sum(map(len, self.got.values()))


@pytest.mark.parametrize("ordering", ["key", "partition"])
@async_test
async def test_splits_under_load_lose_double_and_reorder_nothing(
    tmp_path: Path, ordering: str
) -> None:
    async with clocked(tmp_path, SystemClock()) as client:
        await client.create_topic("orders", partitions=2)
        await client.create_subscription("billing", topics=["orders"], ordering=ordering)
        traffic = Traffic(client, "orders")
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(traffic.produce(f"p{number}", number, batch_count=30))
            group.create_task(traffic.produce("named", 9, name="named"))
            for number in range(2):
                group.create_task(traffic.consume("billing", f"c{number}"))
            for index in (0, 1, 0, 2):
                await traffic.goes_on()
                await client.split_partition("orders", index)
            await traffic.goes_on()
            traffic.is_over = True
        assert await stored(client, "orders") == traffic.sent
        assert traffic.got == traffic.sent


@pytest.mark.process
@pytest.mark.parametrize("seed", range(2))
@async_test
async def test_a_node_that_is_killed_in_the_middle_has_split_or_has_not(
    tmp_path: Path, seed: int
) -> None:
    """Killed at any moment: before the partition is held, in between, or before it has answered."""
    chance, node = random.Random(seed), ProcessNode(tmp_path)
    node.start()
    try:
        async with AsyncClient(node.url) as client:
            await client.create_topic("orders")
            await client.create_subscription("billing", topics=["orders"], ordering="key")
            traffic = Traffic(client, "orders")
            async with asyncio.TaskGroup() as group:
                for number in range(2):
                    group.create_task(traffic.produce(f"p{number}", number))
                for kill in range(1, 3):
                    await traffic.goes_on()
                    count = len((await client.describe_topic("orders")).partitions)
                    splitting = asyncio.create_task(
                        client.split_partition("orders", chance.randrange(count))
                    )
                    await asyncio.sleep(chance.random() * 0.01 * kill)
                    await asyncio.to_thread(node.kill)
                    await asyncio.to_thread(node.start)
                    with contextlib.suppress(QuiverError):
                        await splitting
                    # Asked again after the kill, it was made once in the end.
                    assert len((await client.describe_topic("orders")).partitions) == count + 1
                traffic.is_over = True
            assert await stored(client, "orders") == traffic.sent
            await asyncio.wait_for(traffic.consume("billing", ""), 30)
            assert traffic.got == traffic.sent
    finally:
        node.close()
