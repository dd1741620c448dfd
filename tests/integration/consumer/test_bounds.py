"""Bounds: huge messages, slow consumers and many sessions hold little, and nobody else notices."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

import quiver
from quiver.broker.subscription import consumer
from quiver.client.consumer.session.session import ConsumerSession
from tests.aio import async_test
from tests.integration.client_node import ThreadNode
from tests.integration.consumer.conftest import StartWorker
from tests.integration.consumer.waiting import (
    eventually,
    numbered,
    pending,
    publish,
    wait_until_empty,
)
from tests.integration.consumer.workers import handle_each, hold_first

MIB = 1 << 20
BUFFERED_MAX = 17 * MIB
"""What a session may hold that no program has: 16 MiB, and the last message."""


def buffered_bytes(session: ConsumerSession) -> int:
    """How many bytes wait for the program."""
    return sum(len(one.payload) for pushed in session._pushed for one in pushed.messages)


def publish_huge(q: quiver.Client, count: int) -> None:
    for number in range(count):
        q.publish("jobs", bytes([number]) * MIB)


@pytest.mark.parametrize("prefetch", [None, 10_000])
def test_what_waits_for_a_slow_program_is_bounded_in_bytes(
    q: quiver.Client, prefetch: int | None
) -> None:
    q.create_queue("jobs")
    publish_huge(q, 60)
    most, found = 0, 0
    with q.consumer("jobs", prefetch=prefetch) as messages:
        while found < 60:
            message = next(messages)
            time.sleep(0.02)
            most = max(most, buffered_bytes(messages._session))
            assert len(message.payload) == MIB
            message.ack()
            found += 1
    assert most <= BUFFERED_MAX
    assert pending(q, "jobs") == 0


def test_a_consumer_of_huge_messages_does_not_disturb_others(
    node: ThreadNode, q: quiver.Client
) -> None:
    q.create_queue("jobs")
    q.create_queue("others")
    publish_huge(q, 40)
    is_over = threading.Event()

    def work() -> None:
        with quiver.Client(node.url) as client, client.consumer("jobs", prefetch=10_000) as huge:
            next(huge)
            is_over.wait(60)

    slow = threading.Thread(target=work)
    slow.start()
    try:
        eventually(lambda: q.describe_subscription("jobs").leased == 1, "it has one in hand")
        with q.consumer("others") as messages:
            seconds = []
            for text in numbered(50):
                began = time.monotonic()
                publish(q, "others", [text])
                message = next(messages)
                seconds.append(time.monotonic() - began)
                assert message.text() == text
                message.ack()
        assert sorted(seconds)[len(seconds) // 2] < 0.25
    finally:
        is_over.set()
        slow.join(20)


def test_a_quick_consumer_does_not_wait_for_a_count_of_what_it_has_in_hand(
    q: quiver.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "IN_HAND_MAX", 500)
    q.create_queue("jobs")
    publish(q, "jobs", numbered(20_000))
    began = time.monotonic()
    with q.consumer("jobs") as messages:
        for _, message in zip(range(20_000), messages, strict=False):
            message.ack()
    assert time.monotonic() - began < 5


def test_a_consumer_that_has_too_many_in_hand_gets_more_once_it_settles_some(
    q: quiver.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "IN_HAND_MAX", 10)
    q.create_queue("jobs")
    publish(q, "jobs", numbered(30))
    with q.consumer("jobs", prefetch=1) as messages:
        held = [next(messages) for _ in range(10)]
        time.sleep(0.2)
        assert q.describe_subscription("jobs").leased == 10
        for message in held:
            message.ack()
        for _ in range(20):
            next(messages).ack()


@async_test
async def test_a_client_may_have_a_thousand_sessions(node: ThreadNode) -> None:
    async with quiver.AsyncClient(node.url) as q:
        await q.create_queue("jobs")
        consumers = [q.consumer("jobs") for _ in range(1000)]
        for start in range(0, 1000, 100):
            await asyncio.gather(*(one.__aenter__() for one in consumers[start : start + 100]))
        asking = [asyncio.ensure_future(anext(one)) for one in consumers]
        await q.publish_many("jobs", [text.encode() for text in numbered(3000)])
        found = [message.text() for message in await asyncio.gather(*asking)]
        assert len(set(found)) == 1000
        for start in range(0, 1000, 100):
            await asyncio.gather(*(one.close() for one in consumers[start : start + 100]))
        info = await q.describe_subscription("jobs")
        assert (info.ready, info.leased) == (3000, 0)


def test_each_thread_may_have_a_session_of_one_client(q: quiver.Client) -> None:
    q.create_queue("jobs")
    publish(q, "jobs", numbered(400))
    found: list[str] = []

    def work() -> None:
        for message in q.consume("jobs"):
            if message.text() == "end":
                message.ack()
                return
            found.append(message.text())
            message.ack()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(found) >= 400, "all are handled")
    publish(q, "jobs", ["end"] * 8)
    for thread in threads:
        thread.join(20)
    assert sorted(found, key=int) == numbered(400)
    wait_until_empty(q, "jobs")


@pytest.mark.process
def test_a_consumer_may_choose_how_long_it_is_trusted(
    q: quiver.Client, start_worker: StartWorker
) -> None:
    q.create_queue("jobs")  # with the default visibility, 30 s
    publish(q, "jobs", ["held"])
    silent = start_worker(hold_first, visibility=2)
    silent.said("got")
    eventually(lambda: q.describe_subscription("jobs").leased == 1, "it is leased")
    silent.signal(signal.SIGSTOP)
    at = time.monotonic()
    (got,) = start_worker(handle_each).said("got")
    assert got.deliveries == 2
    assert 1 < got.at - at < 6


@pytest.mark.process
def test_a_program_that_hangs_keeps_its_message_no_longer_than_allowed(
    q: quiver.Client, start_worker: StartWorker
) -> None:
    q.create_queue("jobs", visibility=1, max_processing=2, backoff={"min": 0, "max": 0})
    publish(q, "jobs", ["hangs"])
    hanging = start_worker(hold_first)
    (first,) = hanging.said("got")
    (second,) = start_worker(handle_each).said("got")
    assert second.deliveries == 2
    assert 2 <= second.at - first.at < 6
