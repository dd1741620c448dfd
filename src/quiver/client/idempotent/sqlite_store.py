"""Stores in SQLite which messages were handled.

A message is remembered in the same transaction as its handler's writes: both are on disk, or neither is.
Only one transaction is open at a time, over all processes, so that its holder knows whether a message is
new. Each addition also deletes some expired rows, which bounds the size of the table.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator

from quiver.client.idempotent.connections import Connections
from quiver.client.idempotent.store import BUSY_S, FORGET_MAX
from quiver.errors import InvalidRequest, InvalidSetting, Unavailable

_AGAIN_S = 0.01
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


class SqliteStore:
    """A file that any number of threads and processes of this machine may share."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        if self._path in {"", ":memory:"}:
            raise InvalidSetting("give the path of the file that stores the handled messages")
        self._connections = Connections(self._connected)
        try:
            connection = self._connections.take()
            self._connections.release(connection)
            with _refusals():
                connection.executescript(_TABLES)
        except Unavailable as error:
            self.close()
            raise InvalidSetting(
                f"{self._path} cannot store handled messages: {error.__cause__}; give another path",
                setting="store",
            ) from error

    def has(self, scope: str, key: str) -> bool:
        connection = self._connections.take()
        try:
            with _refusals():
                return connection.execute(_HAS, (scope, key)).fetchone() is not None
        finally:
            self._connections.release(connection)

    def begin(
        self, scope: str, key: str, now_us: int, forget_before_us: int
    ) -> SqliteTransaction | None:
        transaction = SqliteTransaction(self._connections, self._connections.take())
        try:
            with _refusals():
                transaction.connection.execute("BEGIN IMMEDIATE")
                transaction.connection.execute(_FORGET, (forget_before_us, FORGET_MAX))
                if transaction.connection.execute(_ADD, (scope, key, now_us)).rowcount:
                    return transaction
        except BaseException:
            transaction.roll_back()
            raise
        transaction.roll_back()
        return None

    def close(self) -> None:
        self._connections.close()

    def _connected(self) -> sqlite3.Connection:
        with _refusals():
            connection = sqlite3.connect(
                self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            try:
                _write_ahead(connection)
                # A message is acknowledged after the commit: it must survive a power cut.
                connection.execute("PRAGMA synchronous = FULL")
            except BaseException:
                connection.close()
                raise
            return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Use the write-ahead log. SQLite does not wait where another process does the same right now."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_S)


class SqliteTransaction:
    """An open transaction, to be ended once with ``commit`` or ``roll_back``."""

    def __init__(
        self, connections: Connections[sqlite3.Connection], connection: sqlite3.Connection
    ) -> None:
        self._connections = connections
        self.connection = connection

    def commit(self) -> None:
        if not self.connection.in_transaction:
            self._connections.release(self.connection)
            raise InvalidRequest("a handler must not commit or roll back: Quiver does it")
        try:
            with _refusals():
                self.connection.execute("COMMIT")
        except BaseException:
            self.roll_back()
            raise
        self._connections.release(self.connection)

    def roll_back(self) -> None:
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.connection.close()  # which ends the transaction in any case
        else:
            self._connections.release(self.connection)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """What SQLite refuses, as an error after which the message may be tried again."""
    try:
        yield
    except sqlite3.Error as error:
        raise Unavailable(f"the store of handled messages failed: {error}") from error
