"""A message that ends its worker's process: it alone becomes a dead letter, whatever came with it."""

from __future__ import annotations

from typing import Any

import pytest

import quiver
from quiver.broker.subscription.consumer import UNSETTLED
from tests.integration.consumer.conftest import StartWorker
from tests.integration.consumer.waiting import (
    dead_letters,
    eventually,
    numbered,
    pending,
    publish,
)
from tests.integration.consumer.workers import (
    ENDS_PROCESS,
    POISON,
    Work,
    Worker,
    handle_each,
    handle_in_threads,
)

pytestmark = pytest.mark.process

GOOD = numbered(30)
DEATHS_MAX = 50


def work_until_empty(
    q: quiver.Client, start_worker: StartWorker, work: Work, count: int, **options: Any
) -> list[Worker]:
    """Keep so many workers at work until nothing is pending; all that there were."""
    ended: list[Worker] = []
    workers: list[Worker] = []

    def is_empty() -> bool:
        for worker in [one for one in workers if one.has_ended]:
            assert worker.wait() == ENDS_PROCESS
            workers.remove(worker)
            ended.append(worker)
        assert len(ended) < DEATHS_MAX
        while len(workers) < count:
            workers.append(start_worker(work, **options))
        return pending(q, "jobs") == 0

    eventually(is_empty, "nothing is pending")
    return workers + ended


def check(q: quiver.Client, workers: list[Worker]) -> None:
    """One dead letter, that of the poison, and every good message handled."""
    eventually(lambda: q.describe_subscription("jobs").dead == 1, "there is a dead letter")
    done = {one.payload for worker in workers for one in worker.listen(0.1) if one.word == "done"}
    assert dead_letters(q, "jobs") == [(POISON, UNSETTLED)]
    assert done == set(GOOD)


@pytest.mark.parametrize("prefetch", [None, 1, 100])
@pytest.mark.parametrize(
    ("work", "count"), [(handle_each, 1), (handle_in_threads, 1), (handle_each, 2)]
)
def test_one_dead_letter_and_every_good_message_handled(
    q: quiver.Client,
    start_worker: StartWorker,
    work: Work,
    count: int,
    prefetch: int | None,
) -> None:
    q.create_queue("jobs", max_deliveries=3, backoff={"min": 0, "max": 0})
    publish(q, "jobs", [*GOOD[:3], POISON, *GOOD[3:]])
    check(q, work_until_empty(q, start_worker, work, count, work_s=0.002, prefetch=prefetch))


@pytest.mark.parametrize("prefetch", [None, 100])
def test_one_dead_letter_where_many_threads_have_messages_of_many_partitions(
    q: quiver.Client, start_worker: StartWorker, prefetch: int | None
) -> None:
    q.create_queue("jobs", partitions=4, max_deliveries=3)
    q.publish("jobs", POISON, partition=0)
    for payload in GOOD:
        q.publish("jobs", payload, partition=1 + int(payload) % 3)
    options = {"threads": 16, "work_s": 0.5, "poison_s": 0.25, "prefetch": prefetch}
    check(q, work_until_empty(q, start_worker, handle_in_threads, 1, **options))
