"""What becomes of a consumer's messages when its process ends, or falls silent."""

from __future__ import annotations

import signal
import time

import pytest

import quiver
from tests.integration.consumer.conftest import StartWorker
from tests.integration.consumer.waiting import eventually, numbered, publish, wait_until_empty
from tests.integration.consumer.workers import Told, handle_each, handle_in_threads, hold_first

pytestmark = pytest.mark.process

MESSAGES = numbered(20)


def check_counted(told: list[Told], in_hand: set[str]) -> None:
    """What was in the program's hands counts one delivery, and what was only pushed none."""
    counts = {one.payload: one.deliveries for one in told if one.word == "got"}
    assert counts == {payload: 2 if payload in in_hand else 1 for payload in MESSAGES}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("prefetch", [None, 1, 100])
def test_another_worker_has_the_messages_of_one_that_was_ended_within_a_second(
    q: quiver.Client, start_worker: StartWorker, how: signal.Signals, prefetch: int | None
) -> None:
    q.create_queue("jobs")  # with the default visibility, 30 s
    first = start_worker(hold_first, prefetch=prefetch)
    eventually(lambda: q.describe_subscription("jobs").consumers, "the consumer is there")
    publish(q, "jobs", MESSAGES)
    (in_hand,) = first.said("got")
    second = start_worker(handle_each)
    eventually(lambda: len(q.describe_subscription("jobs").consumers or []) == 2, "both are")
    at = time.monotonic()
    first.signal(how)
    told = second.said("done", len(MESSAGES))
    assert max(one.at for one in told) - at < 1
    check_counted(second.told, {in_hand.payload})


def test_all_that_the_threads_of_a_killed_worker_had_counts_once_and_comes_again(
    q: quiver.Client, start_worker: StartWorker
) -> None:
    q.create_queue("jobs")
    publish(q, "jobs", MESSAGES)
    first = start_worker(handle_in_threads, work_s=60)
    in_hand = {one.payload for one in first.said("got", 4)}
    second = start_worker(handle_each)
    second.said("done", len(MESSAGES) - len(in_hand))
    at = first.kill()
    told = second.said("done", len(MESSAGES))
    assert max(one.at for one in told) - at < 1
    check_counted(second.told, in_hand)


def test_messages_of_a_killed_worker_are_with_all_others_at_once_even_if_those_are_slow(
    q: quiver.Client, start_worker: StartWorker
) -> None:
    q.create_queue("jobs")
    publish(q, "jobs", numbered(4))
    first = start_worker(handle_in_threads, work_s=60)
    first.said("got", 4)
    others = [start_worker(handle_each, work_s=5) for _ in range(4)]
    eventually(lambda: len(q.describe_subscription("jobs").consumers or []) == 5, "all are there")
    at = first.kill()
    for other in others:
        (got,) = other.said("got")
        assert got.deliveries == 2
        assert got.at - at < 1


def test_messages_of_a_worker_that_fell_silent_go_to_others_after_the_visibility(
    q: quiver.Client, start_worker: StartWorker
) -> None:
    q.create_queue("jobs", visibility=2)
    publish(q, "jobs", MESSAGES)
    first = start_worker(hold_first, prefetch=10)
    (in_hand,) = first.said("got")
    eventually(lambda: q.describe_subscription("jobs").leased == 1, "it has one in hand")
    first.signal(signal.SIGSTOP)
    at = time.monotonic()
    second = start_worker(handle_each)
    told = second.said("done", len(MESSAGES))
    assert 1 < max(one.at for one in told) - at < 5
    check_counted(second.told, {in_hand.payload})


def test_a_worker_that_was_silent_for_too_long_goes_on_with_others(
    q: quiver.Client, start_worker: StartWorker
) -> None:
    q.create_queue("jobs", visibility=1)
    worker = start_worker(handle_each)
    publish(q, "jobs", ["before"])
    worker.said("done", 1)
    wait_until_empty(q, "jobs")
    worker.signal(signal.SIGSTOP)
    eventually(lambda: not q.describe_subscription("jobs").consumers, "it is taken for dead")
    publish(q, "jobs", ["after"])
    worker.signal(signal.SIGCONT)
    assert [one.payload for one in worker.said("done", 2)] == ["before", "after"]


def test_what_a_killed_worker_had_under_exactly_once_stays_its_own_for_the_visibility(
    q: quiver.Client, start_worker: StartWorker
) -> None:
    q.create_queue("jobs", visibility=3, guarantee="exactly-once")
    publish(q, "jobs", MESSAGES)
    first = start_worker(hold_first, prefetch=10)
    (in_hand,) = first.said("got")
    at = first.kill()
    second = start_worker(handle_each)
    rest = second.said("done", len(MESSAGES) - 1)
    assert in_hand.payload not in {one.payload for one in rest}
    assert max(one.at for one in rest) - at < 2
    told = second.said("done", len(MESSAGES))
    assert told[-1].payload == in_hand.payload
    assert 1 < told[-1].at - at < 6
    check_counted(second.told, {in_hand.payload})
