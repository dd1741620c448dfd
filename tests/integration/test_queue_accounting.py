"""Every message is accounted for, whoever is killed: consumers at random, and the broker twice.

``QUIVER_ACCOUNTING_MESSAGES`` says how many messages; 20,000 if it is not set.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from random import Random

import pytest

import quiver
from tests.integration.client_node import ProcessNode
from tests.integration.queue_consumer import POISON
from tests.killable import Child, ChildServer, Report

pytestmark = pytest.mark.process

PRODUCERS, CONSUMERS, BATCH = 4, 8, 50
MESSAGES = int(os.environ.get("QUIVER_ACCOUNTING_MESSAGES", "20000"))
SECONDS_MAX = 80 + MESSAGES / 500
Place = tuple[int, int]


class Producer(threading.Thread):
    """Publishes its share; ``confirmed`` is where what was stored is."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._number = number
        self.confirmed: list[Place] = []

    def run(self) -> None:
        with quiver.Client(self._url, timeout=60) as q:
            for first in range(0, MESSAGES // PRODUCERS, BATCH):
                batch = [self._payload(first + n) for n in range(BATCH)]
                stored = q.publish_many("jobs", batch)
                self.confirmed += [(one.partition, one.offset) for one in stored]

    def _payload(self, n: int) -> bytes:
        kind = POISON if n % 1000 == 7 else b"good"
        return kind + b" %d %d" % (self._number, n)


class Consumers:
    """Consumers in processes; whoever is killed is replaced, and what it reported is kept."""

    def __init__(self, url: str) -> None:
        self._servers = [
            ChildServer("tests.integration.queue_consumer:consume") for _ in range(CONSUMERS)
        ]
        self._arguments = {"url": url, "queue": "jobs", "visibility_s": 2}
        self._running: list[Child] = [server.start(**self._arguments) for server in self._servers]
        self.reports: list[Report] = []

    def replace(self, index: int) -> None:
        self.reports += self._running[index].kill()
        self._running[index] = self._servers[index].start(**self._arguments)

    def listen(self) -> int:
        """Take in what they say; how many lines there are."""
        for child in self._running:
            child.run_for(0.01)
            assert child.status is None, "a consumer ended by itself"
        return len(self.reports) + sum(len(child.reports) for child in self._running)

    def end(self) -> None:
        for child in self._running:
            self.reports += child.kill()

    def close(self) -> None:
        for server in self._servers:
            server.close()


def places(words: list[str]) -> set[Place]:
    return {(int(p), int(o)) for p, _, o in (word.partition(":") for word in words)}


def drained(q: quiver.Client) -> bool:
    info = q.describe_subscription("jobs")
    return not info.ready + info.delayed + info.leased + info.unseen


def test_every_message_is_acknowledged_once_or_dead_lettered(tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    rng = Random(seed)
    node = ProcessNode(tmp_path / "data")
    node.start()
    consumers = Consumers(node.url)
    try:
        with quiver.Client(node.url, timeout=60) as q:
            q.create_queue("jobs", partitions=2, max_deliveries=4)
            producers = [Producer(node.url, number) for number in range(PRODUCERS)]
            for producer in producers:
                producer.start()
            _disturb(node, consumers, producers, q, rng)
            consumers.end()
            confirmed = {place for producer in producers for place in producer.confirmed}
            assert len(confirmed) == MESSAGES, "every publish was confirmed, at its own place"
            _settle_accounts(confirmed, consumers.reports, _dead(q))
    finally:
        consumers.close()
        node.close()


def _disturb(
    node: ProcessNode,
    consumers: Consumers,
    producers: list[Producer],
    q: quiver.Client,
    rng: Random,
) -> None:
    """Kill consumers all the time and the broker twice, until everything is done."""
    deadline = time.monotonic() + SECONDS_MAX
    kills_of_the_node = [MESSAGES // 3, 2 * MESSAGES // 3]
    while True:
        assert time.monotonic() < deadline, q.describe_subscription("jobs")
        consumers.listen()
        stored = sum(len(producer.confirmed) for producer in producers)
        if kills_of_the_node and stored >= kills_of_the_node[0]:
            kills_of_the_node.pop(0)
            node.kill()
            node.start()
        if any(producer.is_alive() for producer in producers):
            consumers.replace(rng.randrange(CONSUMERS))
        elif not kills_of_the_node and drained(q):
            return


def _dead(q: quiver.Client) -> dict[Place, bytes]:
    if "jobs.dlq" not in [topic.name for topic in q.list_topics()]:
        return {}
    q.create_subscription("mourner", ["jobs.dlq"], start="earliest", exist_ok=True)
    letters = q.receive_batch("mourner", 10_000, visibility="1h").to_pylist()
    return {(row["origin_partition"], row["origin_offset"]): row["payload"] for row in letters}


def _settle_accounts(
    confirmed: set[Place], reports: list[Report], dead: dict[Place, bytes]
) -> None:
    acked: dict[Place, int] = {}
    tried: set[Place] = set()
    for told in reports:
        word, *rest = told.line.split()
        if word == "try":
            tried |= places(rest)
        elif word == "acked":
            for place in places(rest):
                assert place not in acked, f"{place} was acknowledged twice"
                acked[place] = told.time_ns
    for told in reports:
        word, *rest = told.line.split()
        if word == "got":
            late = {p for p in places(rest[1:]) if acked.get(p, int(rest[0]) + 1) < int(rest[0])}
            assert not late, f"delivered after a confirmed acknowledgement: {late}"
    assert not confirmed - tried - dead.keys(), "lost"
    assert not acked.keys() & dead.keys(), "acknowledged and dead-lettered"
    poison = {place for place, payload in dead.items() if payload.startswith(POISON)}
    assert len(poison) == sum(n % 1000 == 7 for n in range(MESSAGES // PRODUCERS)) * PRODUCERS
