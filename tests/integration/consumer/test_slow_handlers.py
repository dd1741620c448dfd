"""Handlers that take longer, all together, than the visibility: the loop goes on, with defaults."""

from __future__ import annotations

import pytest

import quiver
from tests.integration.consumer.conftest import StartWorker
from tests.integration.consumer.waiting import numbered, publish, wait_until_empty
from tests.integration.consumer.workers import Told, Worker, handle_each, overlaps

pytestmark = pytest.mark.process

MESSAGES = numbered(40)
VISIBILITY_S, WORK_S = 2, 0.15


def run(q: quiver.Client, *workers: Worker) -> list[Told]:
    """All that the workers said, once the queue is empty."""
    wait_until_empty(q, "jobs")
    assert not any(worker.has_ended for worker in workers)
    return [one for worker in workers for one in worker.listen(0.1)]


def check_each_handled_once(q: quiver.Client, told: list[Told]) -> None:
    done = [one.payload for one in told if one.word == "done"]
    assert sorted(done, key=int) == MESSAGES
    assert {one.deliveries for one in told} == {1}
    assert q.describe_subscription("jobs").dead == 0


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("prefetch", [None, 100])
def test_work_for_longer_than_the_visibility_handles_each_message_once(
    q: quiver.Client, start_worker: StartWorker, count: int, prefetch: int | None
) -> None:
    q.create_queue("jobs", visibility=VISIBILITY_S)
    publish(q, "jobs", MESSAGES)
    workers = [start_worker(handle_each, work_s=WORK_S, prefetch=prefetch) for _ in range(count)]
    check_each_handled_once(q, run(q, *workers))


@pytest.mark.parametrize("prefetch", [None, 100])
def test_exactly_once_with_three_workers_never_has_a_message_with_two(
    q: quiver.Client, start_worker: StartWorker, prefetch: int | None
) -> None:
    q.create_queue("jobs", visibility=1, guarantee="exactly-once")
    publish(q, "jobs", MESSAGES)
    workers = [start_worker(handle_each, work_s=WORK_S, prefetch=prefetch) for _ in range(3)]
    told = run(q, *workers)
    check_each_handled_once(q, told)
    assert overlaps(told) == []


def test_a_message_that_takes_longer_than_the_visibility_stays_with_its_worker(
    q: quiver.Client, start_worker: StartWorker
) -> None:
    q.create_queue("jobs", visibility=1)
    publish(q, "jobs", numbered(2))
    workers = [start_worker(handle_each, work_s=3.5) for _ in range(2)]
    told = run(q, *workers)
    assert sorted(one.payload for one in told if one.word == "done") == ["0", "1"]
    assert {one.deliveries for one in told} == {1}
