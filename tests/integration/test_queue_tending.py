"""Looking after queues: replay, peek, purge, cancel, redrive, and what became of one message."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

import quiver
from quiver.errors import (
    InvalidFilter,
    InvalidRequest,
    MessageNotFound,
    OffsetOutOfRange,
    PartitionNotFound,
    StaleReceipt,
    SubscriptionNotFound,
    TopicNotFound,
)
from quiver.testing.clock import ManualClock
from tests.aio import async_test, turns
from tests.integration.queue_node import clocked
from tests.unit.broker.broker_doubles import until


def payloads(q: quiver.Client, subscription: str) -> list[bytes]:
    messages = q.receive(subscription, 1000)
    q.ack(subscription, messages)
    return [message.payload for message in messages]


def fill(q: quiver.Client, queue: str, count: int) -> None:
    for number in range(count):
        q.publish(queue, b"%d" % number, headers={"parity": "odd" if number % 2 else "even"})


def fail_all(q: quiver.Client, queue: str, error: str = "bad") -> None:
    for message in q.receive(queue, 1000):
        message.nack(error=f"{error} {message.payload.decode()}")


# ---------------------------------------------------------------------- replay


def test_a_seek_to_the_start_delivers_everything_again(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    fill(q, "jobs", 3)
    assert payloads(q, "jobs") == [b"0", b"1", b"2"]
    q.seek("jobs", "earliest")
    assert payloads(q, "jobs") == [b"0", b"1", b"2"]


def test_a_seek_goes_to_an_offset_a_time_or_the_end(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    fill(q, "jobs", 4)
    q.seek("jobs", 2)
    assert payloads(q, "jobs") == [b"2", b"3"]
    q.seek("jobs", "-1h")
    assert len(payloads(q, "jobs")) == 4
    q.seek("jobs", timedelta(hours=-1))
    q.seek("jobs", "latest")
    assert payloads(q, "jobs") == []
    q.publish("jobs", b"new")
    assert payloads(q, "jobs") == [b"new"]


def test_a_seek_of_some_partitions_leaves_the_others(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_topic("t", partitions=2)
    q.create_subscription("s", ["t"], start="earliest")
    keys = {
        index: key for key in "abcdefgh" if (index := q.publish("t", key, key=key).partition) >= 0
    }
    assert set(keys) == {0, 1}
    total = len(payloads(q, "s"))
    q.seek("s", {("t", 1): 0})
    again = payloads(q, "s")
    assert 0 < len(again) < total
    assert keys[1].encode() in again
    assert keys[0].encode() not in again


def test_a_seek_ends_the_leases_and_survives_a_restart(tmp_path: Path) -> None:
    with quiver.open(tmp_path) as q:
        q.create_queue("jobs")
        fill(q, "jobs", 3)
        first, *_ = q.receive("jobs")
        q.seek("jobs", 1)
        with pytest.raises(StaleReceipt):
            first.ack()
    with quiver.open(tmp_path) as q:
        assert payloads(q, "jobs") == [b"1", b"2"]


@async_test
async def test_a_seek_wakes_whoever_waits(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as q:
        await q.create_queue("jobs")
        await q.publish("jobs", b"0")
        await q.ack("jobs", await q.receive("jobs"))
        waiting = asyncio.create_task(q.receive("jobs", wait=15))
        await turns()
        await q.seek("jobs", "earliest")
        assert [message.payload for message in await waiting] == [b"0"]


def test_a_seek_outside_the_log_is_refused_and_changes_nothing(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    fill(q, "jobs", 2)
    with pytest.raises(OffsetOutOfRange):
        q.seek("jobs", 3)
    with pytest.raises(PartitionNotFound):
        q.seek("jobs", {("jobs", 7): 0})
    with pytest.raises(InvalidRequest, match="not a position"):
        q.seek("jobs", "tomorrow")
    with pytest.raises(SubscriptionNotFound):
        q.seek("nobody", "earliest")
    assert payloads(q, "jobs") == [b"0", b"1"]


# ---------------------------------------------------------------------- peek and purge


def test_a_peek_shows_what_is_pending_and_changes_nothing(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    fill(q, "jobs", 2)
    q.publish("jobs", b"later", delay="1h")
    (held,) = q.receive("jobs", 1)
    seen = {message.payload: (message.state, message.deliveries) for message in q.peek("jobs")}
    assert seen == {b"0": ("leased", 1), b"1": ("ready", 0), b"later": ("delayed", 0)}
    assert [message.payload for message in q.peek("jobs", states=["ready"])] == [b"1"]
    assert len(q.peek("jobs", 2)) == 2
    held.ack()
    assert payloads(q, "jobs") == [b"1"]


def test_a_peek_refuses_states_that_there_are_not(quiver_broker: quiver.Client) -> None:
    quiver_broker.create_queue("jobs")
    with pytest.raises(InvalidRequest, match="ready, delayed, leased"):
        quiver_broker.peek("jobs", states=["eaten"])
    with pytest.raises(InvalidRequest, match="1 to 10,000"):
        quiver_broker.peek("jobs", 0)


def test_a_purge_leaves_nothing_whoever_has_it(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    fill(q, "jobs", 5)
    q.publish("jobs", b"later", delay="1h")
    held = q.receive("jobs", 2)
    assert q.purge("jobs") == 6
    info = q.describe_subscription("jobs")
    assert (info.ready, info.delayed, info.leased, info.unseen) == (0, 0, 0, 0)
    with pytest.raises(StaleReceipt):
        q.ack("jobs", held)
    q.publish("jobs", b"new")
    assert payloads(q, "jobs") == [b"new"]


def test_a_purge_by_filter_takes_only_what_matches(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    fill(q, "jobs", 6)
    assert q.purge("jobs", filter="headers.parity = 'odd' and offset >= 2") == 2
    assert payloads(q, "jobs") == [b"0", b"1", b"2", b"4"]
    with pytest.raises(InvalidFilter):
        q.purge("jobs", filter="headers.parity ~ 'odd'")


def test_the_state_of_every_pending_message_is_read_at_once(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_topic("t", partitions=2)
    q.create_subscription("s", ["t"], start="earliest")
    for number in range(6):
        q.publish("t", b"%d" % number, partition=number % 2)
    q.publish("t", b"later", partition=0, delay="1h")
    q.ack("s", [message for message in q.receive("s", 3) if message.offset == 0])
    of = {one.partition: one for one in q.pending("s")}
    states = [{label: list(part) for label, part in of[index].states.items()} for index in range(2)]
    taken = next(index for index in range(2) if "leased" in states[index])
    assert states[taken]["leased"] == [1, 2]
    assert {count: list(part) for count, part in of[taken].deliveries.items()} == {1: [1, 2]}
    assert states[1 - taken]["ready"] == [0, 1, 2]
    assert states[0]["delayed"] == [3]
    assert [of[index].next_offset for index in range(2)] == [4, 3]


# ---------------------------------------------------------------------- one message


def test_a_message_is_found_by_its_id_with_where_it_stands(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_topic("t")
    for name in ("done", "holding", "behind"):
        q.create_subscription(name, ["t"])
    published = q.publish("t", {"n": 1}, key="k")
    assert published.id is not None
    assert len(payloads(q, "done")) == 1
    q.receive("holding", consumer="worker-7")
    status = q.message_status("t", published.id)
    assert status.message is not None
    assert (status.message.json(), status.message.key) == ({"n": 1}, b"k")
    stands = {one.subscription: one for one in status.subscriptions}
    assert {name: one.state for name, one in stands.items()} == {
        "done": "acknowledged",
        "holding": "leased",
        "behind": "pending",
    }
    assert stands["holding"].consumer == "worker-7"
    assert stands["holding"].until is not None
    assert stands["holding"].deliveries == 1


def test_a_delayed_and_a_dead_message_are_told_apart(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", max_deliveries=1)
    dead = q.publish("jobs", b"poison")
    fail_all(q, "jobs")
    later = q.publish("jobs", b"later", delay="1h")
    (one,) = q.message_status("jobs", str(dead.id)).subscriptions
    assert one.state == "dead-lettered"
    (one,) = q.message_status("jobs", str(later.id)).subscriptions
    assert one.state == "delayed"
    assert one.until is not None


def test_an_id_of_no_message_is_an_error(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    q.create_queue("other")
    remote = q.publish("other", b"1")
    with pytest.raises(MessageNotFound):
        q.message_status("jobs", str(remote.id))
    with pytest.raises(InvalidRequest, match="not a message id"):
        q.message_status("jobs", "nonsense")


def test_a_scheduled_message_is_cancelled_for_every_subscription(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_topic("t")
    for name in ("a", "b"):
        q.create_subscription(name, ["t"])
    kept = q.publish("t", b"kept", delay="1h")
    gone = q.publish("t", b"gone", delay="1h")
    now = q.publish("t", b"now")
    assert q.cancel("t", [str(gone.id), str(now.id)]) == 1
    for name in ("a", "b"):
        (message,) = q.peek(name, states=["delayed"])
        assert message.id == kept.id
    assert payloads(q, "a") == [b"now"]
    assert q.cancel("t", str(gone.id)) == 0


@async_test
async def test_a_cancelled_message_stays_cancelled_when_its_time_comes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs")
        later = await q.publish("jobs", b"later", delay=60)
        assert await q.cancel("jobs", str(later.id)) == 1
    async with clocked(tmp_path, clock) as q:
        await clock.advance(61)
        assert await q.receive("jobs") == []


# ---------------------------------------------------------------------- dead letters and redrive


def test_dead_letters_are_a_queue_with_what_is_known_of_each(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", max_deliveries=2, backoff={"min": 0})
    q.publish("jobs", b"poison", key="k", headers={"a": "b"})
    fail_all(q, "jobs", "first")
    fail_all(q, "jobs", "second")
    (letter,) = q.receive("jobs.dlq", visibility=0)
    assert (letter.payload, letter.key, letter.headers) == (b"poison", b"k", {"a": "b"})
    (row,) = next(iter(q.read("jobs.dlq"))).to_pylist()
    assert (row["origin_topic"], row["origin_partition"], row["origin_offset"]) == ("jobs", 0, 0)
    assert (row["origin_subscription"], row["deliveries"]) == ("jobs", 2)
    assert row["last_error"] == "second poison"
    assert row["origin_time"] <= row["first_delivery"] < row["last_delivery"] <= row["timestamp"]


def test_a_redrive_sends_dead_letters_back_to_be_tried_again(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", max_deliveries=1, partitions=2)
    fill(q, "jobs", 6)
    fail_all(q, "jobs")
    assert q.redrive("jobs", dry_run=True) == 6
    assert q.redrive("jobs") == 6
    again = q.receive("jobs", 100)
    assert sorted(message.payload for message in again) == [b"%d" % n for n in range(6)]
    assert {message.headers["parity"] for message in again} == {"odd", "even"}
    assert {message.deliveries for message in again} == {1}
    assert q.redrive("jobs.dlq") == 0
    assert q.describe_subscription("jobs.dlq").ready == 0


def test_a_redrive_is_for_the_subscription_that_failed_and_for_no_other(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_topic("t")
    q.create_subscription("fails", ["t"], max_deliveries=1)
    q.create_subscription("works", ["t"])
    q.publish("t", b"1")
    assert payloads(q, "works") == [b"1"]
    fail_all(q, "fails")
    assert q.redrive("fails") == 1
    assert payloads(q, "fails") == [b"1"]
    assert payloads(q, "works") == []


def test_a_redrive_goes_elsewhere_and_chooses_by_filter(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", max_deliveries=1)
    q.create_queue("hospital")
    fill(q, "jobs", 4)
    fail_all(q, "jobs")
    chosen = "last_error = 'bad 3' or headers.parity = 'even'"
    assert q.redrive("jobs", to="hospital", filter=chosen, dry_run=True) == 3
    assert q.redrive("jobs", to="hospital", filter=chosen) == 3
    assert payloads(q, "hospital") == [b"0", b"2", b"3"]
    assert payloads(q, "jobs") == []
    assert payloads(q, "jobs.dlq") == [b"1"]
    with pytest.raises(TopicNotFound):
        q.redrive("jobs", to="nowhere")


def test_a_redrive_of_a_queue_without_dead_letters_touches_nothing(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    q.create_queue("other")
    fill(q, "jobs", 2)
    assert q.redrive("jobs", to="other") == 0
    assert payloads(q, "jobs") == [b"0", b"1"]


@async_test
async def test_a_redrive_keeps_to_its_rate(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", max_deliveries=1)
        await q.publish_many("jobs", [b"%d" % number for number in range(30)])
        await q.nack("jobs", await q.receive("jobs", 100))
        q._clock = clock
        sent: list[tuple[float, int]] = []
        began = clock.monotonic()
        redrive = asyncio.create_task(
            q.redrive(
                "jobs", rate=10, on_progress=lambda n: sent.append((clock.monotonic() - began, n))
            )
        )
        for step in range(1, 4):
            await until(lambda: len(sent) >= step)  # noqa: B023 - called before the next step
            await clock.advance(1)
        assert await redrive == 30
        assert [count for _, count in sent] == [10, 20, 30]
        assert [at >= due for (at, _), due in zip(sent, (0, 1, 2), strict=True)] == [True] * 3


def test_dead_letters_of_dead_letters_are_never_made(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", max_deliveries=1)
    fill(q, "jobs", 1)
    fail_all(q, "jobs")
    for _ in range(7):
        q.nack("jobs.dlq", q.receive("jobs.dlq"), delay=0)
    assert payloads(q, "jobs.dlq") == [b"0"]
    assert "jobs.dlq.dlq" not in [topic.name for topic in q.list_topics()]


# ---------------------------------------------------------------------- long work, lost messages


@async_test
async def test_work_that_takes_longer_than_the_visibility_keeps_its_lease(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        q._clock = clock
        await q.create_topic("other")
        await q.create_queue("jobs", visibility=30)
        await q.publish("jobs", b"long")
        consuming = q.consume("jobs")
        message = await anext(consuming)
        for _ in range(100):
            await clock.advance(1)
            await q.publish("other", b"1")  # takes as long as an extension does on the disk
            assert await q.receive("jobs", consumer="other") == []
        await message.ack()
        await consuming.aclose()  # type: ignore[attr-defined]
        assert (await q.describe_subscription("jobs")).leased == 0


@async_test
async def test_after_the_longest_processing_time_the_message_comes_back(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        q._clock = clock
        await q.create_queue("jobs", visibility=3, max_processing=5, backoff={"min": 0})
        await q.publish("jobs", b"stuck")
        consuming = q.consume("jobs")
        await anext(consuming)
        for _ in range(30):
            await clock.advance(1)
            await turns()
            info = await q.describe_subscription("jobs")
            if not info.leased:
                break
        assert (info.leased, info.ready) == (0, 1)
        await consuming.aclose()  # type: ignore[attr-defined]


def test_what_a_consumer_did_not_look_at_goes_back_when_it_stops(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    fill(q, "jobs", 5)
    for message in q.consume("jobs"):
        message.ack()
        break
    left = q.receive("jobs", 10)
    assert [message.payload for message in left] == [b"1", b"2", b"3", b"4"]
    assert {message.deliveries for message in left} == {1}


@async_test
async def test_unread_messages_that_retention_removes_are_counted(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue(
            "jobs",
            retention=quiver.Retention(age=60, unread="drop"),
            segment_bytes=1 << 20,
            segment_age_s=1,
        )
        for number in range(3):
            await q.publish("jobs", b"%d" % number)
            await clock.advance(2)
        await q.ack("jobs", await q.receive("jobs", 1))
        async with asyncio.timeout(50):
            while (await q.describe_node()).counters["quiver_unread_lost_messages_total"] < 1:
                await clock.advance(30)
                await asyncio.sleep(0.01)
        counters = (await q.describe_node()).counters
        assert counters["quiver_unread_lost_messages_total"] in (1, 2)
