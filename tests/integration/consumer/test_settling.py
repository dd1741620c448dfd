"""Settling in a loop: it waits for nothing unless asked to, and nothing is lost when the loop ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import quiver
from quiver.client.consumer.received import ReceivedMessage
from quiver.errors import InvalidRequest, StaleReceipt
from tests.aio import async_test
from tests.integration.client_node import ThreadNode
from tests.integration.consumer.slow_disk import HeldDisk, disk
from tests.integration.consumer.waiting import eventually, numbered, pending, publish

__all__ = ["disk"]

MESSAGES = numbered(50)


def filled(q: quiver.Client, payloads: list[str] = MESSAGES, **settings: object) -> None:
    q.create_queue("jobs", **{"backoff": {"min": 0, "max": 0}, **settings})
    publish(q, "jobs", payloads)
    pending(q, "jobs")  # opens its dead-letter queue too, before a test holds the disk


def test_acks_in_a_loop_do_not_wait_for_the_disk(q: quiver.Client, disk: HeldDisk) -> None:
    filled(q)
    with q.consumer("jobs") as messages:
        with disk.held():
            for _, message in zip(MESSAGES, messages, strict=False):
                message.ack()
            assert pending(q, "jobs") <= len(MESSAGES)
        messages.flush()
        assert pending(q, "jobs") == 0


@pytest.mark.parametrize("wait", [True, None])
def test_an_ack_that_waits_returns_when_it_is_durable(
    q: quiver.Client, disk: HeldDisk, wait: bool | None
) -> None:
    filled(q, guarantee="at-least-once" if wait else "exactly-once")
    with q.consumer("jobs") as messages:
        message = next(messages)
        acking = threading.Thread(target=lambda: message.ack(wait=wait))
        with disk.held():
            acking.start()
            acking.join(0.3)
            assert acking.is_alive()
        acking.join(20)
        assert not acking.is_alive()
        assert pending(q, "jobs") == len(MESSAGES) - 1


def test_an_exactly_once_ack_that_need_not_wait_does_not(q: quiver.Client, disk: HeldDisk) -> None:
    filled(q, guarantee="exactly-once")
    with q.consumer("jobs") as messages:
        message = next(messages)
        with disk.held():
            message.ack(wait=False)
        messages.flush()
        assert pending(q, "jobs") == len(MESSAGES) - 1


def test_flush_waits_until_all_that_was_settled_is_durable(
    q: quiver.Client, disk: HeldDisk
) -> None:
    filled(q)
    with q.consumer("jobs") as messages:
        for _, message in zip(MESSAGES[:-1], messages, strict=False):
            message.ack()
        with disk.held():
            next(messages).ack()
            flushing = threading.Thread(target=messages.flush)
            flushing.start()
            flushing.join(0.3)
            assert flushing.is_alive()
        flushing.join(20)
        assert pending(q, "jobs") == 0


def leave_with(q: quiver.Client) -> None:
    with q.consumer("jobs") as messages:
        for _, message in zip(MESSAGES, messages, strict=False):
            message.ack()


def leave_for(q: quiver.Client) -> None:
    for number, message in enumerate(q.consume("jobs"), 1):
        message.ack()
        if number == len(MESSAGES):
            break


def close_generator(q: quiver.Client) -> None:
    messages = q.consume("jobs")
    for _, message in zip(MESSAGES, messages, strict=False):
        message.ack()
    messages.close()  # type: ignore[attr-defined]


def close_consumer(q: quiver.Client) -> None:
    messages = q.consumer("jobs").__enter__()
    for _, message in zip(MESSAGES, messages, strict=False):
        message.ack()
    messages.close()


@pytest.mark.parametrize("leave", [leave_with, leave_for, close_generator, close_consumer])
def test_all_that_was_acked_is_durable_when_the_loop_has_ended(
    q: quiver.Client, node: ThreadNode, leave: Callable[[quiver.Client], None]
) -> None:
    filled(q)
    leave(q)
    node.stop()
    node.start()
    assert pending(q, "jobs") == 0


def test_all_that_was_acked_is_durable_when_the_client_is_closed(node: ThreadNode) -> None:
    with quiver.Client(node.url) as other:
        filled(other)
        q = quiver.Client(node.url)
        messages = q.consume("jobs")
        for _, message in zip(MESSAGES, messages, strict=False):
            message.ack()
        q.close()
        assert pending(other, "jobs") == 0


@async_test
async def test_an_awaited_ack_is_durable_and_one_that_is_not_awaited_waits_for_nothing(
    node: ThreadNode, disk: HeldDisk
) -> None:
    async with quiver.AsyncClient(node.url) as q:
        await q.create_queue("jobs")
        await q.publish_many("jobs", [b"0", b"1", b"2"])
        async with q.consumer("jobs") as messages:
            first = await anext(messages)
            await first.ack()
            info = await q.describe_subscription("jobs")
            assert (info.ready or 0) + (info.leased or 0) == 2
            with disk.held():
                for _ in range(2):
                    (await anext(messages)).ack()
        info = await q.describe_subscription("jobs")
        assert (info.ready, info.leased) == (0, 0)


# ------------------------------------------------------------------ too late


def too_late(q: quiver.Client) -> None:
    """From now on every receipt is stale."""
    q.seek("jobs", "latest")


def test_a_settlement_that_came_too_late_is_told_and_ends_no_loop(q: quiver.Client) -> None:
    filled(q, ["late", "also late"])
    stale: list[str] = []
    with q.consumer("jobs", on_stale=stale.extend) as messages:
        late, also = next(messages), next(messages)
        too_late(q)
        late.ack()
        also.nack()
        messages.flush()
        publish(q, "jobs", ["good"])
        assert next(messages).text() == "good"
    assert sorted(stale) == sorted([late.receipt, also.receipt])


def test_a_settlement_that_came_too_late_ends_no_loop_under_exactly_once(q: quiver.Client) -> None:
    filled(q, ["late"], guarantee="exactly-once")
    stale: list[str] = []
    with q.consumer("jobs", on_stale=stale.extend) as messages:
        late = next(messages)
        too_late(q)
        late.ack()
        assert stale == [late.receipt]
        publish(q, "jobs", ["good"])
        assert next(messages).text() == "good"


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_whoever_waits_for_a_settlement_that_came_too_late_is_told(
    q: quiver.Client, guarantee: str
) -> None:
    filled(q, ["late"], guarantee=guarantee)
    stale: list[str] = []
    with q.consumer("jobs", on_stale=stale.extend) as messages:
        late = next(messages)
        too_late(q)
        with pytest.raises(StaleReceipt):
            late.ack(wait=True)
        assert stale == [late.receipt]
        publish(q, "jobs", ["after"])
        assert next(messages).text() == "after"


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@async_test
async def test_an_async_program_that_asks_for_it_is_told_too(
    node: ThreadNode, guarantee: str
) -> None:
    async with quiver.AsyncClient(node.url) as q:
        await q.create_queue("jobs", guarantee=guarantee)
        await q.publish("jobs", "late")
        async with q.consumer("jobs") as messages:
            late = await anext(messages)
            await q.seek("jobs", "latest")
            with pytest.raises(StaleReceipt):
                await late.ack(wait=True)


def test_an_error_in_on_stale_neither_ends_the_loop_nor_keeps_it_from_closing(
    q: quiver.Client,
) -> None:
    def fail(receipts: list[str]) -> None:
        raise ValueError("no")

    filled(q, ["late"])
    with q.consumer("jobs", on_stale=fail) as messages:
        late = next(messages)
        too_late(q)
        late.ack()
        publish(q, "jobs", ["good"])
        next(messages).ack()
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert pending(q, "jobs") == 0


def test_what_no_program_saw_is_never_told_as_stale(q: quiver.Client) -> None:
    """Quick messages are started many at a time, and those that the program has not are returned."""
    filled(q, numbered(3000))
    stale: list[str] = []
    with q.consumer("jobs", on_stale=stale.extend) as messages:
        for _, message in zip(range(2000), messages, strict=False):
            message.ack()
        messages.flush()
        too_late(q)
        time.sleep(0.3)  # it is busy, so what was started is returned
    assert stale == []


def test_a_message_that_is_held_for_too_long_leaves_the_session(q: quiver.Client) -> None:
    filled(q, ["hangs"], visibility=1, max_processing=1)
    with q.consumer("jobs") as messages:
        next(messages)
        in_hand = messages._session._in_hand
        assert in_hand
        eventually(lambda: not in_hand, "it is given up")


def test_threads_may_settle_what_one_of_them_took(q: quiver.Client) -> None:
    filled(q, numbered(1000))
    taken: list[ReceivedMessage] = []
    stale: list[str] = []
    with q.consumer("jobs", on_stale=stale.extend) as messages:
        for _, message in zip(range(1000), messages, strict=False):
            taken.append(message)
        threads = [
            threading.Thread(target=lambda part: [one.ack() for one in part], args=[taken[n::8]])
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert pending(q, "jobs") == 0
    assert {message.text() for message in taken} == set(numbered(1000))
    assert stale == []


def test_with_ack_auto_asking_for_the_next_message_acknowledges_the_one_before(
    q: quiver.Client,
) -> None:
    filled(q)
    with q.consumer("jobs", ack="auto") as messages:
        seen = [message.text() for _, message in zip(MESSAGES, messages, strict=False)]
        messages.flush()
        assert seen == MESSAGES
        assert pending(q, "jobs") == 1  # the last one is still in hand


def test_with_ack_auto_a_message_that_was_settled_or_extended_stays_as_it_was(
    q: quiver.Client,
) -> None:
    filled(q, ["nacked", "extended", "last"])
    with q.consumer("jobs", ack="auto") as messages:
        next(messages).nack(delay="1h")
        next(messages).extend("5m")
        next(messages)
        messages.flush()
        assert pending(q, "jobs") == 2


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_with_ack_auto_the_message_that_failed_comes_again_and_no_other(
    q: quiver.Client, guarantee: str
) -> None:
    filled(q, ["good", "bad", "later"], guarantee=guarantee)
    handled: list[str] = []

    def handle_all() -> None:
        for message in q.consume("jobs", ack="auto"):
            if message.text() == "bad":
                raise ValueError("bad")
            handled.append(message.text())

    with pytest.raises(ValueError, match="bad"):
        handle_all()
    for message in q.consume("jobs", ack="auto"):
        handled.append(message.text())
        if len(handled) == 3:
            message.ack()
            break
    assert sorted(handled) == ["bad", "good", "later"]
    eventually(lambda: pending(q, "jobs") == 0, "everything is acknowledged")


@async_test
async def test_async_loops_acknowledge_by_themselves_too(node: ThreadNode) -> None:
    async with quiver.AsyncClient(node.url) as q:
        await q.create_queue("jobs")
        await q.publish_many("jobs", MESSAGES)
        async with q.consumer("jobs", ack="auto") as messages:
            for expected in MESSAGES:
                assert (await anext(messages)).text() == expected
            await messages.flush()
            info = await q.describe_subscription("jobs")
            assert (info.ready or 0) + (info.leased or 0) == 1


def test_another_way_to_acknowledge_is_refused(q: quiver.Client) -> None:
    filled(q, [])
    with pytest.raises(InvalidRequest, match="ack must be 'manual' or 'auto'"):
        next(q.consume("jobs", ack="always"))  # type: ignore[arg-type]
