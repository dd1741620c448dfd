"""A bank under SIGKILL: its worker and its node are killed in the middle of transfers, and nothing is lost.

``make test`` kills a few times, ``make chaos`` five times for each of its rounds: fifty times by default.
``QUIVER_CHAOS_SEED`` repeats a run, as far as processes can be repeated.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quiver
from tests.chaos.test_scenarios import ROUNDS, SEED
from tests.integration.client_node import ProcessNode
from tests.serving import environment

_WORKER = Path(__file__).parents[2] / "examples/bank/worker.py"
_KILLS = max(4, 5 * ROUNDS)
_TRANSFERS_A_KILL = 40
_ACCOUNTS = [f"account-{number}" for number in range(6)]
_WORKERS = 2
_SECONDS_MAX = 120.0

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.timeout(300 + 20 * _KILLS)]


class Workers:
    """Workers that are started again whenever they end, under their own names."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._processes = [self._start(number) for number in range(_WORKERS)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(_WORKER), f"worker-{number}"],
            env=environment(QUIVER_URL=self._url),
            stderr=subprocess.DEVNULL,
        )

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()

    def revive(self) -> None:
        """Start those that have ended: killed, or without a node to connect to."""
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                self._processes[number] = self._start(number)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@contextmanager
def bank(folder: Path) -> Iterator[tuple[ProcessNode, quiver.Client]]:
    node = ProcessNode(folder / "data")
    node.start()
    try:
        with quiver.Client(node.url) as q:
            q.create_queue("bank.transfers", visibility="2s", backoff={"min": 0})
            q.create_topic("bank.entries", partitions=3)
            yield node, q
    finally:
        node.close()


def order(q: quiver.Client, chance: random.Random, first: int) -> None:
    q.publish_many(
        "bank.transfers",
        [
            {"id": first + number, "from": one, "to": other, "cents": chance.randrange(1, 10_000)}
            for number in range(_TRANSFERS_A_KILL)
            for one, other in [chance.sample(_ACCOUNTS, 2)]
        ],
    )


def entries(q: quiver.Client) -> list[dict[str, object]]:
    return [message.json() for message in q.read("bank.entries").messages()]


def until_at_work(q: quiver.Client, workers: Workers) -> None:
    """Wait until transfers are being booked: a worker takes a while to start."""
    deadline, before = time.monotonic() + _SECONDS_MAX, stored(q)
    while stored(q) < before + 2:
        workers.revive()
        assert time.monotonic() < deadline, "nothing is booked"
        time.sleep(0.02)


def stored(q: quiver.Client) -> int:
    partitions = q.describe_topic("bank.entries").partitions
    return sum(one.next_offset for one in partitions)


def until_done(q: quiver.Client, workers: Workers) -> None:
    deadline = time.monotonic() + _SECONDS_MAX
    while True:
        workers.revive()
        orders = q.describe_subscription("bank.transfers")
        if not (orders.unseen or orders.ready or orders.delayed or orders.leased):
            return
        assert time.monotonic() < deadline, f"transfers are stuck: {orders}"
        time.sleep(0.1)


def test_the_sum_is_always_right_and_no_transfer_is_booked_twice(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with bank(tmp_path) as (node, q):
        workers = Workers(node.url)
        try:
            for kill in range(_KILLS):
                order(q, chance, kill * _TRANSFERS_A_KILL)
                until_at_work(q, workers)
                time.sleep(chance.uniform(0, 0.3))  # amid the work, at any place of it
                if kill % 2:
                    node.kill()
                    node.start()
                else:
                    workers.kill(chance.randrange(_WORKERS))
                workers.revive()
            until_done(q, workers)
        finally:
            workers.close()
        booked = Counter(entry["transfer"] for entry in entries(q))
        assert booked == dict.fromkeys(range(_KILLS * _TRANSFERS_A_KILL), 2), f"seed {SEED}"
        assert sum(int(str(entry["cents"])) for entry in entries(q)) == 0
        assert not list(q.read("bank.transfers.dlq").messages())
