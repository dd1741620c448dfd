"""Stores in SQLite which messages were handled.

A message is remembered in the same transaction as its handler's writes: both are on disk, or neither is.
Only one transaction is open at a time, over all processes, so that its holder knows whether a message is
new. Each addition also deletes some expired rows, which bounds the size of the table.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from threading import Lock
from typing import Any, Protocol

from quiver.errors import InvalidRequest, InvalidSetting, Unavailable

BUSY_S = 30.0
"""How long a transaction waits for its turn."""
_FORGET_MAX = 100
_IDLE_MAX = 8

_TABLES = """
CREATE TABLE IF NOT EXISTS quiver_handled (
    scope TEXT NOT NULL, key TEXT NOT NULL, handled_us INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS quiver_handled_by_age ON quiver_handled (handled_us);
"""
_HAS = "SELECT 1 FROM quiver_handled WHERE scope = ? AND key = ?"
_ADD = "INSERT OR IGNORE INTO quiver_handled VALUES (?, ?, ?)"
_FORGET = """
DELETE FROM quiver_handled WHERE (scope, key) IN
    (SELECT scope, key FROM quiver_handled WHERE handled_us < ? ORDER BY handled_us LIMIT ?)
"""


class HandledTransaction(Protocol):
    """A transaction that stores one message as handled, together with the handler's writes."""

    @property
    def connection(self) -> Any:
        """The connection for the handler's writes, which are stored if and only if the message is."""

    def commit(self) -> None:
        """Store the handler's writes and that the message was handled. Ends the transaction."""

    def roll_back(self) -> None:
        """Discard both. Ends the transaction."""


class HandledStore(Protocol):
    """The interface of a store for ``quiver.idempotent``. Several threads call its methods."""

    def has(self, scope: str, key: str) -> bool:
        """Whether the message was handled before."""

    def begin(
        self, scope: str, key: str, now_us: int, forget_before_us: int
    ) -> HandledTransaction | None:
        """Return a transaction that remembers the message, or ``None`` if it was handled before.

        Messages that were handled before ``forget_before_us`` may be forgotten.
        """

    def close(self) -> None:
        """Close files and connections."""


class SqliteStore:
    """A file that any number of threads and processes of this machine may share."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        if self._path in {"", ":memory:"}:
            raise InvalidSetting("give the path of the file that stores the handled messages")
        self._lock = Lock()
        self._process = os.getpid()
        self._idle: list[sqlite3.Connection] = []
        self._inherited: list[sqlite3.Connection] = []
        self._closed = False
        try:
            self._idle.append(self._connected())
            with _refusals():
                self._idle[0].executescript(_TABLES)
        except (sqlite3.Error, Unavailable) as error:
            self.close()
            raise InvalidSetting(
                f"{self._path} cannot store handled messages: {error}; give another path",
                setting="store",
            ) from error

    def has(self, scope: str, key: str) -> bool:
        connection = self._take()
        try:
            with _refusals():
                return connection.execute(_HAS, (scope, key)).fetchone() is not None
        finally:
            self.release(connection)

    def begin(
        self, scope: str, key: str, now_us: int, forget_before_us: int
    ) -> SqliteTransaction | None:
        transaction = SqliteTransaction(self, self._take())
        try:
            with _refusals():
                transaction.connection.execute("BEGIN IMMEDIATE")
                transaction.connection.execute(_FORGET, (forget_before_us, _FORGET_MAX))
                if transaction.connection.execute(_ADD, (scope, key, now_us)).rowcount:
                    return transaction
        except BaseException:
            transaction.roll_back()
            raise
        transaction.roll_back()
        return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        if self._process == os.getpid():
            for connection in idle:
                connection.close()

    # ------------------------------------------------------------------ connections

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise InvalidRequest("the store of handled messages is closed")
            if self._process != os.getpid():
                # SQLite's locks do not survive a fork: a child leaves what it inherited alone.
                self._process = os.getpid()
                self._inherited += self._idle
                self._idle = []
            if self._idle:
                return self._idle.pop()
        with _refusals():
            return self._connected()

    def release(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # A message is acknowledged after the commit: the commit must survive a power cut.
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


class SqliteTransaction:
    """An open transaction, to be ended once with ``commit`` or ``roll_back``."""

    def __init__(self, store: SqliteStore, connection: sqlite3.Connection) -> None:
        self._store = store
        self.connection = connection

    def commit(self) -> None:
        if not self.connection.in_transaction:
            self._store.release(self.connection)
            raise InvalidRequest("a handler must not commit or roll back: Quiver does it")
        try:
            with _refusals():
                self.connection.execute("COMMIT")
        except BaseException:
            self.roll_back()
            raise
        self._store.release(self.connection)

    def roll_back(self) -> None:
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.connection.close()  # which ends the transaction in any case
        else:
            self._store.release(self.connection)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """What SQLite refuses, as an error after which the message may be tried again."""
    try:
        yield
    except sqlite3.Error as error:
        raise Unavailable(f"the store of handled messages failed: {error}") from error
