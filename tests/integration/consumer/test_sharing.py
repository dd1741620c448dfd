"""Consumers share a short queue: what is ready does not wait for one that is busy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

import quiver
from tests.aio import async_test
from tests.integration.client_node import ThreadNode
from tests.integration.consumer.waiting import eventually, numbered, publish


@contextmanager
def busy_worker(url: str, queue: str = "jobs") -> Iterator[threading.Event]:
    """Takes one message and works on it until the end. The event is set once it has it."""
    has_one, is_over = threading.Event(), threading.Event()

    def work() -> None:
        with quiver.Client(url) as client:
            for message in client.consume(queue):
                has_one.set()
                is_over.wait(60)
                message.ack()
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield has_one
    finally:
        is_over.set()
        thread.join(20)


def taken(q: quiver.Client, count: int, queue: str = "jobs") -> tuple[list[str], float]:
    """So many messages, and how long they took."""
    began = time.monotonic()
    found = []
    for message in islice(q.consume(queue), count):
        found.append(message.text())
        message.ack()
    return found, time.monotonic() - began


def test_ready_messages_are_with_an_idle_worker_while_another_is_busy(
    node: ThreadNode, q: quiver.Client
) -> None:
    q.create_queue("jobs")
    with busy_worker(node.url) as has_one:
        publish(q, "jobs", numbered(10))
        assert has_one.wait(20)
        found, seconds = taken(q, 9)
    assert found == numbered(10)[1:]
    assert seconds < 1


def test_what_comes_while_one_is_busy_goes_to_the_idle_one_at_once(
    node: ThreadNode, q: quiver.Client
) -> None:
    q.create_queue("jobs")
    publish(q, "jobs", ["long"])
    with busy_worker(node.url) as has_one:
        assert has_one.wait(20)
        time.sleep(0.2)  # it has been busy for a while
        found: list[str] = []
        idle = threading.Thread(target=lambda: found.extend(taken(q, 20)[0]))
        idle.start()
        publish(q, "jobs", numbered(20))
        idle.join(2)
        assert found == numbered(20)
    idle.join(20)


def test_a_busy_worker_gets_nothing_from_a_node_that_comes_back(
    node: ThreadNode, q: quiver.Client
) -> None:
    q.create_queue("jobs")
    publish(q, "jobs", ["long"])
    with busy_worker(node.url) as has_one:
        assert has_one.wait(20)
        time.sleep(0.2)  # it has been busy for a while
        node.stop()
        node.start()
        eventually(lambda: q.describe_subscription("jobs").consumers, "the worker is back")
        publish(q, "jobs", numbered(10))
        found, seconds = taken(q, 10)
    assert found == numbered(10)
    assert seconds < 1


@async_test
async def test_tasks_may_share_a_consumer_and_one_that_is_busy_does_not_keep_others_waiting(
    node: ThreadNode,
) -> None:
    async with quiver.AsyncClient(node.url) as q:
        await q.create_queue("jobs")
        async with q.consumer("jobs") as messages:
            waiting = [asyncio.ensure_future(anext(messages)) for _ in range(2)]
            await q.publish("jobs", b"long")
            done, (other,) = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert [one.result().text() for one in done] == ["long"]
            await asyncio.sleep(0.3)  # the first task is busy, the other waits
            await q.publish("jobs", b"short")
            async with asyncio.timeout(1):
                assert (await other).text() == "short"


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once", "exactly-once"])
@async_test
async def test_a_program_that_asks_for_a_limited_time_loses_and_counts_nothing(
    node: ThreadNode, guarantee: str
) -> None:
    count = 60
    async with quiver.AsyncClient(node.url) as q:
        await q.create_queue("jobs", guarantee=guarantee)
        async with q.consumer("jobs") as messages:
            found = []
            await q.publish_many("jobs", [text.encode() for text in numbered(count)])
            patience_s = 0.0
            while len(found) < count:
                try:
                    async with asyncio.timeout(patience_s):
                        message = await anext(messages)
                except TimeoutError:
                    patience_s += 0.0001
                    continue
                patience_s /= 4
                assert message.deliveries == 1
                found.append(message.text())
                if guarantee != "at-most-once":
                    await message.ack()
    assert sorted(found, key=int) == numbered(count)
