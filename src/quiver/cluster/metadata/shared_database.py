"""The tables of a metadata file that several processes of one machine have open at a time.

A lease is a row. Whoever finds it past its time, or its process gone, ends it. Times are those of the
machine's monotonic clock, which all processes share. A keep-alive is not synced: after a power cut no
process lives, so no lease counts.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from quiver.cluster.metadata.sqlite_database import SHARED_SCHEMA_VERSION, Database
from quiver.cluster.metadata.store import Delete, LeaseId, Put
from quiver.cluster.metadata.wake_files import WakeFiles
from quiver.errors import FolderInUse, LeaseLost, MetadataUnavailable

_BUSY_TIMEOUT_S = 10.0
_BUSY_POLL_S = 0.01
_WAKE_FOLDER = ".open"
"""After the file's name: the folder with the pipes of those who have it open."""
_LEASES = """
    CREATE TABLE IF NOT EXISTS leases (
        id INTEGER PRIMARY KEY NOT NULL,
        holder INTEGER NOT NULL,
        ttl_seconds INTEGER NOT NULL,
        deadline REAL NOT NULL
    )
"""


class SharedDatabase(Database):
    _locking_mode = "NORMAL"
    _busy_timeout_s = _BUSY_TIMEOUT_S

    def __init__(self, path: str, history_revisions: int, connection: sqlite3.Connection) -> None:
        super().__init__(path, history_revisions, connection)
        self.monotonic = time.monotonic
        self._wake_files: WakeFiles | None = None
        self._granted = 0

    @classmethod
    def open(cls, path: str, history_revisions: int) -> Self:
        """Like any ``Database``, also while other processes open, close or recover it.

        SQLite does not wait for them at every step: it may say at once that the file is in use.
        """
        deadline = time.monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                return super().open(path, history_revisions)
            except FolderInUse:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_BUSY_POLL_S)

    @property
    def wake_files(self) -> WakeFiles:
        assert self._wake_files is not None, "it is open"
        return self._wake_files

    def close(self) -> None:
        super().close()
        if self._wake_files is not None:
            self._wake_files.close()

    def revision(self) -> int:
        with self._translated():
            return self._revisions()[0]

    # ------------------------------------------------------------------ leases

    def grant(self, ttl_seconds: int) -> LeaseId:
        self._granted += 1
        # The opening's number keeps a lease of an earlier process from being taken for this one.
        lease_id = LeaseId(self.opening << 32 | self._granted)
        deadline = self.monotonic() + ttl_seconds
        with self._unsynced(), self._transaction():
            self._connection.execute(
                "INSERT INTO leases VALUES (?, ?, ?, ?)",
                (lease_id, self.opening, ttl_seconds, deadline),
            )
        return lease_id

    def keep_alive(self, lease_id: LeaseId) -> int:
        with self._unsynced(), self._transaction():
            ttl_seconds = self._require_lease(lease_id)
            self._connection.execute(
                "UPDATE leases SET deadline = ? WHERE id = ?",
                (self.monotonic() + ttl_seconds, lease_id),
            )
        return ttl_seconds

    def end_lease(self, lease_id: LeaseId) -> int:
        with self._transaction():
            self._forget_lease(lease_id)
            return self._delete_leased("lease = ?", (lease_id,))

    def end_leases(self) -> bool:
        """End every lease that is past its time or whose process is gone; whether there was one."""
        with self._translated():
            if not self._over():
                return False
        with self._transaction():
            over = self._over()  # one may have been kept alive meanwhile
            for lease_id in over:
                self._forget_lease(lease_id)
                self._delete_leased("lease = ?", (lease_id,))
            self.wake_files.remove_dead()
        return bool(over)

    def _over(self) -> list[LeaseId]:
        """In the order in which they ran out."""
        rows = self._connection.execute(
            "SELECT id, holder, deadline FROM leases ORDER BY deadline, id"
        ).fetchall()
        living = {holder: self.wake_files.is_alive(holder) for _, holder, _ in rows}
        now = self.monotonic()
        return [
            LeaseId(lease)
            for lease, holder, deadline in rows
            if deadline <= now or not living[holder]
        ]

    def _require_lease(self, lease_id: LeaseId) -> int:
        row = self._connection.execute(
            "SELECT ttl_seconds, deadline FROM leases WHERE id = ?", (lease_id,)
        ).fetchone()
        if row is None or row[1] <= self.monotonic():
            raise LeaseLost(lease_id=lease_id)
        return int(row[0])

    def _forget_lease(self, lease_id: LeaseId) -> None:
        self._connection.execute("DELETE FROM leases WHERE id = ?", (lease_id,))

    def _check_leases(self, changes: Sequence[Put | Delete]) -> None:
        for change in changes:
            if isinstance(change, Put) and change.lease is not None:
                self._require_lease(change.lease)

    # ------------------------------------------------------------------ opening

    def _end_earlier_leases(self) -> None:
        """Those of processes that are gone. The transaction keeps all others from opening."""
        self._connection.execute(_LEASES)
        self._connection.execute(f"PRAGMA user_version = {SHARED_SCHEMA_VERSION}")
        self._wake_files = WakeFiles(self._path + _WAKE_FOLDER, self.opening)
        holders = self._connection.execute("SELECT DISTINCT holder FROM leases").fetchall()
        for holder in [one for (one,) in holders if not self._wake_files.is_alive(one)]:
            self._connection.execute("DELETE FROM leases WHERE holder = ?", (holder,))
        self._delete_leased("lease IS NOT NULL AND lease NOT IN (SELECT id FROM leases)", ())
        self._wake_files.remove_dead()

    @contextmanager
    def _unsynced(self) -> Iterator[None]:
        """What is committed within survives the process, and not a power cut."""
        with self._translated():
            self._connection.execute("PRAGMA synchronous = NORMAL")
            try:
                yield
            finally:
                self._connection.execute("PRAGMA synchronous = FULL")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with super()._translated():
                yield
        except FolderInUse as error:
            raise MetadataUnavailable(
                f"another process has kept {self._path} locked for {_BUSY_TIMEOUT_S:g} s",
                path=self._path,
            ) from error
