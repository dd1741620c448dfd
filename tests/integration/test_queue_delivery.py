"""Receiving and settling: limits, waiting, leases, order, retries, dead letters and guarantees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiver
from quiver.client import AsyncClient
from quiver.client.consumer.received import ReceivedMessage, messages_in
from quiver.client.transport.cluster import expect
from quiver.config import NodeConfig
from quiver.embedded import EmbeddedDialer
from quiver.errors import InvalidRequest, StaleReceipt, SubscriptionNotFound
from quiver.model.clock import SystemClock
from quiver.model.subscription import Backoff
from quiver.protocol import Receive, Received
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.integration.queue_node import clocked
from tests.unit.broker.broker_doubles import until


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return [int(message.payload) for message in messages]


def filled(q: quiver.Client, count: int, **settings: Any) -> quiver.Client:
    """A queue with messages, which are delivered again at once."""
    q.create_queue("jobs", backoff={"min": 0}, **settings)
    q.publish_many("jobs", [b"%d" % n for n in range(count)])
    return q


# ---------------------------------------------------------------------- receiving


def test_a_receive_gives_no_more_than_was_asked_for(quiver_broker: quiver.Client) -> None:
    q = filled(quiver_broker, 20, partitions=4)
    assert len(q.receive("jobs", 7)) == 7
    assert len(q.receive("jobs", 100)) == 13
    for wrong in (0, -1, 10_001):
        with pytest.raises(InvalidRequest, match="10,000"):
            q.receive("jobs", wrong)


def test_ten_thousand_messages_come_in_one_batch(quiver_broker: quiver.Client) -> None:
    q = filled(quiver_broker, 10_001)
    batch = q.receive_batch("jobs")
    assert batch.num_rows == 10_000
    q.ack("jobs", batch)
    assert q.describe_subscription("jobs").ready == 1


@async_test
async def test_a_waiting_receive_is_answered_when_a_message_comes(tmp_path: Path) -> None:
    async with quiver.open_async(tmp_path) as q:
        await q.create_queue("jobs", partitions=2)
        for number in range(5):
            waiting = asyncio.create_task(q.receive("jobs", wait=20))
            await q.describe_subscription("jobs")
            begun = time.monotonic()
            await q.publish("jobs", str(number), partition=number % 2)
            assert numbers(await waiting) == [number]
            assert time.monotonic() - begun < 15


@async_test
async def test_a_wait_ends_with_nothing_when_its_time_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        waiting = asyncio.create_task(q.receive("jobs", wait=3))
        await lying_down(clock, 2)
        await clock.advance(3)
        assert await waiting == []


@async_test
async def test_of_those_who_wait_each_message_goes_to_one(tmp_path: Path) -> None:
    async with quiver.open_async(tmp_path) as q:
        await q.create_queue("jobs")
        waiting = [asyncio.create_task(q.receive("jobs", 1, wait=20)) for _ in range(10)]
        await q.publish_many("jobs", [b"%d" % n for n in range(10)])
        received = await asyncio.gather(*waiting)
        assert sorted(numbers([m for one in received for m in one])) == list(range(10))


@async_test
async def test_a_deleted_subscription_is_told_to_those_who_wait(tmp_path: Path) -> None:
    async with quiver.open_async(tmp_path) as q:
        await q.create_queue("jobs")
        waiting = asyncio.create_task(q.receive("jobs", wait=20))
        await q.describe_subscription("jobs")
        await q.delete_subscription("jobs")
        with pytest.raises(SubscriptionNotFound):
            await asyncio.wait_for(waiting, 15)


@async_test
async def test_one_who_waits_gets_what_another_let_lapse(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", visibility=1.5, backoff={"min": 0})
        waiting = asyncio.create_task(q.receive("jobs", wait=20))
        await lying_down(clock, 2)
        second = asyncio.create_task(q.receive("jobs", wait=20))
        await lying_down(clock, 3)
        await q.publish("jobs", b"1")
        await until(waiting.done)
        await lying_down(clock, 2)
        await advance(clock, 1.7, second)
        assert [m.deliveries for m in await second] == [2]


async def lying_down(clock: ManualClock, count: int) -> None:
    """Wait until so many sleep: the upkeep, and those who wait for messages."""
    await until(lambda: clock.sleepers >= count)


async def advance(clock: ManualClock, seconds: float, task: asyncio.Task[Any]) -> None:
    """Let time pass until a task is done, no longer than ``seconds``."""
    for _ in range(round(seconds * 10)):
        await clock.advance(0.1)
        for _ in range(20):
            if task.done():
                return
            await asyncio.sleep(0.001)
    assert task.done(), f"nothing within {seconds:g} s"


# ---------------------------------------------------------------------- settling

SHAPES: dict[str, Callable[[list[ReceivedMessage]], Any]] = {
    "messages": lambda messages: messages,
    "receipts": lambda messages: [m.receipt for m in messages],
    "column": lambda messages: pa.array([m.receipt for m in messages]),
    "chunks": lambda messages: pa.chunked_array([[m.receipt] for m in messages]),
    "batch": lambda messages: pa.record_batch({"receipt": [m.receipt for m in messages]}),
    "table": lambda messages: pa.table({"receipt": [m.receipt for m in messages]}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_many_are_settled_at_once_in_any_shape(quiver_broker: quiver.Client, shape: str) -> None:
    q = filled(quiver_broker, 6, partitions=2, visibility="1h")
    of = SHAPES[shape]
    first = q.receive("jobs", 6)
    q.extend("jobs", of(first), "2h")
    q.nack("jobs", of(first[:4]))
    q.ack("jobs", of(first[4:]))
    again = q.receive("jobs", 6)
    assert sorted(numbers(again)) == sorted(numbers(first[:4]))
    q.ack("jobs", of(again))
    info = q.describe_subscription("jobs")
    assert (info.ready, info.delayed, info.leased) == (0, 0, 0)


def test_one_message_is_settled_by_itself_or_by_its_receipt(quiver_broker: quiver.Client) -> None:
    q = filled(quiver_broker, 4)
    messages = q.receive("jobs")
    messages[0].ack()
    messages[1].nack()
    messages[2].extend("1h")
    q.ack("jobs", messages[2])
    q.ack("jobs", messages[3].receipt)
    assert numbers(q.receive("jobs")) == [1]


def test_what_is_no_receipt_cannot_be_settled(quiver_broker: quiver.Client) -> None:
    q = filled(quiver_broker, 1)
    for wrong in ([1], pa.table({"x": [1]}), [None]):
        with pytest.raises(InvalidRequest):
            q.ack("jobs", wrong)
    q.ack("jobs", [])


def test_a_nack_of_one_keeps_its_neighbours_leased(quiver_broker: quiver.Client) -> None:
    q = filled(quiver_broker, 5)
    messages = q.receive("jobs")
    messages[2].nack()
    assert [(int(m.payload), m.deliveries) for m in q.receive("jobs")] == [(2, 2)]
    q.ack("jobs", [m for m in messages if m is not messages[2]])
    assert q.describe_subscription("jobs").leased == 1


@async_test
async def test_a_lapsed_lease_redelivers_and_its_receipt_is_stale(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", visibility=10, backoff={"min": 0})
        await q.publish("jobs", b"1")
        (first,) = await q.receive("jobs")
        assert first.deadline_us == clock.time_us() + 10_000_000
        await clock.advance(9.9)
        assert await q.receive("jobs") == []
        await clock.advance(0.2)
        (second,) = await q.receive("jobs")
        assert (first.deliveries, second.deliveries) == (1, 2)
        with pytest.raises(StaleReceipt):
            await first.ack()
        await second.ack()
        await second.ack()  # as after a lost connection: it is told again that this was done
        with pytest.raises(StaleReceipt):
            await first.ack()


@async_test
async def test_an_extended_lease_holds_longer_and_the_receive_may_name_its_own(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", visibility=10, backoff={"min": 0})
        await q.publish_many("jobs", [b"1", b"2"])
        first, second = await q.receive("jobs", visibility=5)
        await first.extend("60s")
        await clock.advance(6)
        assert numbers(await q.receive("jobs")) == [int(second.payload)]
        await clock.advance(50)
        await first.ack()


@async_test
async def test_retries_back_off_and_a_given_delay_overrides(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", backoff=Backoff(min=10, max=15, factor=2), max_deliveries=0)
        await q.publish("jobs", b"1")
        for delay, least, most in (
            (None, 8, 10),
            (None, 12, 15),
            (None, 12, 15),
            (3, 3, 3),
            (0, 0, 0),
        ):
            (message,) = await q.receive("jobs")
            await message.nack(delay=delay)
            if most:
                await clock.advance(least - 0.1)
                assert await q.receive("jobs") == []
                await clock.advance(most - least + 0.2)
        assert [m.deliveries for m in await q.receive("jobs")] == [6]


def test_higher_priorities_come_first_within_a_receive(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", ageing=0)
    for priority in (1, 9, 4, 0, 9):
        q.publish("jobs", str(priority), priority=priority)
    assert numbers(q.receive("jobs", 2)) == [9, 9]
    assert numbers(q.receive("jobs")) == [4, 1, 0]


@async_test
async def test_delayed_messages_wait_and_expired_ones_never_come(tmp_path: Path) -> None:
    clock = ManualClock(start_us=SystemClock().time_us())  # the client tells both times
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        await q.publish("jobs", b"1", delay=100)
        await q.publish("jobs", b"2", ttl=100)
        await q.publish("jobs", b"3")
        received = await q.receive("jobs")
        assert numbers(received) == [2, 3]
        await q.nack("jobs", received)
        await clock.advance(200)
        assert sorted(numbers(await q.receive("jobs"))) == [1, 3]


# ---------------------------------------------------------------------- dead letters


def test_a_message_that_fails_too_often_becomes_a_dead_letter(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_queue("jobs", max_deliveries=3)
    q.publish("jobs", b"good")
    place = q.publish("jobs", b"poison", key="k", headers={"h": "1"})
    for attempt in range(3):
        for message in q.receive("jobs", wait=20):
            if message.payload == b"good":
                message.ack()
            else:
                message.nack(error=f"failure {attempt}")
    q.create_subscription("s", ["jobs.dlq*"], start="earliest")
    letters = q.receive_batch("s", wait=20).to_pylist()
    assert len(letters) == 1
    letter = letters[0]
    assert (letter["payload"], letter["key"]) == (b"poison", b"k")
    assert dict(letter["headers"]) == {"h": "1"}
    origin = [letter[f"origin_{name}"] for name in ("topic", "partition", "offset", "subscription")]
    assert origin == ["jobs", 0, place.offset, "jobs"]
    assert letter["last_error"] == "failure 2"
    info = q.describe_subscription("jobs")
    assert (info.ready, info.leased, info.delayed) == (0, 0, 0)


@pytest.mark.parametrize("max_deliveries", [5, 0])
def test_a_rejected_message_is_a_dead_letter_when_the_call_returns(
    quiver_broker: quiver.Client, max_deliveries: int
) -> None:
    q = filled(quiver_broker, 3, max_deliveries=max_deliveries)
    messages = q.receive("jobs")
    messages[1].reject(error="no such customer")
    (row,) = next(iter(q.read("jobs.dlq"))).to_pylist()
    assert (row["payload"], row["last_error"], row["deliveries"]) == (b"1", "no such customer", 1)
    assert row["first_delivery"] == row["last_delivery"] <= row["timestamp"]
    info = q.describe_subscription("jobs")
    assert (info.ready, info.delayed, info.leased, info.dead) == (0, 0, 2, 1)
    q.ack("jobs", [messages[0], messages[2]])
    assert q.redrive("jobs") == 1
    assert numbers(q.receive("jobs", wait=20)) == [1]


def test_a_reject_after_a_nack_knows_both_deliveries(quiver_broker: quiver.Client) -> None:
    q = filled(quiver_broker, 1)
    q.receive("jobs")[0].nack(error="mailbox full")
    q.receive("jobs")[0].reject(error="mailbox gone")
    (row,) = next(iter(q.read("jobs.dlq"))).to_pylist()
    assert (row["deliveries"], row["last_error"]) == (2, "mailbox gone")
    assert row["first_delivery"] < row["last_delivery"]


@pytest.mark.parametrize("shape", SHAPES)
def test_many_are_rejected_at_once_in_any_shape(quiver_broker: quiver.Client, shape: str) -> None:
    q = filled(quiver_broker, 6, partitions=2)
    q.reject("jobs", SHAPES[shape](q.receive("jobs", 6)), error="bad")
    assert sorted(int(one.payload) for one in q.peek("jobs.dlq")) == list(range(6))


@pytest.mark.parametrize("settings", [{"guarantee": "at-most-once"}, {"visibility": 0}])
def test_what_a_consumer_does_not_hold_cannot_be_rejected(
    quiver_broker: quiver.Client, settings: dict[str, Any]
) -> None:
    q = filled(quiver_broker, 1, **settings)
    (message,) = q.receive("jobs")
    q.receive("jobs", wait=1)  # the next has it where its lease has lapsed
    with pytest.raises(StaleReceipt):
        message.reject(error="bad")
    assert q.describe_subscription("jobs").dead == 0


@async_test
async def test_who_waits_for_a_key_goes_on_after_a_reject(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", ordering="key")
        await q.publish_many("jobs", [{"payload": b"%d" % n, "key": "k"} for n in range(2)])
        (first,) = await q.receive("jobs")
        waiting = asyncio.create_task(q.receive("jobs", wait=20))
        await lying_down(clock, 2)
        await first.reject(error="bad")
        await until(waiting.done)  # no time has passed
        assert numbers(await waiting) == [1]


def test_a_rejected_message_stays_a_dead_letter_after_a_restart(tmp_path: Path) -> None:
    with quiver.open(tmp_path) as q:
        filled(q, 2)
        q.receive("jobs")[0].reject(error="bad")
    with quiver.open(tmp_path) as q:
        assert [one.payload for one in q.peek("jobs.dlq")] == [b"0"]
        assert q.describe_subscription("jobs").leased == 1


def test_a_rejected_dead_letter_goes_to_dead_letters_of_its_own(
    quiver_broker: quiver.Client,
) -> None:
    q = filled(quiver_broker, 1)
    q.receive("jobs")[0].reject(error="bad")
    q.receive("jobs.dlq")[0].reject(error="still bad")
    assert q.peek("jobs.dlq") == []
    assert [one.payload for one in q.peek("jobs.dlq.dlq")] == [b"0"]


# ---------------------------------------------------------------------- order and guarantees


def prioritised(q: quiver.Client, ordering: str) -> list[int]:
    """A queue with this order and messages of mixed priorities; their numbers as published."""
    q.create_queue("jobs", ordering=ordering, ageing=0)
    for number, priority in enumerate((4, 9, 4, 9)):
        q.publish("jobs", str(number), key=f"k{number}", priority=priority)
    return [0, 1, 2, 3]


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_priorities_do_not_change_the_order_of_what_is_received(
    quiver_broker: quiver.Client, ordering: str
) -> None:
    published = prioritised(quiver_broker, ordering)
    assert numbers(quiver_broker.receive("jobs", wait=20)) == published


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_priorities_do_not_change_the_order_of_what_is_consumed(
    quiver_broker: quiver.Client, ordering: str
) -> None:
    published = prioritised(quiver_broker, ordering)
    messages = quiver_broker.consume("jobs")
    assert numbers([next(messages) for _ in published]) == published
    messages.close()


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_priorities_do_not_change_the_order_of_a_received_batch(
    quiver_broker: quiver.Client, ordering: str
) -> None:
    published = prioritised(quiver_broker, ordering)
    batch = quiver_broker.receive_batch("jobs", wait=20)
    assert [int(payload) for payload in batch.column("payload").to_pylist()] == published


def test_each_key_comes_in_order_to_one_consumer_at_a_time(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", ordering="key", partitions=2)
    q.publish_many("jobs", [{"payload": b"%d" % n, "key": f"k{n % 5}"} for n in range(100)])
    seen: dict[bytes, list[int]] = {}
    held: dict[str, list[ReceivedMessage]] = {}
    for turn in range(1000):
        name = f"c{turn % 3}"
        if name in held:
            messages = held.pop(name)
            q.ack("jobs", messages)
            for message in messages:
                seen.setdefault(message.key or b"", []).append(int(message.payload))
        messages = q.receive("jobs", 3, consumer=name)
        others = {m.key for other in held.values() for m in other}
        assert others.isdisjoint(m.key for m in messages)
        if messages:
            held[name] = messages
        elif not held:
            break
    assert seen == {f"k{k}".encode(): list(range(k, 100, 5)) for k in range(5)}


def test_at_most_once_never_delivers_again(tmp_path: Path) -> None:
    with quiver.open(tmp_path) as q:
        filled(q, 3, guarantee="at-most-once")
        assert len(q.receive("jobs", 2, visibility=0)) == 2
    with quiver.open(tmp_path) as q:
        assert numbers(q.receive("jobs", visibility=0)) == [2]
        assert q.receive("jobs") == []


def test_exactly_once_delivers_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with quiver.open(tmp_path) as q:
        filled(q, 3, guarantee="exactly-once")
        first, second, _ = q.receive("jobs")
        first.ack()
        second.nack()
        (again,) = q.receive("jobs")
        with pytest.raises(StaleReceipt):
            second.ack()
        again.ack()
    with quiver.open(tmp_path) as q:
        info = q.describe_subscription("jobs")
        assert (info.ready, info.leased) == (0, 1)


# ---------------------------------------------------------------------- consumers that are gone


@pytest.mark.parametrize("how", ["gone", "draining"])
@async_test
async def test_what_was_for_a_session_that_is_over_goes_to_the_next(
    tmp_path: Path, how: str
) -> None:
    dialer = EmbeddedDialer(NodeConfig(data=str(tmp_path)))
    async with AsyncClient(dialer=dialer) as q:
        await q.create_queue("jobs", guarantee="exactly-once", visibility="1h", partitions=3)
        for number in range(40):
            channel = await dialer.dial("")
            request = Receive(subscription="jobs", messages_max=9, bytes_max=9999, wait_ms=20_000)
            waiting = channel.start(request)
            publishing = asyncio.create_task(q.publish("jobs", str(number)))
            for _ in range(number * 3):
                await asyncio.sleep(0)
            if how == "draining":
                channel._session.drain()
                await asyncio.wait([waiting])
            await channel.close()
            await publishing
            (answer,) = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(answer, BaseException):
                (message,) = await asyncio.wait_for(q.receive("jobs", wait=20), 15)
                assert (numbers([message]), message.deliveries) == ([number], 1)
                await message.ack()
            else:
                await q.ack("jobs", messages_in(expect(Received, answer[0]), answer[1], "", None))


# ---------------------------------------------------------------------- retention


@async_test
async def test_retention_drops_only_what_every_subscription_has_passed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("t", retention={"acked": True}, segment_bytes=1 << 20)
        await q.create_subscription("a", ["t"])
        await q.create_subscription("b", ["t"])
        for _ in range(4):
            await q.publish("t", bytes(1 << 20))

        async def start() -> int:
            for _ in range(3):
                await clock.advance(1.1)
                await q.list_topics()
            return (await q.describe_topic("t")).partitions[0].start_offset or 0

        await q.ack("a", await q.receive("a", 4))
        assert await start() == 0
        messages = await q.receive("b", 4, visibility="1h")
        await q.ack("b", [messages[0], messages[1], messages[3]])
        while await start() < 2:
            pass
        assert await start() == 2
        await messages[2].ack()
        while await start() < 4:
            pass
