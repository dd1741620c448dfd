"""A node that is killed and started again while workers have messages in hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import quiver
from tests.integration.client_node import ProcessNode
from tests.integration.consumer.conftest import StartWorker
from tests.integration.consumer.waiting import eventually, numbered, publish, wait_until_empty
from tests.integration.consumer.workers import Worker, handle_each, hold_until, overlaps

pytestmark = pytest.mark.process

MESSAGES = numbered(20)


def with_one_in_hand(
    q: quiver.Client, start_worker: StartWorker, path: Path, **settings: Any
) -> Worker:
    """A worker that has one message until the file is there. That it has it is stored."""
    q.create_queue("jobs", **settings)
    q.create_subscription("audit", ["jobs"], start="earliest")
    publish(q, "jobs", ["held"])
    worker = start_worker(hold_until, path=str(path), prefetch=10)
    worker.said("got")
    eventually(lambda: q.describe_subscription("jobs").leased == 1, "it is leased")
    # Nobody waits for the record that it is. It is in the same log as this, and before it.
    q.ack("audit", q.receive("audit"))
    return worker


def restart(node: ProcessNode, how: str) -> None:
    getattr(node, how)()
    node.start()


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_worker_keeps_what_it_has_in_hand_over_a_restart_and_its_ack_counts(
    served: ProcessNode,
    q: quiver.Client,
    start_worker: StartWorker,
    tmp_path: Path,
    guarantee: str,
    how: str,
) -> None:
    go_on = tmp_path / "go on"
    first = with_one_in_hand(q, start_worker, go_on, guarantee=guarantee)
    publish(q, "jobs", MESSAGES)  # these are pushed to the first, which does not start them
    restart(served, how)
    second = start_worker(handle_each)
    second.said("done", len(MESSAGES) - 10)
    seconds = eventually(lambda: q.describe_subscription("jobs").leased == 1, "it is kept")
    assert seconds < 5
    second.listen(3)  # longer than the node waits for a consumer that does not come back
    go_on.touch()
    first.said("done")
    wait_until_empty(q, "jobs")
    check_once([first, second], ["held", *MESSAGES])


def check_once(workers: list[Worker], payloads: list[str]) -> None:
    """Each was handled once, and nothing counts that no program saw."""

    def done() -> int:
        return sum(one.word == "done" for worker in workers for one in worker.listen())

    # A worker says so after its acknowledgement: the queue may be empty before.
    eventually(lambda: done() >= len(payloads), "the workers have said that all is done")
    told = [one for worker in workers for one in worker.listen(0.2)]
    assert sorted(one.payload for one in told if one.word == "done") == sorted(payloads)
    assert {one.deliveries for one in told} == {1}
    assert overlaps(told) == []


def test_a_message_whose_worker_does_not_come_back_after_a_restart_goes_to_another(
    served: ProcessNode, q: quiver.Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    first = with_one_in_hand(q, start_worker, tmp_path / "never")
    served.kill()
    first.kill()
    served.start()
    second = start_worker(handle_each)
    (got,) = second.said("got")
    assert got.deliveries == 2


def test_exactly_once_handles_each_message_once_while_the_node_is_killed_again_and_again(
    served: ProcessNode, q: quiver.Client, start_worker: StartWorker
) -> None:
    payloads = numbered(150)
    q.create_queue("jobs", guarantee="exactly-once")
    publish(q, "jobs", payloads)
    workers = [start_worker(handle_each, work_s=0.05) for _ in range(3)]
    for count in (5, 20, 35):
        workers[0].said("done", count)
        restart(served, "kill")
    wait_until_empty(q, "jobs")
    check_once(workers, payloads)
