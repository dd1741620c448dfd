"""Producers against a node in memory: whatever happens, each message is stored once and in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product

import pytest
from structlog.testing import capture_logs

from quiver import protocol
from quiver.client import AsyncClient
from quiver.client.producer.partition_queue import IN_FLIGHT_MAX
from quiver.client.producer.partition_queue_driver import PartitionQueueDriver
from quiver.errors import (
    InvalidBatch,
    InvalidRequest,
    MessageTooLarge,
    Overloaded,
    ProducerError,
    ProducerFenced,
    QuiverError,
    RequestTimeout,
    TopicNotFound,
)
from quiver.model.key_hash import KeyRouter
from tests.aio import async_test, turns
from tests.unit.client.scripted_node import Fate, HastyClock, ScriptedDialer, ScriptedNode, until


@asynccontextmanager
async def scripted(
    partitions: int = 1, **settings: object
) -> AsyncIterator[tuple[AsyncClient, ScriptedNode, ScriptedDialer, HastyClock]]:
    node, clock = ScriptedNode(), HastyClock()
    node.add_topic("orders", partitions, **settings)
    dialer = ScriptedDialer(node)
    client = AsyncClient(dialer=dialer, clock=clock)
    try:
        yield client, node, dialer, clock
    finally:
        node.open.set()
        await client.close()


def flat(lists: list[list[bytes]]) -> list[bytes]:
    return [payload for payloads in lists for payload in payloads]


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


class TestBatching:
    @async_test
    async def test_a_lone_message_is_sent_at_once(self) -> None:
        async with scripted() as (client, node, _, _):
            producer = await client.producer("orders", linger="60s")
            published = await (await producer.send(b"alone"))
            assert (published.partition, published.offset) == (0, 0)
            assert node.payloads("orders") == [[b"alone"]]

    @async_test
    async def test_messages_gather_while_others_are_under_way(self) -> None:
        async with scripted() as (client, node, _, _):
            producer = await client.producer("orders", linger="60s")
            node.open.clear()
            first = await producer.send(b"first")
            await until(lambda: node.count(protocol.Publish) == 1)
            rest = [await producer.send(payload) for payload in numbered(50)]
            node.open.set()
            await first
            assert [(await delivery).offset for delivery in rest] == list(range(1, 51))
            assert node.publishes == 2

    @async_test
    async def test_what_gathers_goes_after_the_linger_though_others_are_under_way(self) -> None:
        async with scripted() as (client, node, _, _):
            producer = await client.producer("orders", linger="0s")
            node.open.clear()
            await producer.send(b"first")
            await until(lambda: node.count(protocol.Publish) == 1)
            second = await producer.send(b"second")
            await until(lambda: node.count(protocol.Publish) == 2)
            node.open.set()
            assert (await second).offset == 1

    @async_test
    async def test_while_a_message_is_under_way_and_nothing_else_is_sent_nothing_happens(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pumped: list[int] = []
        pump = PartitionQueueDriver.pump

        def counted(driver: PartitionQueueDriver) -> None:
            pumped.append(1)
            pump(driver)

        monkeypatch.setattr(PartitionQueueDriver, "pump", counted)
        async with scripted() as (client, node, _, _):
            producer = await client.producer("orders", linger="0s")
            node.open.clear()
            await producer.send(b"first")
            await until(lambda: node.count(protocol.Publish) == 1)
            before = len(pumped)
            await turns(200)
            assert len(pumped) == before

    @async_test
    async def test_batches_are_closed_by_count_and_by_size(self) -> None:
        async with scripted() as (client, node, _, _):
            async with client.producer("orders", batch_count=10) as producer:
                for payload in numbered(100):
                    await producer.send(payload)
            assert max(entry.count for entry in node.partitions["orders"][0].entries) == 10
            async with client.producer("orders", batch_bytes=1000) as producer:
                for _ in range(20):
                    await producer.send(bytes(300))
            assert max(entry.count for entry in node.partitions["orders"][0].entries[-5:]) == 3

    @async_test
    async def test_no_more_batches_are_in_flight_than_a_partition_recognises_again(self) -> None:
        async with scripted() as (client, node, _, _):
            producer = await client.producer("orders", batch_count=1)
            node.open.clear()
            for payload in numbered(20):
                await producer.send(payload)
            await until(lambda: node.count(protocol.Publish) >= IN_FLIGHT_MAX)
            await turns()
            assert node.count(protocol.Publish) == IN_FLIGHT_MAX
            node.open.set()
            await producer.flush()
            assert node.payloads("orders") == [numbered(20)]

    @async_test
    async def test_messages_without_a_key_go_round_the_partitions_batch_by_batch(self) -> None:
        async with scripted(partitions=3) as (client, node, _, _):
            async with client.producer("orders", batch_count=10) as producer:
                for payload in numbered(90):
                    await producer.send(payload)
            stored = node.payloads("orders")
            assert sorted(flat(stored)) == numbered(90)
            assert [len(payloads) for payloads in stored] == [30, 30, 30]

    @async_test
    async def test_a_key_decides_the_partition(self) -> None:
        async with scripted(partitions=4) as (client, node, _, _):
            async with client.producer("orders") as producer:
                for number in range(100):
                    await producer.send(b"%d" % (number % 7), key=str(number % 7))
            router = KeyRouter.even(4)
            for index, payloads in enumerate(node.payloads("orders")):
                assert {router.partition(payload) for payload in payloads} <= {index}

    @async_test
    async def test_a_partition_may_be_chosen(self) -> None:
        async with scripted(partitions=4) as (client, _, _, _):
            published = await client.publish("orders", b"here", key="any", partition=3)
            assert published.partition == 3
            with pytest.raises(InvalidRequest, match="partitions 0 to 3, not 4"):
                await client.publish("orders", b"nowhere", partition=4)
            with pytest.raises(InvalidRequest, match="partition must be 0 or more"):
                await client.publish("orders", b"nowhere", partition=True)

    @async_test
    async def test_publishes_at_the_same_time_share_a_batch(self) -> None:
        async with scripted() as (client, node, _, _):
            await asyncio.gather(*(client.publish("orders", payload) for payload in numbered(100)))
            assert node.publishes < 10
            assert sorted(flat(node.payloads("orders"))) == numbered(100)


FATES = [fate for fate in Fate if fate is not Fate.ANSWERED]


class TestFailuresInPassing:
    @pytest.mark.parametrize(("fate", "at"), list(product(FATES, range(1, 8))))
    @async_test
    async def test_a_failure_at_any_moment_loses_and_repeats_nothing(
        self, fate: Fate, at: int
    ) -> None:
        async with scripted() as (client, node, _, _):
            node.fate = lambda number: fate if number == at else Fate.ANSWERED
            producer = await client.producer("orders", batch_count=3)
            deliveries = [await producer.send(payload) for payload in numbered(20)]
            await producer.flush()
            assert node.payloads("orders") == [numbered(20)]
            assert [(await delivery).offset for delivery in deliveries] == list(range(20))

    @pytest.mark.parametrize("seed", range(40))
    @async_test
    async def test_any_mixture_of_failures_loses_and_repeats_nothing(self, seed: int) -> None:
        chance = random.Random(seed)
        async with scripted(partitions=3) as (client, node, dialer, _):
            node.fate = lambda _: chance.choice(FATES) if chance.random() < 0.3 else Fate.ANSWERED
            producer = await client.producer("orders", batch_count=4, delivery_timeout="1d")
            sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
            for payload in numbered(200):
                partition = chance.randrange(3)
                sent[partition].append(payload)
                await producer.send(payload, partition=partition)
                if chance.random() < 0.1:
                    await asyncio.sleep(0)
                if chance.random() < 0.02:
                    dialer.lose_all()
            await producer.flush()
            assert node.payloads("orders") == list(sent.values()), f"seed {seed}"

    @async_test
    async def test_a_repeat_that_the_node_recognises_is_a_success(self) -> None:
        async with scripted() as (client, node, _, _):
            node.fate = lambda number: Fate.REPLY_LOST if number == 1 else Fate.ANSWERED
            published = await client.publish("orders", b"once")
            assert (published.offset, published.duplicate) == (0, False)
            assert node.payloads("orders") == [[b"once"]]

    @async_test
    async def test_a_node_that_is_down_for_a_while_is_waited_for(self) -> None:
        async with scripted() as (client, node, dialer, _):
            producer = await client.producer("orders")
            node.is_down = True
            dialer.lose_all()
            delivery = await producer.send(b"patient")
            await until(lambda: node.dials >= 10)
            assert not delivery.done()
            node.is_down = False
            assert (await delivery).offset == 0

    @async_test
    async def test_a_session_that_the_node_forgot_is_opened_anew(self) -> None:
        async with scripted() as (client, node, _, _):
            producer = await client.producer("orders")
            await (await producer.send(b"before"))
            node.partitions["orders"][0].sessions.clear()
            await (await producer.send(b"after"))
            assert node.payloads("orders") == [[b"before", b"after"]]
            assert node.count(protocol.OpenProducer) == 2


class TestFailuresForGood:
    @async_test
    async def test_a_refused_batch_fails_alone(self) -> None:
        async with scripted() as (client, node, _, _):
            refusal = InvalidBatch("not like this")
            node.fate = lambda number: refusal if number == 2 else Fate.ANSWERED
            producer = await client.producer("orders", batch_count=2)
            deliveries = [await producer.send(payload) for payload in numbered(10)]
            errors = [await failure(delivery) for delivery in deliveries]
            assert errors == [None, None, refusal, refusal, *[None] * 6]
            expected = [n for n in numbered(10) if n not in numbered(4)[2:]]
            assert node.payloads("orders") == [expected]

    @async_test
    async def test_messages_fail_when_their_time_is_up_and_later_ones_do_not(self) -> None:
        async with scripted() as (client, node, dialer, _):
            producer = await client.producer("orders", delivery_timeout="10s")
            node.is_down = True
            dialer.lose_all()
            late = await producer.send(b"late")
            assert isinstance(await failure(late), QuiverError)
            node.is_down = False
            assert (await (await producer.send(b"in time"))).offset == 0
            assert node.payloads("orders") == [[b"in time"]]

    @async_test
    async def test_why_messages_wait_is_told_once_in_a_while(self) -> None:
        with capture_logs() as lines:
            await self._wait_in_vain()
        assert [line["event"] for line in lines] == ["messages wait to be published"] * 4
        assert [line["log_level"] for line in lines] == ["warning"] * 4
        assert (lines[0]["topic"], lines[0]["code"]) == ("orders", "overloaded")

    async def _wait_in_vain(self) -> None:
        async with scripted() as (client, node, _, clock):
            producer = await client.producer("orders", delivery_timeout="100s")
            node.fate = lambda _: Fate.OVERLOADED
            began = clock.monotonic()
            assert isinstance(await failure(await producer.send(b"late")), Overloaded)
            assert clock.monotonic() - began >= 100

    @async_test
    async def test_after_a_message_in_doubt_expired_nothing_is_stored_twice(self) -> None:
        """Stored, unanswered and expired: what was sent behind it is not sent in a new session."""
        async with scripted() as (client, node, dialer, _):
            producer = await client.producer("orders", batch_count=1, delivery_timeout="10s")
            node.open.clear()
            deliveries = [await producer.send(payload) for payload in numbered(3)]
            await until(lambda: node.count(protocol.Publish) == 3)
            node.fate = lambda _: Fate.UNANSWERED
            node.open.set()
            await until(lambda: node.publishes >= 3)
            node.is_down = True
            dialer.lose_all()
            for delivery in deliveries:
                assert isinstance(await failure(delivery), QuiverError)
            node.is_down = False
            node.fate = lambda _: Fate.ANSWERED
            await (await producer.send(b"next"))
            assert node.payloads("orders") == [[*numbered(3), b"next"]]

    @async_test
    async def test_a_topic_that_is_gone_fails_what_was_sent_to_it_and_comes_back(self) -> None:
        async with scripted() as (client, node, _, _):
            await client.publish("orders", b"old")
            del node.topics["orders"], node.partitions["orders"]
            with pytest.raises(TopicNotFound):
                await client.publish("orders", b"nowhere")
            with pytest.raises(TopicNotFound):
                await client.publish("orders", b"nowhere")
            node.add_topic("orders", partitions=2)
            await client.publish("orders", b"new", partition=1)
            assert node.payloads("orders") == [[], [b"new"]]

    @async_test
    async def test_a_failure_that_nobody_looked_at_is_raised_by_flush(self) -> None:
        async with scripted() as (client, node, _, _):
            node.fate = lambda _: InvalidBatch("no")
            producer = await client.producer("orders")
            await producer.send(b"x")
            with pytest.raises(InvalidBatch):
                await producer.flush()
            await producer.flush()
            seen = await producer.send(b"y")
            assert isinstance(await failure(seen), InvalidBatch)
            await producer.close()

    @async_test
    async def test_a_message_over_the_topics_limit_is_refused_at_once(self) -> None:
        async with scripted(message_bytes_max=100) as (client, node, _, _):
            producer = await client.producer("orders")
            with pytest.raises(MessageTooLarge, match="101 bytes"):
                await producer.send(bytes(101))
            with pytest.raises(MessageTooLarge, match="allows 100"):
                await producer.send(bytes(60), key="k" * 30, headers={"name": "longer!"})
            await producer.send(bytes(100))
            await producer.close()
            assert node.publishes == 1

    @async_test
    async def test_a_limit_that_was_raised_is_noticed(self) -> None:
        async with scripted(message_bytes_max=100) as (client, node, _, clock):
            clock.now = 10.0
            producer = await client.producer("orders")
            node.topics["orders"].settings = type(node.topics["orders"].settings)(
                message_bytes_max=200
            )
            with pytest.raises(MessageTooLarge):
                await producer.send(bytes(150))
            while True:
                try:
                    await producer.send(bytes(150))
                    break
                except MessageTooLarge:
                    await asyncio.sleep(0)

    @async_test
    async def test_a_closed_producer_refuses_messages(self) -> None:
        async with scripted() as (client, _, _, _):
            producer = await client.producer("orders")
            await producer.close()
            await producer.close()
            with pytest.raises(InvalidRequest, match="closed"):
                await producer.send(b"x")

    @async_test
    async def test_an_error_inside_the_block_is_told_rather_than_one_of_flushing(self) -> None:
        async with scripted() as (client, node, _, _):
            node.fate = lambda _: InvalidBatch("no")

            async def block() -> None:
                async with client.producer("orders") as producer:
                    await producer.send(b"x")
                    raise KeyError("mine")

            with pytest.raises(KeyError):
                await block()


class TestBackPressure:
    @async_test
    async def test_send_waits_for_room_and_goes_on_when_there_is_some(self) -> None:
        async with scripted() as (client, node, _, _):
            producer = await client.producer("orders", buffer_bytes=1000)
            node.open.clear()
            for _ in range(9):
                await producer.send(bytes(84))
            blocked = asyncio.create_task(producer.send(bytes(200)))
            await turns()
            assert not blocked.done()
            node.open.set()
            await (await blocked)

    @async_test
    async def test_send_gives_up_when_there_is_no_room_in_time(self) -> None:
        node = ScriptedNode()
        node.add_topic("orders")
        client = AsyncClient(dialer=ScriptedDialer(node), clock=HastyClock(), timeout="20ms")
        producer = await client.producer("orders", buffer_bytes=1000)
        node.open.clear()
        await producer.send(bytes(900))
        with pytest.raises(Overloaded, match="buffer of 1,000 bytes stayed full"):
            await producer.send(bytes(900))
        node.open.set()
        await client.close()

    @async_test
    async def test_a_message_larger_than_the_buffer_goes_alone(self) -> None:
        async with scripted() as (client, node, _, _):
            producer = await client.producer("orders", buffer_bytes=100)
            for _ in range(3):
                await producer.send(bytes(5000))
            await producer.close()
            assert [entry.count for entry in node.partitions["orders"][0].entries] == [1, 1, 1]


class TestAcknowledgements:
    @async_test
    async def test_without_acknowledgement_a_message_is_done_when_it_is_written(self) -> None:
        async with scripted() as (client, node, _, _):
            producer = await client.producer("orders", acks="none")
            node.open.clear()
            delivery = await producer.send(b"gone")
            published = await delivery
            assert (published.offset, published.id) == (None, None)
            node.open.set()
            await producer.flush()
            assert node.payloads("orders") == [[b"gone"]]
            assert node.count(protocol.OpenProducer) == 0

    @async_test
    async def test_without_acknowledgement_a_broken_connection_repeats_nothing(self) -> None:
        async with scripted(acks="none") as (client, node, _, _):
            node.fate = lambda number: Fate.REPLY_LOST if number == 1 else Fate.ANSWERED
            producer = await client.producer("orders", batch_count=1)
            for payload in numbered(5):
                await (await producer.send(payload))
                await producer.flush()
            assert node.payloads("orders") == [numbered(5)]

    @async_test
    async def test_the_producers_choice_is_what_the_node_is_told(self) -> None:
        async with scripted() as (client, node, _, _):
            await client.publish("orders", b"x", acks="all")
            await client.publish("orders", b"x")
            told = [each.acks for each in node.requests if isinstance(each, protocol.Publish)]
            assert told == ["all", None]
            with pytest.raises(InvalidRequest, match="acks must be one of"):
                await client.publish("orders", b"x", acks="some")


class TestNames:
    @async_test
    async def test_a_rerun_sends_only_what_is_not_stored(self) -> None:
        async with scripted(partitions=3) as (client, node, _, _):
            async with client.producer("orders", name="import") as producer:
                for number, payload in enumerate(numbered(60)):
                    await producer.send(payload, sequence=number)
            async with client.producer("orders", name="import") as producer:
                deliveries = [
                    await producer.send(payload, sequence=number)
                    for number, payload in enumerate(numbered(100))
                ]
            published = [await delivery for delivery in deliveries]
            assert [each.duplicate for each in published] == [True] * 60 + [False] * 40
            assert {each.offset for each in published[:60]} == {None}
            assert sorted(flat(node.payloads("orders"))) == numbered(100)

    @async_test
    async def test_last_sequences_follow_what_is_acknowledged(self) -> None:
        async with scripted() as (client, _, _, _):
            producer = await client.producer("orders", name="import")
            assert producer.last_sequences == {}
            await (await producer.send(b"x", sequence=7))
            assert producer.last_sequences == {0: 7}
            again = await client.producer("orders", name="import")
            assert again.last_sequences == {0: 7}

    @async_test
    async def test_sequences_must_grow_and_need_a_name(self) -> None:
        async with scripted() as (client, _, _, _):
            producer = await client.producer("orders", name="import")
            await producer.send(b"x", sequence=7)
            with pytest.raises(InvalidRequest, match="7 came after 7"):
                await producer.send(b"x", sequence=7)
            with pytest.raises(InvalidRequest, match="a named producer"):
                await client.publish("orders", b"x", sequence=1)
            with pytest.raises(InvalidRequest, match="needs confirmations"):
                client.producer("orders", name="import", acks="none")

    @async_test
    async def test_a_producer_that_was_taken_over_stops(self) -> None:
        async with scripted() as (client, _, _, _):
            old = await client.producer("orders", name="import")
            await (await old.send(b"old", sequence=1))
            new = await client.producer("orders", name="import")
            await (await new.send(b"new", sequence=2))
            fenced = await old.send(b"zombie", sequence=3)
            assert isinstance(await failure(fenced), ProducerFenced)
            with pytest.raises(ProducerFenced):
                await old.send(b"zombie", sequence=4)

    @async_test
    async def test_after_a_lost_batch_it_stops_so_that_a_rerun_can_fill_the_hole(self) -> None:
        async with scripted() as (client, node, _, _):
            node.fate = lambda number: InvalidBatch("no") if number == 2 else Fate.ANSWERED
            producer = await client.producer("orders", name="import", batch_count=1)
            deliveries = [await producer.send(p, sequence=n) for n, p in enumerate(numbered(4))]
            assert await failure(deliveries[0]) is None
            assert isinstance(await failure(deliveries[1]), InvalidBatch)
            for delivery in deliveries[2:]:
                assert isinstance(await failure(delivery), ProducerError)
            with pytest.raises(ProducerError, match="open it again"):
                await producer.send(b"x", sequence=9)
            async with client.producer("orders", name="import") as again:
                for number, payload in enumerate(numbered(4)):
                    await again.send(payload, sequence=number)
            assert node.payloads("orders") == [numbered(4)]


async def failure(delivery: object) -> QuiverError | None:
    try:
        await delivery  # type: ignore[misc]
    except QuiverError as error:
        return error
    return None


class TestLayouts:
    @async_test
    async def test_keys_that_stay_in_their_partition_are_sent_by_the_new_layout(self) -> None:
        async with scripted(partitions=2) as (client, node, _, _):
            producer = await client.producer("orders")
            await (await producer.send(b"a", key="k"))
            node.topics["orders"].layout = 2
            assert (await (await producer.send(b"b", key="k"))).offset == 1

    @async_test
    async def test_keys_that_have_moved_go_where_they_belong(self) -> None:
        async with scripted(partitions=2) as (client, node, _, _):
            producer = await client.producer("orders")
            old = KeyRouter.even(2).partition(b"k")
            assert (await (await producer.send(b"a", key="k"))).partition == old
            info = node.topics["orders"]
            info.layout = 2
            info.partitions[0].first_hash = 0 if old else 1 << 31
            info.partitions[1].first_hash = (1 << 32) - 1 if old else 0
            assert (await (await producer.send(b"b", key="k"))).partition == 1 - old
            assert (await (await producer.send(b"c", key="k"))).partition == 1 - old

    @async_test
    async def test_flush_gives_up_after_its_own_time(self) -> None:
        async with scripted() as (client, node, _, _):
            producer = await client.producer("orders")
            node.open.clear()
            await producer.send(b"x")
            with pytest.raises(RequestTimeout, match="may still be stored"):
                await producer.flush(timeout=0.01)
            node.open.set()
            await producer.flush()
