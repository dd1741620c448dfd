"""A consumer is killed with SIGKILL anywhere in its work: every payment is charged exactly once."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import quiver
from tests.integration.idempotent_consumer import QUEUE
from tests.killable import ChildServer
from tests.serving import Served, served

pytestmark = pytest.mark.process

PAYMENTS = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="module")
def consumers() -> Iterator[ChildServer]:
    server = ChildServer("tests.integration.idempotent_consumer:consume")
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "payments.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE charges (payment INTEGER)")
    return path


@pytest.fixture
def queue(node: Served) -> Iterator[None]:
    with quiver.Client(node.url) as q:
        q.create_queue(QUEUE, visibility="2s")
        q.publish_many(QUEUE, [{"payment": number} for number in range(PAYMENTS)])
        yield
        q.delete_subscription(QUEUE)


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize(
    ("killed", "skipped"),
    [
        ("before it writes", 0),
        ("before it is remembered", 0),
        ("before it is acknowledged", 1),
        ("after it is acknowledged", 0),
    ],
)
def test_a_killed_consumer_charges_nothing_twice_and_nothing_never(
    node: Served, consumers: ChildServer, store: Path, killed: str, skipped: int
) -> None:
    first = consumers.start(url=node.url, store=str(store), killed=killed, wait_s=20)
    first.run_for(60)
    assert first.status == -signal.SIGKILL, first.reports
    rest = consumers.start(url=node.url, store=str(store), killed="never", wait_s=5)
    rest.run_for(60)
    assert rest.status == 0, rest.reports
    said = [one.line.split()[0] for one in rest.kill()]
    assert said.count("skipped") == skipped
    with closing(sqlite3.connect(store)) as connection:
        charged = connection.execute("SELECT payment FROM charges ORDER BY payment").fetchall()
    assert charged == [(number,) for number in range(PAYMENTS)]
    with quiver.Client(node.url) as q:
        assert q.peek(QUEUE) == []
