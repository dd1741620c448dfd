"""The tables behind ``SqliteStore``: blocking calls, all from the one thread that opened them.

A commit is one SQLite transaction, synced to the disk before the call returns (WAL with
synchronous=FULL), so what was returned survives a power cut and what failed left nothing behind.
The file is locked for as long as it is open, unless it is a ``SharedDatabase``.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from typing import Self

import msgspec

from quiver.cluster.metadata.store import Delete, Entry, Expect, LeaseId, Listing, Put, WatchBatch
from quiver.errors import (
    FolderInUse,
    MetadataConflict,
    MetadataError,
    MetadataUnavailable,
    UnsupportedFormat,
    WatchCompacted,
)
from quiver.formats import METADATA_TABLES

SCHEMA_VERSION = METADATA_TABLES.at_start
SHARED_SCHEMA_VERSION = METADATA_TABLES.newest
"""Of a file that several processes use: versions that know one process only must not open it."""
_APPLICATION_ID = 0x51564D44  # "QVMD": tells a metadata store from anyone else's SQLite file
_READ_BATCHES = 256
_READ_BYTES = 1 << 20

# Keys are blobs: SQLite then compares them byte by byte as etcd does, and UTF-8 bytes sort as the
# text does. A change without a value is a deletion.
_SCHEMA = (
    """
    CREATE TABLE store (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        revision INTEGER NOT NULL,
        compacted INTEGER NOT NULL,
        openings INTEGER NOT NULL
    )
    """,
    "INSERT INTO store VALUES (1, 1, 0, 0)",
    """
    CREATE TABLE entries (
        key BLOB PRIMARY KEY NOT NULL,
        value BLOB NOT NULL,
        revision INTEGER NOT NULL,
        lease INTEGER
    )
    """,
    "CREATE INDEX entries_by_lease ON entries (lease) WHERE lease IS NOT NULL",
    """
    CREATE TABLE changes (
        revision INTEGER NOT NULL,
        position INTEGER NOT NULL,
        key BLOB NOT NULL,
        value BLOB,
        PRIMARY KEY (revision, position)
    )
    """,
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class Changes(msgspec.Struct, frozen=True):
    """Part of the history: every change up to ``position`` is in ``batches``."""

    batches: tuple[WatchBatch, ...]
    position: int
    more: bool


_PRIVATE = 0o600


class Database:
    _locking_mode = "EXCLUSIVE"
    _busy_timeout_s = 0.0
    """Whoever holds the file holds it until its process ends: there is nothing to wait for."""

    def __init__(self, path: str, history_revisions: int, connection: sqlite3.Connection) -> None:
        self.opening = 0
        """How often this file has been opened: a number no earlier opening had."""
        self._path = path
        self._history_revisions = history_revisions
        self._connection = connection

    @classmethod
    def open(cls, path: str, history_revisions: int) -> Self:
        """Open or create the file; its folder must exist. Ends the leases of earlier openings."""
        with _translated(path):
            _make_private(path)
            connection = sqlite3.connect(path, timeout=cls._busy_timeout_s, isolation_level=None)
            database = cls(path, history_revisions, connection)
            try:
                database._check_file()
                database._configure()
                database._begin_opening()
            except BaseException:
                connection.close()
                raise
        return database

    def close(self) -> None:
        self._connection.close()

    def get(self, key: str) -> Entry | None:
        with self._translated():
            row = self._connection.execute(
                "SELECT value, revision FROM entries WHERE key = ?", (key.encode(),)
            ).fetchone()
        return Entry(key, *row) if row else None

    def list(self, prefix: str) -> Listing:
        with self._snapshot():
            rows = self._connection.execute(
                "SELECT key, value, revision FROM entries WHERE key >= ? AND key < ? ORDER BY key",
                _span(prefix),
            ).fetchall()
            revision, _ = self._revisions()
        entries = tuple(Entry(key.decode(), value, changed) for key, value, changed in rows)
        return Listing(entries, revision)

    def commit(self, expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> int:
        with self._transaction():
            self._check_leases(changes)
            for expect in expects:
                self._check(expect)
            return self._change(changes)

    def end_lease(self, lease_id: LeaseId) -> int:
        """Delete the keys under the lease; does nothing if there are none."""
        with self._transaction():
            return self._delete_leased("lease = ?", (lease_id,))

    def changes_after(self, position: int, prefix: str) -> Changes:
        """The next changes under the prefix: as many as fit in memory comfortably."""
        with self._snapshot():
            revision, compacted = self._revisions()
            if position < compacted:
                raise WatchCompacted(
                    f"changes up to revision {compacted:,} are compacted and a watch from "
                    f"{position:,} needs them: list again and watch from there",
                    compacted_revision=compacted,
                )
            rows = self._connection.execute(
                "SELECT revision, key, value FROM changes "
                "WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision, position",
                (position, *_span(prefix)),
            )
            # A statement left unfinished would keep the write-ahead log from being reused.
            with closing(rows):
                batches, complete = _take(rows)
        if not complete:
            return Changes(batches, batches[-1].revision, more=True)
        return Changes(batches, max(position, revision), more=False)

    def _check_file(self) -> None:
        """Refuse what is not ours, not intact or too new, before anything is written to it."""
        execute = self._connection.execute
        execute(f"PRAGMA locking_mode = {self._locking_mode}")
        with self._snapshot():  # another process may be creating it just now
            (application,) = execute("PRAGMA application_id").fetchone()
            (version,) = execute("PRAGMA user_version").fetchone()
            (tables,) = execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != _APPLICATION_ID and (application or version or tables):
            raise MetadataError(
                f"{self._path} is an SQLite database, but not a Quiver metadata store: "
                "choose another path",
                path=self._path,
            )
        if version > SHARED_SCHEMA_VERSION:
            raise UnsupportedFormat(
                f"{self._path} has schema version {version} and this Quiver reads up to version "
                f"{SHARED_SCHEMA_VERSION}: use a newer Quiver",
                path=self._path,
                version=version,
            )
        (finding,) = execute("PRAGMA quick_check(1)").fetchone()
        if finding != "ok":
            raise _corrupted(self._path, finding.splitlines()[-1])

    def _configure(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the medium there
        (mode,) = execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise MetadataError(
                f"{self._path} is on a file system without write-ahead logs (mode {mode}): "
                "move it to a local disk",
                path=self._path,
            )

    def _begin_opening(self) -> None:
        with self._transaction():
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _SCHEMA:
                    self._connection.execute(statement)
            self._connection.execute("UPDATE store SET openings = openings + 1")
            (self.opening,) = self._connection.execute("SELECT openings FROM store").fetchone()
            self._end_earlier_leases()

    def _end_earlier_leases(self) -> None:
        """No lease outlives the process that has the file to itself."""
        self._delete_leased("lease IS NOT NULL", ())

    def _check_leases(self, changes: Sequence[Put | Delete]) -> None:
        """``LeaseLost`` if a change is under a lease that has ended; the store has looked already."""

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """All that is read within is of one moment."""
        with self._translated():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")

    def _translated(self) -> AbstractContextManager[None]:
        return _translated(self._path)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # After some failures, a full disk among them, SQLite has rolled back by itself.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _revisions(self) -> tuple[int, int]:
        """The store's revision, and the one up to which history is forgotten."""
        row = self._connection.execute("SELECT revision, compacted FROM store").fetchone()
        revision, compacted = row
        assert 0 <= compacted <= revision
        return revision, compacted

    def _check(self, expect: Expect) -> None:
        row = self._connection.execute(
            "SELECT revision FROM entries WHERE key = ?", (expect.key.encode(),)
        ).fetchone()
        revision = row[0] if row else 0
        if revision != expect.revision:
            raise MetadataConflict(
                f"{expect.key!r} is at revision {revision:,}, not {expect.revision:,}: "
                "read it again and retry",
                key=expect.key,
                expected=expect.revision,
                revision=revision,
            )

    def _delete_leased(self, condition: str, parameters: Sequence[int]) -> int:
        rows = self._connection.execute(
            f"SELECT key FROM entries WHERE {condition} ORDER BY key",  # noqa: S608 (ours)
            parameters,
        ).fetchall()
        return self._change([Delete(key.decode()) for (key,) in rows])

    def _change(self, changes: Sequence[Put | Delete]) -> int:
        """Make the changes at one new revision; the old revision if there was nothing to do."""
        before, compacted = self._revisions()
        revision = before + 1
        done = [change for change in changes if self._apply(change, revision)]
        if not done:
            return before
        compacted = max(compacted, revision - self._history_revisions)
        self._connection.executemany(
            "INSERT INTO changes VALUES (?, ?, ?, ?)",
            [
                (revision, position, change.key.encode(), getattr(change, "value", None))
                for position, change in enumerate(done)
            ],
        )
        self._connection.execute("DELETE FROM changes WHERE revision <= ?", (compacted,))
        self._connection.execute(
            "UPDATE store SET revision = ?, compacted = ?", (revision, compacted)
        )
        return revision

    def _apply(self, change: Put | Delete, revision: int) -> bool:
        key = change.key.encode()
        if isinstance(change, Delete):
            return bool(
                self._connection.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount
            )
        self._connection.execute(
            "INSERT INTO entries VALUES (?1, ?2, ?3, ?4) "
            "ON CONFLICT (key) DO UPDATE SET value = ?2, revision = ?3, lease = ?4",
            (key, change.value, revision, change.lease),
        )
        return True


def _span(prefix: str) -> tuple[bytes, bytes]:
    """The first key under the prefix, and the first after them all."""
    start = prefix.encode()
    # No byte of UTF-8 is 0xFF: it ends the empty prefix, and adding one to a last byte never
    # overflows.
    return start, start[:-1] + bytes([start[-1] + 1]) if start else b"\xff"


def _take(rows: Iterable[tuple[int, bytes, bytes | None]]) -> tuple[tuple[WatchBatch, ...], bool]:
    """Whole batches from the rows up to the bounds; whether the rows ended before them."""
    batches: list[WatchBatch] = []
    size = 0
    for revision, changed in groupby(rows, key=itemgetter(0)):
        changes: list[Entry | Delete] = []
        for _, key, value in changed:
            text = key.decode()
            changes.append(Delete(text) if value is None else Entry(text, value, revision))
            size += len(value or b"")
        batches.append(WatchBatch(revision, tuple(changes)))
        if len(batches) == _READ_BATCHES or size >= _READ_BYTES:
            return tuple(batches), False
    return tuple(batches), True


def _make_private(path: str) -> None:
    """The file holds secrets. SQLite gives the files beside it the same permissions."""
    with suppress(OSError):  # SQLite says what is wrong with the path
        # A file that is there is not opened: closing it would drop the locks of this process.
        if not os.path.exists(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE))
        os.chmod(path, _PRIVATE)


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate(path, error) from error


def translate(path: str, error: sqlite3.Error) -> MetadataError | FolderInUse:
    """What an error of SQLite means to the user of the store."""
    primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _corrupted(path, str(error))
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return FolderInUse(f"another process has {path} open: stop it first", path=path)
    if primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        # Trying again is safe even after a failed sync: the next commit writes its pages anew.
        return MetadataUnavailable(
            f"{path} cannot be read or written ({error}): check that its disk works and has space",
            path=path,
        )
    return MetadataError(f"{path} cannot be used: {error}", path=path)


def _corrupted(path: str, finding: str) -> MetadataError:
    return MetadataError(
        f"{path} is corrupted ({finding}): restore it from a backup, or move it away to start empty",
        path=path,
    )
