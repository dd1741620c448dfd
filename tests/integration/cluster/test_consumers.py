"""Consumers in a cluster: they span the leaders, follow them, and have messages of a dead one soon."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import pytest

import quiver
from quiver.errors import QuiverError
from tests.integration.cluster.nodes import SECONDS_MAX, Cluster, waited

PROMISED_S = 3.0
"""How soon what was with a node that died is with others."""
_numbers = count()


class Handled(NamedTuple):
    payload: str
    deliveries: int
    partition: int
    begun: float
    done: float


class Loop:
    """A worker's loop in a thread. ``hold`` keeps it at each message for which it is true."""

    def __init__(
        self, url: str, name: str, hold: Callable[[str], bool], work_s: float, **terms: Any
    ) -> None:
        self.handled: list[Handled] = []
        self.in_hand: list[str] = []
        self.error: BaseException | None = None
        self._client = quiver.Client(url)
        self._is_over = threading.Event()
        self._work = hold, work_s, terms
        self._thread = threading.Thread(target=self._run, args=[name])
        self._thread.start()

    def _run(self, name: str) -> None:
        hold, work_s, terms = self._work
        try:
            for message in self._client.consume(name, **terms):
                begun = time.monotonic()
                self.in_hand.append(message.text())
                while hold(message.text()) and not self._is_over.is_set():
                    time.sleep(0.005)
                time.sleep(work_s)
                done = time.monotonic()
                message.ack()
                place = message.deliveries, message.partition, begun, done
                self.handled.append(Handled(message.text(), *place))
        except QuiverError as error:
            if not self._is_over.is_set():
                self.error = error

    def end(self) -> None:
        self._is_over.set()
        self._client.close()
        self._thread.join(SECONDS_MAX)
        assert self.error is None


class Loops:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._loops: list[Loop] = []

    def start(
        self, hold: Callable[[str], bool] = lambda text: False, work_s: float = 0, **terms: Any
    ) -> Loop:
        self._loops.append(Loop(self._cluster.url, self._name, hold, work_s, **terms))
        return self._loops[-1]

    @property
    def handled(self) -> list[Handled]:
        """In the order in which they were begun."""
        return sorted(
            (one for loop in self._loops for one in loop.handled), key=lambda one: one.begun
        )

    def wait_for(self, payloads: set[str]) -> None:
        """Wait until all of these were handled."""
        waited(lambda: payloads <= {one.payload for one in self.handled}, "all are handled")

    def end(self) -> None:
        for loop in self._loops:
            loop.end()


@pytest.fixture
def queue(three: Cluster) -> str:
    return f"consumed-{next(_numbers)}"


@contextmanager
def loops_of(three: Cluster, name: str) -> Iterator[Loops]:
    loops = Loops(three, name)
    try:
        yield loops
    finally:
        loops.end()


def fill(three: Cluster, name: str, payloads: set[str], partitions: int = 1) -> None:
    client = three.client()
    for index, payload in enumerate(sorted(payloads, key=int)):
        client.publish(name, payload, partition=index % partitions)


def texts(first: int, end: int) -> set[str]:
    return {str(number) for number in range(first, end)}


def test_a_consumer_has_messages_of_all_leaders(three: Cluster, queue: str) -> None:
    three.client().create_queue(queue, partitions=6)
    with loops_of(three, queue) as loops:
        loops.start()
        fill(three, queue, texts(0, 60), partitions=6)
        loops.wait_for(texts(0, 60))
    assert len(loops.handled) == 60
    assert {one.partition for one in loops.handled} == set(range(6))


@pytest.mark.parametrize("settings", [{}, {"ordering": "key"}, {"guarantee": "exactly-once"}])
def test_what_was_pushed_by_a_leader_that_died_is_handled_soon(
    three: Cluster, queue: str, settings: dict[str, str]
) -> None:
    three.client().create_queue(queue, **settings)
    with loops_of(three, queue) as loops:
        for _ in range(2):
            loops.start(work_s=0.01, prefetch=20)
        fill(three, queue, texts(0, 60))
        waited(lambda: len(loops.handled) >= 10, "the loops go on")
        victim = three.leader(queue)
        killed_at = time.monotonic()
        three.kill(victim)
        loops.wait_for(texts(0, 60))
        assert max(one.done for one in loops.handled) - killed_at < PROMISED_S
    if settings.get("guarantee") == "exactly-once":
        assert len(loops.handled) == 60
    assert {one.deliveries for one in loops.handled} == {1}


def test_members_of_a_group_go_on_soon_when_a_leader_died(three: Cluster, queue: str) -> None:
    three.client().create_queue(queue, partitions=3, ordering="partition")
    with loops_of(three, queue) as loops:
        for _ in range(2):
            loops.start(work_s=0.01)
        fill(three, queue, texts(0, 120), partitions=3)
        waited(lambda: len(loops.handled) >= 10, "the loops go on")
        killed_at = time.monotonic()
        three.kill(three.leader(queue, 1))
        loops.wait_for(texts(0, 120))
        assert max(one.done for one in loops.handled) - killed_at < PROMISED_S
    for partition in range(3):
        numbers = [int(one.payload) for one in loops.handled if one.partition == partition]
        firsts = list(dict.fromkeys(numbers))  # what was in hand at that moment may come again
        assert firsts == sorted(firsts)


def test_a_leader_that_moves_gives_no_message_of_exactly_once_to_two(
    three: Cluster, queue: str
) -> None:
    three.client().create_queue(queue, partitions=2, guarantee="exactly-once")
    fill(three, queue, texts(0, 200), partitions=2)
    with loops_of(three, queue) as loops:
        for _ in range(3):
            loops.start(work_s=0.03)
        for moves in range(1, 5):
            waited(lambda: len(loops.handled) >= moves * 30, "the loops go on")  # noqa: B023
            for partition in range(2):
                three.client().transfer_lead(queue, partition)
        loops.wait_for(texts(0, 200))
    assert len(loops.handled) == 200
    assert {one.deliveries for one in loops.handled} == {1}


def test_a_message_in_hand_stays_with_its_worker_when_the_leader_moves(
    three: Cluster, queue: str
) -> None:
    client = three.client()
    client.create_queue(queue, visibility=3)
    client.create_subscription(f"{queue}-audit", [queue], start="earliest")
    with loops_of(three, queue) as loops:
        is_held = threading.Event()
        busy = loops.start(lambda text: not is_held.is_set())
        fill(three, queue, texts(0, 1))
        waited(lambda: busy.in_hand == ["0"], "it has it")
        loops.start()
        # Nobody waits for the record that it has it. It is in the same log as this, and before it.
        client.ack(f"{queue}-audit", client.receive(f"{queue}-audit", wait="20s"))
        client.transfer_lead(queue, 0)
        time.sleep(
            5
        )  # more than the visibility, and than the node waits for who does not come back
        is_held.set()
        loops.wait_for({"0"})
        waited(lambda: client.describe_subscription(queue).leased == 0, "it is acked")
    assert [one.deliveries for one in loops.handled] == [1]
