"""Messages are handled once: what is remembered, for whom, for how long, and with whose writes."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import quiver
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.idempotent.idempotent import Idempotent, Work
from quiver.errors import InvalidRequest, InvalidSetting, Unavailable
from quiver.testing.clock import ManualClock
from tests.aio import turns
from tests.paths import REPOSITORY


def message(offset: int = 0, *, subscription: str = "payments", **fields: Any) -> ReceivedMessage:
    fields = {"topic": "payments", "payload": b"{}", **fields}
    return ReceivedMessage(
        partition=0,
        offset=offset,
        timestamp_us=1,
        topic_number=1,
        subscription=subscription,
        **fields,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "handled.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE effects (payment TEXT)")
    return path


@pytest.fixture
def once(path: Path) -> Iterator[Idempotent]:
    with quiver.idempotent(path) as helper:
        yield helper


def effects(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM effects").fetchone()
        return int(count)


class TestHandler:
    def test_a_message_that_comes_again_is_not_handled_again(self, once: Idempotent) -> None:
        seen = []

        @once
        def handle(one: ReceivedMessage) -> str:
            """Keeps its docstring."""
            seen.append(one.offset)
            return "done"

        assert [handle(message(n)) for n in (0, 1, 0)] == ["done", "done", None]
        assert seen == [0, 1]
        assert handle.__doc__ == "Keeps its docstring."

    def test_a_handler_that_fails_has_not_handled_the_message(
        self, once: Idempotent, path: Path
    ) -> None:
        @once
        def handle(one: ReceivedMessage, work: Work) -> None:
            work.begin().execute("INSERT INTO effects VALUES ('a')")
            raise ValueError("declined")

        for _ in range(2):
            with pytest.raises(ValueError, match="declined"):
                handle(message())
        assert effects(path) == 0

    def test_a_handlers_writes_and_the_memory_of_the_message_are_one(
        self, once: Idempotent, path: Path
    ) -> None:
        @once
        def handle(one: ReceivedMessage, work: Work) -> None:
            assert work.begin() is work.begin()
            work.begin().execute("INSERT INTO effects VALUES (?)", (work.key,))
            assert effects(path) == 0  # not there for others before the message is remembered

        handle(message())
        handle(message())
        assert effects(path) == 1

    def test_a_second_argument_that_has_a_value_is_the_handlers_own(self, once: Idempotent) -> None:
        assert once(lambda one, tries=3: tries)(message()) == 3

    def test_it_remembers_after_a_restart(self, path: Path) -> None:
        for expected in (True, False):
            with quiver.idempotent(path) as once, once(message()) as work:
                assert work.is_new is expected

    def test_what_is_neither_message_nor_handler_is_refused(self, once: Idempotent) -> None:
        with pytest.raises(InvalidRequest, match="with a message"):
            once(b"payload")


class TestKey:
    def test_a_message_is_known_by_its_dedup_id_within_its_topic(self, once: Idempotent) -> None:
        with once(message(0, dedup_id="a")) as work:
            assert work.is_new
        with once(message(1, dedup_id="a")) as work:
            assert not work.is_new
        with once(message(2, dedup_id="a", topic="refunds")) as work:
            assert work.is_new

    def test_subscriptions_that_share_a_store_do_not_share_their_memory(
        self, once: Idempotent
    ) -> None:
        for subscription in ("billing", "shipping"):
            with once(message(subscription=subscription)) as work:
                assert work.is_new

    def test_a_key_function_decides_what_is_the_same(self, path: Path) -> None:
        def payment(one: quiver.Message) -> str:
            return str(one.json()["payment"])

        with quiver.idempotent(path, key=payment) as once:
            for offset, expected in ((0, True), (1, False)):
                with once(message(offset, payload=msgspec.json.encode({"payment": 7}))) as work:
                    assert (work.key, work.is_new) == ("7", expected)

    @pytest.mark.parametrize("key", [None, "", b"bytes"])
    def test_a_key_that_is_none_is_refused_and_not_taken_for_the_same(
        self, path: Path, key: Any
    ) -> None:
        with (
            quiver.idempotent(path, key=lambda _: key) as once,
            pytest.raises(InvalidRequest, match="key of a message"),
        ):
            once(message())


class TestAge:
    def test_what_is_older_than_wanted_is_forgotten(self, path: Path) -> None:
        clock = ManualClock()
        with quiver.idempotent(path, keep="1h", clock=clock) as once:
            handle = once(lambda one: one.offset)
            handle(message(0))
            asyncio.run(clock.advance(3599))
            handle(message(1))
            assert handle(message(0)) is None
            asyncio.run(clock.advance(2))
            handle(message(2))
            assert handle(message(0)) == 0  # forgotten with the addition before
            assert handle(message(1)) is None

    def test_many_old_ones_are_forgotten_faster_than_new_ones_come(self, path: Path) -> None:
        clock = ManualClock()
        with quiver.idempotent(path, keep="1h", clock=clock) as once:
            handle = once(lambda one: None)
            with closing(sqlite3.connect(path)) as connection:
                old = [("payments", f"old-{n}", 0) for n in range(950)]
                connection.executemany("INSERT INTO quiver_handled VALUES (?, ?, ?)", old)
                connection.commit()
            asyncio.run(clock.advance(3601))
            for n in range(10):
                handle(message(n))
            with closing(sqlite3.connect(path)) as connection:
                (left,) = connection.execute("SELECT count(*) FROM quiver_handled").fetchone()
            assert left == 10

    def test_an_age_that_is_none_is_refused(self, path: Path) -> None:
        with pytest.raises(InvalidSetting, match="keep"):
            quiver.idempotent(path, keep="0s")


class TestTwoConsumers:
    """The same message with two consumers at a time, as after a lease that ended too early."""

    def test_of_two_that_write_only_one_is_kept(self, path: Path) -> None:
        with quiver.idempotent(path) as one, quiver.idempotent(path) as other:
            with one(message()) as slow:
                assert slow.is_new
                with other(message()) as quick:
                    quick.begin().execute("INSERT INTO effects VALUES ('quick')")
                with contextlib.suppress(Exception):  # as a handler that forgives everything
                    slow.begin().execute("INSERT INTO effects VALUES ('slow')")
                pytest.fail("the block ends where it turns out that the work is done")
            assert not slow.is_new
            assert effects(path) == 1

    def test_one_that_does_not_write_finds_the_message_remembered(self, path: Path) -> None:
        with quiver.idempotent(path) as one, quiver.idempotent(path) as other:
            with one(message()), other(message()) as quick:
                assert quick.is_new
            assert one.is_handled(message())

    def test_many_threads_handle_each_message_once(self, once: Idempotent, path: Path) -> None:
        @once
        def handle(one: ReceivedMessage, work: Work) -> None:
            work.begin().execute("INSERT INTO effects VALUES (?)", (work.key,))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(handle, [message(n % 20) for n in range(160)]))
        assert effects(path) == 20

    def test_many_coroutines_handle_each_message_once(self, once: Idempotent, path: Path) -> None:
        @once
        async def handle(one: ReceivedMessage, work: Work) -> None:
            connection = await work.begin()
            await asyncio.sleep(0)
            connection.execute("INSERT INTO effects VALUES (?)", (work.key,))

        async def handle_all() -> None:
            await asyncio.gather(*(handle(message(n % 10)) for n in range(80)))

        asyncio.run(handle_all())
        assert effects(path) == 10


class TestAsync:
    def test_a_block_is_new_once(self, once: Idempotent) -> None:
        async def both() -> list[bool]:
            found = []
            for _ in range(2):
                async with once(message()) as work:
                    found.append(work.is_new)
            return found

        assert asyncio.run(both()) == [True, False]

    def test_an_error_takes_the_writes_back(self, once: Idempotent, path: Path) -> None:
        async def fail() -> None:
            async with once(message()) as work:
                (await work.begin()).execute("INSERT INTO effects VALUES ('a')")
                raise ValueError("declined")

        for _ in range(2):
            with pytest.raises(ValueError, match="declined"):
                asyncio.run(fail())
        assert effects(path) == 0
        assert not once.is_handled(message())

    def test_a_cancelled_wait_for_the_store_lets_the_others_go_on(
        self, once: Idempotent, path: Path
    ) -> None:
        async def cancelled() -> None:
            async with once(message(0)) as work:
                await work.begin()
                waiting = asyncio.create_task(handle(message(1)))
                await turns()  # it waits for the store
                waiting.cancel()
                await asyncio.wait([waiting])
            await handle(message(1))

        @once
        async def handle(one: ReceivedMessage, work: Work) -> None:
            (await work.begin()).execute("INSERT INTO effects VALUES ('a')")

        asyncio.run(cancelled())
        assert effects(path) == 1

    def test_what_a_cancelled_handler_had_begun_is_taken_back(
        self, once: Idempotent, path: Path
    ) -> None:
        @once
        async def handle(one: ReceivedMessage, work: Work) -> None:
            (await work.begin()).execute("INSERT INTO effects VALUES ('a')")

        async def cancelled(other: sqlite3.Connection) -> None:
            other.execute("BEGIN IMMEDIATE")  # another process has its turn
            handling = asyncio.create_task(handle(message()))
            async with asyncio.timeout(30):
                while not once.turn.locked():  # noqa: ASYNC110 - a lock tells nobody
                    await asyncio.sleep(0)
            handling.cancel()
            await asyncio.sleep(0)
            other.execute("ROLLBACK")
            await asyncio.wait([handling])
            assert handling.cancelled()
            await handle(message())

        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
            asyncio.run(cancelled(other))
        assert effects(path) == 1


class TestStores:
    @pytest.mark.process
    def test_a_child_process_uses_the_store_of_its_parent(self, path: Path) -> None:
        program = """
import os, sys, quiver
from tests.unit.client.idempotent.test_idempotent import message
once = quiver.idempotent(sys.argv[1])
handle = once(lambda one: "new")
assert handle(message(0)) == "new"
child = os.fork()
said = handle(message(0)), handle(message(1) if child else message(2))
if not child:
    os._exit(0 if said == (None, "new") else 1)
assert said == (None, "new")
_, status = os.waitpid(child, 0)
assert once.is_handled(message(2))
sys.exit(os.waitstatus_to_exitcode(status))
"""
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], cwd=REPOSITORY, timeout=60, check=False
        )
        assert done.returncode == 0

    def test_a_store_of_ones_own_is_used_the_same_way(self) -> None:
        store = MemoryStore()
        handle = quiver.idempotent(store)(lambda one: "done")
        assert [handle(message()), handle(message())] == ["done", None]
        assert len(store.kept) == 1


class MemoryStore:
    """What somebody might write for another database; here a set."""

    def __init__(self) -> None:
        self.kept: set[tuple[str, str]] = set()
        self.connection = None
        self._begun: tuple[str, str] | None = None

    def has(self, scope: str, key: str) -> bool:
        return (scope, key) in self.kept

    def begin(self, scope: str, key: str, now_us: int, forget_before_us: int) -> MemoryStore | None:
        if self.has(scope, key):
            return None
        self._begun = (scope, key)
        return self

    def commit(self) -> None:
        assert self._begun is not None
        self.kept.add(self._begun)

    def roll_back(self) -> None:
        self._begun = None

    def close(self) -> None:
        self.kept.clear()


class TestMistakes:
    def test_work_on_a_handled_message_is_refused(self, once: Idempotent) -> None:
        with once(message()):
            pass
        with once(message()) as work, pytest.raises(InvalidRequest, match="handled before"):
            work.begin()

    def test_a_handler_that_commits_by_itself_is_told(self, once: Idempotent) -> None:
        with (
            pytest.raises(InvalidRequest, match="must not commit or roll back"),
            once(message()) as work,
        ):
            work.begin().execute("COMMIT")

    @pytest.mark.parametrize("store", ["", ":memory:", "no/such/folder/handled.db"])
    def test_a_store_that_cannot_be_is_refused(self, store: str) -> None:
        with pytest.raises(InvalidSetting, match="handled messages"):
            quiver.idempotent(store)

    def test_a_file_that_is_no_database_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("not a database, but long enough to be looked at" * 10)
        with pytest.raises(InvalidSetting, match="not a database"):
            quiver.idempotent(tmp_path / "text")

    def test_a_store_that_cannot_be_written_is_an_error_to_try_again(
        self, once: Idempotent, path: Path
    ) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("DROP TABLE quiver_handled")
        with pytest.raises(Unavailable, match="no such table") as caught, once(message()):
            pass
        assert caught.value.retryable

    def test_a_closed_store_is_told(self, path: Path) -> None:
        once = quiver.idempotent(path)
        once.close()
        with pytest.raises(InvalidRequest, match="closed"), once(message()):
            pass
