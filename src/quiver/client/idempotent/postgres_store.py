"""Stores in Postgres which messages were handled, for consumers on several machines.

A message is remembered in the same transaction as its handler's writes: both are stored, or neither is.
Of two consumers with the same message one inserts its row. The other one waits until that transaction has
ended, and then knows whether the message was handled. A consumer that ends without a word leaves nothing
behind: the server rolls its transaction back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from quiver.client.idempotent.connections import Connections
from quiver.client.idempotent.store import BUSY_S, FORGET_MAX
from quiver.errors import InvalidRequest, InvalidSetting, Unavailable

if TYPE_CHECKING:
    import psycopg

_TABLES = """
BEGIN;
SELECT pg_advisory_xact_lock(7400);
CREATE TABLE IF NOT EXISTS quiver_handled (
    scope TEXT NOT NULL, key TEXT NOT NULL, handled_us BIGINT NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX IF NOT EXISTS quiver_handled_by_age ON quiver_handled (handled_us);
COMMIT;
"""
_BEGIN = f"BEGIN; SET LOCAL lock_timeout = '{BUSY_S:.0f}s'"
_HAS = "SELECT 1 FROM quiver_handled WHERE scope = %s AND key = %s"
_ADD = "INSERT INTO quiver_handled VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_FORGET = """
DELETE FROM quiver_handled WHERE (scope, key) IN
    (SELECT scope, key FROM quiver_handled WHERE handled_us < %s ORDER BY handled_us LIMIT %s
     FOR UPDATE SKIP LOCKED)
"""
_SERVER_OPTIONS = (
    "-c tcp_keepalives_idle=15 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 "
    "-c client_min_messages=warning"
)
"""The server notices within half a minute that a consumer's machine is gone."""


class PostgresStore:
    """A table ``quiver_handled`` in the database at ``url``. Needs the extra ``postgres``."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise InvalidSetting(
                "handled messages in Postgres need its driver: pip install 'quivermq[postgres]'"
            ) from error
        self._driver = psycopg
        self._url = url
        self._connections = Connections(self._connected)
        try:
            with self._connection() as connection:
                connection.execute(_TABLES)
        except Unavailable as error:
            self.close()
            raise InvalidSetting(
                f"the database cannot store handled messages: {error.__cause__}; check the URL",
                setting="store",
            ) from error

    def has(self, scope: str, key: str) -> bool:
        with self._connection() as connection:
            return connection.execute(_HAS, (scope, key)).fetchone() is not None

    def begin(
        self, scope: str, key: str, now_us: int, forget_before_us: int
    ) -> PostgresTransaction | None:
        connection = self._connections.take()
        try:
            with self._refusals():
                connection.execute(_BEGIN)
                connection.execute(_FORGET, (forget_before_us, FORGET_MAX))
                if connection.execute(_ADD, (scope, key, now_us)).rowcount:
                    return PostgresTransaction(self, connection)
                connection.execute("ROLLBACK")
        except BaseException:
            self._connections.discard(connection)
            raise
        self._connections.release(connection)
        return None

    def close(self) -> None:
        self._connections.close()

    def end(self, connection: psycopg.Connection[Any], statement: str) -> None:
        """End a transaction."""
        try:
            with self._refusals():
                connection.execute(statement)
        except BaseException:
            self._connections.discard(connection)
            raise
        self._connections.release(connection)

    # ------------------------------------------------------------------ connections

    @contextlib.contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        connection = self._connections.take()
        try:
            with self._refusals():
                yield connection
        except BaseException:
            self._connections.discard(connection)
            raise
        self._connections.release(connection)

    def _connected(self) -> psycopg.Connection[Any]:
        with self._refusals():
            return self._driver.connect(
                self._url, autocommit=True, connect_timeout=round(BUSY_S), options=_SERVER_OPTIONS
            )

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """What Postgres refuses, as an error after which the message may be tried again."""
        try:
            yield
        except self._driver.Error as error:
            raise Unavailable(f"the store of handled messages failed: {error}") from error


class PostgresTransaction:
    """An open transaction, to be ended once with ``commit`` or ``roll_back``."""

    def __init__(self, store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
        self._store = store
        self.connection = connection

    def commit(self) -> None:
        status = self.connection.info.transaction_status.name
        if status == "INERROR":  # a COMMIT would roll back without saying so
            self.roll_back()
            raise InvalidRequest("a statement of the handler failed: nothing was stored")
        if status != "INTRANS":
            self.roll_back()
            raise InvalidRequest("a handler must not commit or roll back: Quiver does it")
        self._store.end(self.connection, "COMMIT")

    def roll_back(self) -> None:
        with contextlib.suppress(Unavailable):  # the server ends it when the connection closes
            self._store.end(self.connection, "ROLLBACK")
