"""Ways out of a loop: what becomes of the message in hand, and of what waited for the program."""

from __future__ import annotations

import asyncio

import pytest

import quiver
from quiver.client.consumer.consumer import LEFT
from tests.aio import async_test
from tests.integration.client_node import ThreadNode
from tests.integration.consumer.waiting import dead_letters, numbered, publish

MESSAGES = numbered(20)


@pytest.fixture
def jobs(q: quiver.Client) -> quiver.Client:
    """A queue in which one failure makes a dead letter: so its reason can be seen."""
    q.create_queue("jobs", max_deliveries=1)
    publish(q, "jobs", MESSAGES)
    return q


def deliveries(q: quiver.Client) -> dict[str, int]:
    """Of what is ready now, how often each was delivered, this time included."""
    return {one.text(): one.deliveries for one in q.receive("jobs", 100)}


def rest() -> dict[str, int]:
    return dict.fromkeys(MESSAGES[1:], 1)


def test_an_exception_in_a_block_nacks_the_message_in_hand_with_its_text(
    jobs: quiver.Client,
) -> None:
    def work() -> None:
        with jobs.consumer("jobs") as messages:
            for _ in messages:
                raise ValueError("bad address")

    with pytest.raises(ValueError, match="bad address"):
        work()
    assert dead_letters(jobs, "jobs") == [("0", "ValueError: bad address")]
    assert deliveries(jobs) == rest()


def test_the_message_that_was_settled_is_not_nacked_by_an_exception(jobs: quiver.Client) -> None:
    def work() -> None:
        with jobs.consumer("jobs") as messages:
            for message in messages:
                message.ack()
                raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        work()
    assert jobs.describe_subscription("jobs").dead == 0
    assert deliveries(jobs) == rest()


def test_an_exception_in_a_plain_loop_gives_up_the_message_in_hand(jobs: quiver.Client) -> None:
    def work() -> None:
        for _ in jobs.consume("jobs"):
            raise ValueError("bad address")

    with pytest.raises(ValueError, match="bad address"):
        work()
    assert dead_letters(jobs, "jobs") == [("0", LEFT)]
    assert deliveries(jobs) == rest()


def test_a_break_gives_up_the_message_in_hand_and_returns_the_rest(jobs: quiver.Client) -> None:
    for _ in jobs.consume("jobs", prefetch=10):
        break
    assert dead_letters(jobs, "jobs") == [("0", LEFT)]
    assert deliveries(jobs) == rest()


def test_a_break_after_the_ack_counts_nothing(jobs: quiver.Client) -> None:
    for message in jobs.consume("jobs", prefetch=10):
        message.ack()
        break
    assert jobs.describe_subscription("jobs").dead == 0
    assert deliveries(jobs) == rest()


def test_closing_a_generator_gives_up_the_message_in_hand(jobs: quiver.Client) -> None:
    messages = jobs.consume("jobs")
    next(messages)
    messages.close()  # type: ignore[attr-defined]
    assert dead_letters(jobs, "jobs") == [("0", LEFT)]
    assert deliveries(jobs) == rest()


def test_what_quick_messages_were_started_with_and_the_program_never_saw_counts_nothing(
    q: quiver.Client,
) -> None:
    q.create_queue("jobs")
    publish(q, "jobs", numbered(3000))
    seen = []
    for message in q.consume("jobs"):
        seen.append(message.text())
        message.ack()
        if len(seen) == 1234:
            break
    left = [one for _ in range(40) for one in q.receive("jobs", 100)]
    assert {one.deliveries for one in left} == {1}
    assert sorted(seen + [one.text() for one in left], key=int) == numbered(3000)


def test_at_most_once_loses_nothing_when_the_loop_is_left(q: quiver.Client) -> None:
    q.create_queue("jobs", guarantee="at-most-once")
    publish(q, "jobs", numbered(500))
    seen = []
    for message in q.consume("jobs"):
        seen.append(message.text())
        if len(seen) == 123:
            break
    left = [one.text() for _ in range(10) for one in q.receive("jobs", 100)]
    assert sorted(seen + left, key=int) == numbered(500)


@async_test
async def test_an_exception_in_an_async_block_nacks_with_its_text(node: ThreadNode) -> None:
    async with quiver.AsyncClient(node.url) as q:
        await q.create_queue("jobs", max_deliveries=1)
        await q.publish_many("jobs", [b"0", b"1"])

        async def work() -> None:
            async with q.consumer("jobs") as messages:
                async for _ in messages:
                    raise ValueError("bad")

        with pytest.raises(ValueError, match="bad"):
            await work()
        assert [one.text() for one in await q.receive("jobs.dlq", wait=10)] == ["0"]
        assert [one.deliveries for one in await q.receive("jobs", wait=10)] == [1]


@async_test
async def test_a_break_in_an_async_loop_gives_up_the_message_in_hand(node: ThreadNode) -> None:
    async with quiver.AsyncClient(node.url) as q:
        await q.create_queue("jobs", max_deliveries=1)
        await q.publish_many("jobs", [b"0", b"1"])
        async for _ in q.consume("jobs"):
            break
        while not (await q.describe_subscription("jobs")).dead:  # noqa: ASYNC110 - the node's state
            await asyncio.sleep(0.01)  # the event loop closes the generator
        assert [one.deliveries for one in await q.receive("jobs", wait=10)] == [1]
