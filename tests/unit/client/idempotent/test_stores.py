"""What every store for ``quiver.idempotent`` promises: SQLite, and real Postgres and Redis."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

import quiver
from quiver.client.handled import HandledStore, PostgresStore, RedisStore, SqliteStore
from quiver.client.idempotent.idempotent import Idempotent, Work
from quiver.errors import InvalidRequest, InvalidSetting, Unavailable
from tests import database_servers
from tests.paths import REPOSITORY
from tests.unit.client.idempotent.test_idempotent import message

pytestmark = pytest.mark.process

HOUR_US = 3_600_000_000
WAIT_S = 60.0


class Effects(ABC):
    """Writes of handlers, in the database that also remembers the messages."""

    def __init__(self, url: str) -> None:
        self.url = url

    def write(self, connection: Any, value: str) -> None:
        connection.execute(f"INSERT INTO effects VALUES ('{value}')")

    @abstractmethod
    def all(self) -> list[str]:
        """What took effect."""

    def break_it(self, connection: Any) -> None:
        """Do what the database refuses."""
        connection.execute("INSERT INTO nowhere VALUES (1)")


class InSqlite(Effects):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        with contextlib.closing(sqlite3.connect(url)) as connection:
            connection.execute("CREATE TABLE effects (value TEXT)")

    def all(self) -> list[str]:
        with contextlib.closing(sqlite3.connect(self.url)) as connection:
            return [row[0] for row in connection.execute("SELECT value FROM effects")]


class InPostgres(Effects):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        with psycopg.connect(url) as connection:
            connection.execute("DROP TABLE IF EXISTS effects, quiver_handled")
            connection.execute("CREATE TABLE effects (value TEXT)")

    def all(self) -> list[str]:
        with psycopg.connect(self.url) as connection:
            return [row[0] for row in connection.execute("SELECT value FROM effects")]


class InRedis(Effects):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        with redis.Redis.from_url(url) as client:
            client.flushall()

    def write(self, connection: Any, value: str) -> None:
        connection.rpush("effects", value)

    def break_it(self, connection: Any) -> None:
        connection.execute_command("NOWHERE")

    def all(self) -> list[str]:
        with redis.Redis.from_url(self.url) as client:
            return [one.decode() for one in client.lrange("effects", 0, -1)]  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with database_servers.postgres() as url:
        yield url


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with database_servers.redis() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def effects(request: pytest.FixtureRequest, tmp_path: Path) -> Effects:
    if request.param == "sqlite":
        return InSqlite(str(tmp_path / "handled.db"))
    if request.param == "postgres":
        return InPostgres(request.getfixturevalue("postgres"))
    return InRedis(request.getfixturevalue("redis_url"))


def opened(effects: Effects) -> HandledStore:
    """With claims that end soon, where a store has claims."""
    if isinstance(effects, InSqlite):
        return SqliteStore(effects.url)
    return (
        RedisStore(effects.url, claim_s=2)
        if isinstance(effects, InRedis)
        else PostgresStore(effects.url)
    )


@pytest.fixture
def once(effects: Effects) -> Iterator[Idempotent]:
    with quiver.idempotent(opened(effects)) as helper:
        yield helper


def booking(once: Idempotent, effects: Effects) -> Callable[[Any], Any]:
    @once
    def book(one: Any, work: Work) -> bool:
        effects.write(work.begin(), work.key)
        return True

    return book


def write_and(once: Idempotent, effects: Effects, then: Callable[[Any], Any]) -> None:
    """Handle a message: write something, and do something with the connection."""
    with once(message()) as work:
        assert work.is_new
        effects.write(work.begin(), "a")
        then(work.begin())


def decline(_: Any) -> None:
    raise ValueError("declined")


def test_a_url_opens_its_store(effects: Effects) -> None:
    with quiver.idempotent(effects.url) as once:
        book = booking(once, effects)
        assert [book(message(0)), book(message(1)), book(message(0))] == [True, True, None]
    assert len(effects.all()) == 2
    with quiver.idempotent(effects.url) as again:
        assert again.is_handled(message(0))


def test_writes_are_there_when_the_message_is_remembered_and_not_before(
    once: Idempotent, effects: Effects
) -> None:
    with once(message()) as work:
        effects.write(work.begin(), "a")
        assert effects.all() == []
        assert not once.is_handled(message())
    assert effects.all() == ["a"]
    assert once.is_handled(message())


def test_a_handler_that_fails_leaves_nothing_behind(once: Idempotent, effects: Effects) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="declined"):
            write_and(once, effects, decline)
    assert effects.all() == []
    assert not once.is_handled(message())
    assert booking(once, effects)(message()) is True


def test_scopes_and_keys_do_not_run_into_each_other(once: Idempotent, effects: Effects) -> None:
    book = booking(once, effects)
    for subscription, dedup_id in (("a", "b:c"), ("a:b", "c"), ("a", "b"), ("", "a:b")):
        assert book(message(subscription=subscription, dedup_id=dedup_id)) is True


def test_a_statement_that_the_database_refuses_stores_nothing(
    once: Idempotent, effects: Effects
) -> None:
    with pytest.raises((sqlite3.Error, psycopg.Error, Unavailable)):
        write_and(once, effects, effects.break_it)
    assert effects.all() == []
    assert booking(once, effects)(message()) is True


def test_two_workers_with_the_same_message_do_its_work_once(effects: Effects) -> None:
    def work_off(_: int) -> list[Any]:
        with quiver.idempotent(opened(effects)) as own:
            book = booking(own, effects)
            return [book(message(number)) for number in range(20)]

    with ThreadPoolExecutor(4) as threads:
        done = [one for each in threads.map(work_off, range(4)) for one in each]
    assert done.count(True) == 20
    assert len(set(effects.all())) == len(effects.all()) == 20


def test_the_second_worker_waits_for_the_first_and_takes_over_if_it_fails(
    effects: Effects,
) -> None:
    with (
        quiver.idempotent(opened(effects)) as first,
        quiver.idempotent(opened(effects)) as second,
        ThreadPoolExecutor(1) as threads,
    ):
        waiting: list[Future[Any]] = []

        def start_second_and_fail(_: Any) -> None:
            waiting.append(threads.submit(booking(second, effects), message()))
            raise ValueError("declined")

        with pytest.raises(ValueError, match="declined"):
            write_and(first, effects, start_second_and_fail)
        assert waiting[0].result(WAIT_S) is True
    assert effects.all() == [second.key_of(message())]


CRASH = """
import os, signal, sys
import quiver
from tests.unit.client.idempotent import test_stores
from tests.unit.client.idempotent.test_idempotent import message
kind = getattr(test_stores, sys.argv[1])
effects = kind.__new__(kind)  # the tables are there
effects.url = sys.argv[2]
with quiver.idempotent(test_stores.opened(effects))(message()) as work:
    effects.write(work.begin(), "crashed")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_dies_between_claim_and_completion_leaves_the_message_to_others(
    once: Idempotent, effects: Effects
) -> None:
    arguments = [sys.executable, "-c", CRASH, type(effects).__name__, effects.url]
    died = subprocess.run(arguments, cwd=REPOSITORY, env=os.environ, timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL
    assert not once.is_handled(message())
    assert booking(once, effects)(message()) is True
    assert effects.all() == [once.key_of(message())]


def test_what_is_older_than_wanted_is_forgotten(effects: Effects) -> None:
    with quiver.idempotent(opened(effects), keep="1s") as once:
        book = booking(once, effects)
        assert book(message(0)) is True
        assert book(message(0)) is None
        deadline, number = time.monotonic() + WAIT_S, 1
        while book(message(0)) is None:
            assert book(message(number)) is True  # additions clear up
            number += 1
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_closed_store_says_so(effects: Effects) -> None:
    store = opened(effects)
    store.close()
    with pytest.raises(InvalidRequest, match="closed"):
        store.has("a", "b")


@pytest.mark.parametrize(
    "url", ["postgresql://quiver@127.0.0.1:1/postgres", "redis://127.0.0.1:1/0", "mysql://x"]
)
def test_a_store_that_cannot_be_used_is_refused_when_it_is_given(url: str) -> None:
    with pytest.raises(InvalidSetting, match="store"):
        quiver.idempotent(url)


def test_a_failed_statement_that_the_handler_hides_is_not_taken_for_done(postgres: str) -> None:
    effects = InPostgres(postgres)

    def hide(connection: Any) -> None:
        with contextlib.suppress(psycopg.Error):
            effects.break_it(connection)

    with quiver.idempotent(postgres) as once:
        with pytest.raises(InvalidRequest, match="statement of the handler failed"):
            write_and(once, effects, hide)
        assert not once.is_handled(message())
    assert effects.all() == []


def test_a_command_that_redis_refuses_at_the_end_is_told_and_not_repeated(redis_url: str) -> None:
    effects = InRedis(redis_url)
    with quiver.idempotent(redis_url) as once:
        with pytest.raises(InvalidRequest, match=r"counts as handled: .*wrong kind"):
            write_and(once, effects, lambda pipeline: pipeline.incr("effects"))
        assert once.is_handled(message())
    assert effects.all() == ["a"]


def test_a_handler_that_commits_by_itself_is_told(effects: Effects, once: Idempotent) -> None:
    def commit(connection: Any) -> None:
        connection.execute(*([] if isinstance(effects, InRedis) else ["COMMIT"]))

    with pytest.raises(InvalidRequest, match="must not"):
        write_and(once, effects, commit)


def test_a_claim_that_ended_stores_nothing(redis_url: str) -> None:
    effects = InRedis(redis_url)
    store = RedisStore(redis_url, claim_s=0.2)
    slow = store.begin("s", "k", 2 * HOUR_US, HOUR_US)
    assert slow is not None
    effects.write(slow.connection, "slow")
    quick = store.begin("s", "k", 2 * HOUR_US, HOUR_US)  # waits until the claim has ended
    assert quick is not None
    effects.write(quick.connection, "quick")
    quick.commit()
    with pytest.raises(Unavailable, match="longer than the claim"):
        slow.commit()
    assert effects.all() == ["quick"]
    assert store.has("s", "k")
    store.close()
