"""What every way to consume promises: each test runs over all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.consumer.drivers import NAMES, Driver, Loop, driver_named
from tests.integration.consumer.waiting import (
    dead_letters,
    eventually,
    numbered,
    pending,
    publish,
    wait_until_empty,
)

MESSAGES = numbered(20)


@pytest.fixture(params=NAMES)
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    with driver_named(request.param, tmp_path) as driver:
        yield driver


def taken(loop: Loop, count: int) -> list[str]:
    """Take and acknowledge so many."""
    texts = []
    for _ in range(count):
        got = loop.take()
        texts.append(got.text)
        loop.ack(got)
    return texts


def left(driver: Driver) -> dict[str, int]:
    """Of what is ready now, how often each was delivered, this time included."""
    return {one.text(): one.deliveries for one in driver.q.receive("jobs", 100)}


def test_each_message_is_handled_once_and_acks_are_durable_when_the_loop_is_left(
    driver: Driver,
) -> None:
    driver.q.create_queue("jobs")
    publish(driver.q, "jobs", MESSAGES)
    with driver.consumer("jobs") as loop:
        assert taken(loop, len(MESSAGES)) == MESSAGES
    assert pending(driver.q, "jobs") == 0


def test_a_message_that_comes_later_is_there_at_once(driver: Driver) -> None:
    driver.q.create_queue("jobs")
    with driver.consumer("jobs") as loop:
        publish(driver.q, "jobs", ["first"])
        assert taken(loop, 1) == ["first"]
        began = time.monotonic()
        publish(driver.q, "jobs", ["second"])
        assert taken(loop, 1) == ["second"]
        assert time.monotonic() - began < 1


def test_what_no_program_took_is_returned_at_once_and_does_not_count(driver: Driver) -> None:
    driver.q.create_queue("jobs")
    publish(driver.q, "jobs", MESSAGES)
    with driver.consumer("jobs") as loop:
        taken(loop, 3)
    assert left(driver) == dict.fromkeys(MESSAGES[3:], 1)


def test_a_nack_counts_and_the_message_comes_again(driver: Driver) -> None:
    driver.q.create_queue("jobs")
    publish(driver.q, "jobs", ["again"])
    with driver.consumer("jobs") as loop:
        for deliveries in (1, 2, 3):
            got = loop.take()
            assert (got.text, got.deliveries) == ("again", deliveries)
            loop.nack(got, delay=0)


def test_what_failed_too_often_is_a_dead_letter_with_the_last_error(driver: Driver) -> None:
    driver.q.create_queue("jobs", max_deliveries=2)
    publish(driver.q, "jobs", ["bad"])
    with driver.consumer("jobs") as loop:
        loop.nack(loop.take(), delay=0, error="first")
        loop.nack(loop.take(), delay=0, error="second")
    assert dead_letters(driver.q, "jobs") == [("bad", "second")]


def test_a_reject_makes_a_dead_letter_now(driver: Driver) -> None:
    driver.q.create_queue("jobs")
    publish(driver.q, "jobs", ["hopeless", "good"])
    with driver.consumer("jobs") as loop:
        loop.reject(loop.take(), error="no such customer")
        assert taken(loop, 1) == ["good"]
    assert dead_letters(driver.q, "jobs") == [("hopeless", "no such customer")]


def test_a_message_in_hand_stays_with_its_consumer_beyond_the_visibility(driver: Driver) -> None:
    driver.q.create_queue("jobs", visibility=1)
    publish(driver.q, "jobs", ["long"])
    with driver.consumer("jobs") as loop:
        got = loop.take()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert driver.q.receive("jobs", wait=0.5) == []
        loop.ack(got)
        loop.flush()
        assert loop.late == []
    assert pending(driver.q, "jobs") == 0


def test_a_message_that_is_held_for_too_long_goes_to_another(driver: Driver) -> None:
    driver.q.create_queue("jobs", visibility=1, max_processing=1, backoff={"min": 0, "max": 0})
    publish(driver.q, "jobs", ["hangs"])
    with driver.consumer("jobs") as loop:
        got = loop.take()
        assert received_at_last(driver) == {"hangs": 2}
        loop.ack(got)
        loop.flush()
        assert len(loop.late) == 1
        publish(driver.q, "jobs", ["next"])
        assert taken(loop, 1) == ["next"]


def received_at_last(driver: Driver) -> dict[str, int]:
    """How often each message was delivered of those that another one gets."""
    found: dict[str, int] = {}

    def has_some() -> bool:
        for message in driver.q.receive("jobs"):
            found[message.text()] = message.deliveries
            message.ack()
        return bool(found)

    eventually(has_some, "another one has it")
    return found


def test_ready_messages_go_to_the_consumer_that_is_not_busy(driver: Driver) -> None:
    driver.q.create_queue("jobs")
    with driver.consumer("jobs") as busy, driver.consumer("jobs") as idle:
        publish(driver.q, "jobs", ["long"])
        long = busy.take()
        publish(driver.q, "jobs", MESSAGES)
        began = time.monotonic()
        assert taken(idle, len(MESSAGES)) == MESSAGES
        assert time.monotonic() - began < 1
        busy.ack(long)
    assert pending(driver.q, "jobs") == 0


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_an_order_is_kept_whatever_the_priorities(driver: Driver, ordering: str) -> None:
    driver.q.create_queue("jobs", ordering=ordering)
    for text, priority in zip(MESSAGES, (4, 9, 4, 9, 0) * 4, strict=True):
        driver.q.publish("jobs", text, key="same", priority=priority)
    with driver.consumer("jobs") as loop:
        assert taken(loop, len(MESSAGES)) == MESSAGES


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_an_order_is_kept_when_loops_are_left_and_entered_again(
    driver: Driver, ordering: str
) -> None:
    driver.q.create_queue("jobs", ordering=ordering)
    for text in MESSAGES:
        driver.q.publish("jobs", text, key="same")
    found = []
    for _ in range(4):
        with driver.consumer("jobs") as loop:
            found += taken(loop, 5)
    assert found == MESSAGES


@pytest.mark.parametrize("delay", [0, 0.3])
@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_in_an_order_nothing_overtakes_a_message_that_was_nacked(
    driver: Driver, ordering: str, delay: float
) -> None:
    driver.q.create_queue("jobs", ordering=ordering)
    for text in MESSAGES:
        driver.q.publish("jobs", text, key="same")
    found: list[str] = []
    with driver.consumer("jobs") as loop:
        while len(found) < len(MESSAGES):
            got = loop.take()
            if got.deliveries == 1 and int(got.text) % 7 == 3:
                loop.nack(got, delay=delay)
                continue
            loop.ack(got)
            found.append(got.text)
    assert found == MESSAGES


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_in_an_order_what_follows_a_rejected_message_goes_on(driver: Driver, ordering: str) -> None:
    driver.q.create_queue("jobs", ordering=ordering)
    for text in MESSAGES:
        driver.q.publish("jobs", text, key="same")
    found: list[str] = []
    with driver.consumer("jobs") as loop:
        loop.reject(loop.take(), error="never")
        found = taken(loop, len(MESSAGES) - 1)
    assert found == MESSAGES[1:]
    assert dead_letters(driver.q, "jobs") == [("0", "never")]


def test_without_an_order_higher_priorities_come_first(driver: Driver) -> None:
    driver.q.create_queue("jobs")
    for text, priority in zip(numbered(6), (4, 9, 4, 9, 0, 9), strict=True):
        driver.q.publish("jobs", text, priority=priority)
    with driver.consumer("jobs") as loop:
        assert taken(loop, 6) == ["1", "3", "5", "0", "2", "4"]


def test_exactly_once_delivers_nothing_again_after_the_ack(driver: Driver) -> None:
    driver.q.create_queue("jobs", guarantee="exactly-once")
    publish(driver.q, "jobs", MESSAGES)
    with driver.consumer("jobs") as loop:
        assert taken(loop, len(MESSAGES)) == MESSAGES
    wait_until_empty(driver.q, "jobs")


def test_at_most_once_delivers_nothing_again_and_loses_nothing_that_was_not_taken(
    driver: Driver,
) -> None:
    driver.q.create_queue("jobs", guarantee="at-most-once")
    publish(driver.q, "jobs", MESSAGES)
    with driver.consumer("jobs") as loop:
        first = [loop.take().text for _ in range(5)]
    assert first == MESSAGES[:5]
    assert left(driver) == dict.fromkeys(MESSAGES[5:], 1)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_settlement_that_came_too_late_is_told_and_the_loop_goes_on(
    driver: Driver, guarantee: str
) -> None:
    driver.q.create_queue("jobs", guarantee=guarantee)
    publish(driver.q, "jobs", ["late", "late too"])
    with driver.consumer("jobs") as loop:
        late, late_too = loop.take(), loop.take()
        driver.q.seek("jobs", "latest")
        loop.ack(late)
        loop.flush()
        loop.ack_stored(late_too)
        assert len(loop.late) == 2
        publish(driver.q, "jobs", ["good"])
        assert taken(loop, 1) == ["good"]
