"""Every message is in exactly one truthful state, whatever its fate was and however the node ended.

Messages with random priorities, delays and expiries are acknowledged, nacked, rejected, cancelled and
redriven while the node is killed and started again. ``QUIVER_STATES_MESSAGES`` and
``QUIVER_STATES_KILLS`` say how many; 6,000 and 3 if they are not set. ``make chaos`` runs it with
200,000 and 10.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import quiver
from quiver.errors import QuiverError
from tests.integration.client_node import ProcessNode
from tests.killable import ChildServer

pytestmark = pytest.mark.process

MESSAGES = int(os.environ.get("QUIVER_STATES_MESSAGES", "6000"))
KILLS = int(os.environ.get("QUIVER_STATES_KILLS", "3"))
BATCH, CONSUMERS, AT_ONCE = 200, 3, 64
SECONDS_MAX = 120 + MESSAGES / 100
ENDS = {
    "ack": {"acknowledged"},
    "retry": {"acknowledged"},
    "delay": {"acknowledged"},
    "expire": {"acknowledged", "expired"},
    "late": {"delayed"},
    "cancel": {"cancelled"},
    "reject": {"dead-lettered"},
    "fail": {"dead-lettered"},
}
"""The states that a message of each fate may end in."""
FATES = Random(15).choices([*ENDS], weights=[60, 8, 8, 6, 4, 4, 5, 5], k=MESSAGES)
AGAIN = "headers.again = 'yes'"


class Sent(NamedTuple):
    number: int
    id: str
    fate: str
    is_redriven: bool


class Producer(threading.Thread):
    """Publishes all, and cancels those whose fate that is."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._rng = Random(MESSAGES)
        self.sent: list[Sent] = []

    def run(self) -> None:
        with quiver.Client(self._url, timeout=60) as q:
            for first in range(0, MESSAGES, BATCH):
                batch = [self._message(first + n) for n in range(min(BATCH, MESSAGES - first))]
                stored = q.publish_many("jobs", batch)
                self.sent += [
                    Sent(first + n, place.id, one["headers"]["fate"], "again" in one["headers"])
                    for n, (one, place) in enumerate(zip(batch, stored, strict=True))
                ]
                ids = [one.id for one in self.sent[first:] if one.fate == "cancel"]
                persist(lambda ids=ids: q.cancel("jobs", ids) if ids else None)

    def _message(self, number: int) -> dict[str, Any]:
        fate = FATES[number]
        message: dict[str, Any] = {
            "payload": str(number).encode(),
            "headers": {"fate": fate},
            "priority": self._rng.randrange(10),
        }
        if fate in ("late", "cancel"):
            message["delay"] = "1d"
        if fate == "delay":
            message["delay"] = self._rng.uniform(0.1, 5)
        if fate == "expire":
            message["ttl"] = self._rng.uniform(0.01, 2)
        if fate in ("reject", "fail") and self._rng.random() < 0.5:
            message["headers"]["again"] = "yes"
        return message


def persist(call: Any) -> Any:
    """Call until the node has answered."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return call()
        except QuiverError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Kills:
    """Kills of the node, due one after the other with the messages that are stored or finished."""

    def __init__(self, node: ProcessNode) -> None:
        self._node = node
        self._left = [MESSAGES * 2 * n // (KILLS + 1) for n in range(1, KILLS + 1)]

    def look(self, progress: int) -> None:
        """``progress`` grows up to twice the number of messages."""
        if self._left and progress >= self._left[0]:
            self._left.pop(0)
            self._node.kill()
            self._node.start()

    @property
    def are_done(self) -> bool:
        return not self._left


@pytest.mark.timeout(2 * SECONDS_MAX)
def test_every_message_is_in_exactly_one_truthful_state(tmp_path: Path) -> None:
    node = ProcessNode(tmp_path / "data")
    node.start()
    servers = [ChildServer("tests.integration.fated_consumer:consume") for _ in range(CONSUMERS)]
    try:
        with quiver.Client(node.url, timeout=60) as q:
            q.create_queue("jobs", partitions=2, max_deliveries=3, backoff={"min": 0})
            consumers = [server.start(url=node.url) for server in servers]
            producer, kills = Producer(node.url), Kills(node)
            producer.start()
            deadline = time.monotonic() + SECONDS_MAX
            while producer.is_alive() or not kills.are_done or not is_finished(q, producer.sent):
                assert time.monotonic() < deadline, q.describe_subscription("jobs")
                for consumer in consumers:
                    consumer.run_for(0.05)
                seen = sum(len(consumer.reports) for consumer in consumers)
                kills.look(min(len(producer.sent), MESSAGES) + min(seen, MESSAGES))
                if not producer.is_alive():
                    persist(lambda: q.redrive("jobs", filter=AGAIN))
            reports = [report for consumer in consumers for report in consumer.kill()]
            check_accounts(q, producer.sent, [report.line for report in reports])
            asyncio.run(check_states(node.url, producer.sent))
    finally:
        for server in servers:
            server.close()
        node.close()


def is_finished(q: quiver.Client, sent: list[Sent]) -> bool:
    """Whether what is left is what shall stay: late messages, and letters that are not redriven."""
    jobs = persist(lambda: q.describe_subscription("jobs"))
    letters = persist(lambda: q.describe_subscription("jobs.dlq"))
    kept = sum(one.fate in ("reject", "fail") and not one.is_redriven for one in sent)
    late = sum(one.fate == "late" for one in sent)
    left = jobs.ready + jobs.leased + jobs.unseen + letters.leased
    return left == 0 and jobs.delayed == late and letters.ready + letters.unseen == kept


def check_accounts(q: quiver.Client, sent: list[Sent], reports: list[str]) -> None:
    """What consumers saw, what the topics hold and what is counted agree."""
    assert len({one.id for one in sent}) == MESSAGES, "every publish was confirmed, once"
    seen: dict[bool, set[int]] = defaultdict(set)
    for number, is_redriven in (line.split() for line in reports):
        seen[is_redriven == "1"].add(int(number))
    by_fate: dict[str, set[int]] = defaultdict(set)
    for one in sent:
        by_fate[one.fate].add(one.number)
    assert not seen[False] & (by_fate["late"] | by_fate["cancel"]), "handled before it was due"
    certain = ("ack", "retry", "delay", "reject", "fail")
    assert not set().union(*(by_fate[fate] for fate in certain)) - seen[False], "never handled"
    redriven = {one.number for one in sent if one.is_redriven}
    assert seen[True] == redriven

    letters = Counter(one.origin_identity for one in q.read("jobs.dlq").messages())
    dead = {one.id for one in sent if one.fate in ("reject", "fail")}
    assert letters == Counter(dead), "each dead letter once, and no other"
    again = [one.identity for one in q.read("jobs").messages() if one.origin_identity]
    assert Counter(again) == Counter(one.id for one in sent if one.is_redriven)
    info = q.describe_subscription("jobs")
    assert info.dead == len(dead) - len(redriven)


async def check_states(url: str, sent: list[Sent]) -> None:
    """Each message's own status tells how it ended."""
    wrong: list[tuple[Sent, str]] = []
    left = iter(sent)

    async def look(q: quiver.AsyncClient) -> None:
        for one in left:
            (status,) = (await q.message_status("jobs", one.id)).subscriptions
            if status.state not in ENDS[one.fate]:
                wrong.append((one, status.state))

    async with quiver.AsyncClient(url, timeout=60) as q:
        await asyncio.gather(*(look(q) for _ in range(AT_ONCE)))
    assert not wrong, f"{len(wrong):,} messages, first {wrong[:5]}"
