"""The metadata store: the small, shared truth that every node of a cluster agrees on.

``MetadataStore`` is the contract; SQLite keeps it on a single node and etcd in a cluster, and one
suite of tests holds both to it. The store has one revision, which grows with each commit that
changes something, and a commit is atomic over all its keys: safety rests on comparing revisions,
leases only tell who is alive.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NewType, Protocol

import msgspec

from quiver.errors import InvalidRequest

MAX_KEY_CHARS = 1_024
MAX_VALUE_BYTES = 1 << 20
MAX_COMMIT_BYTES = 5 << 18
"""All keys and values of one commit, 1.25 MiB: beneath etcd's 1.5 MiB for a request."""
MAX_COMMIT_KEYS = 128
"""Expectations, and changes, in one commit: etcd's limit for a transaction."""
MAX_LEASE_TTL_SECONDS = 86_400

LeaseId = NewType("LeaseId", int)


class Entry(msgspec.Struct, frozen=True):
    """A key's value, and the store's revision when it was last changed."""

    key: str
    value: bytes
    revision: int


class Listing(msgspec.Struct, frozen=True):
    """The entries under a prefix, sorted by key, all as they were at ``revision``."""

    entries: tuple[Entry, ...]
    revision: int


class Expect(msgspec.Struct, frozen=True):
    """The key was last changed at ``revision``; 0: there is no such key."""

    key: str
    revision: int


class Put(msgspec.Struct, frozen=True):
    """Set the key; with a lease it goes when the lease ends, without one it stays from now on."""

    key: str
    value: bytes
    lease: LeaseId | None = None


class Delete(msgspec.Struct, frozen=True):
    """Remove the key; no change if there is none."""

    key: str


class Lease(msgspec.Struct, frozen=True):
    id: LeaseId
    ttl_seconds: int
    """What the store granted: it may be longer than what was asked for."""


class WatchBatch(msgspec.Struct, frozen=True):
    """What one commit changed under the watched prefix, in the commit's order."""

    revision: int
    changes: tuple[Entry | Delete, ...]


class MetadataStore(Protocol):
    """Keys and values with compare-and-swap, leases and watches.

    Every read sees every commit that was acknowledged before it began. Keys and values outside the
    bounds above are ``InvalidRequest``. A store that cannot be reached or cannot write raises
    ``MetadataUnavailable``; the change, and one whose caller was cancelled, may have been made or
    not, but never in part. Every call on a closed store is a ``MetadataError``.
    """

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> Listing:
        """A consistent snapshot; watch from its revision to stay up to date."""

    async def commit(self, expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> int:
        """If every expectation holds, make all changes at one new revision, and return it.

        If one does not hold nothing is changed: ``MetadataConflict``, with the ``key`` in its
        details. A lease that has ended is ``LeaseLost``. A key is changed at most once in a commit.
        A commit that changes nothing leaves the store's revision where it is, and returns it.
        """

    async def grant(self, ttl_seconds: int) -> Lease:
        """A lease that ends after ``ttl_seconds`` (1 s to 1 day) unless it is kept alive."""

    async def keep_alive(self, lease_id: LeaseId) -> int:
        """Begin the lease's time anew; returns the seconds left. ``LeaseLost`` if it has ended."""

    async def revoke(self, lease_id: LeaseId) -> None:
        """End the lease; no error if it has ended already.

        When a lease ends, all keys under it are deleted, in key order, in one revision.
        """

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Every change after ``from_revision``: in order, none left out, none repeated.

        One batch for each commit that touched the prefix; a watch taken up again from a batch's
        revision goes on right after it. ``WatchCompacted`` when changes still to be told are
        forgotten: list again. The iteration ends when the store is closed; to end it earlier,
        ``aclose`` it (``contextlib.aclosing``).
        """

    async def close(self) -> None:
        """Let go of the store; leases are not revoked. Closing twice does no harm."""


def check_key(key: str) -> None:
    if not key:
        raise InvalidRequest("a metadata key must not be empty")
    check_prefix(key)


def check_prefix(prefix: str) -> None:
    """Like a key, but it may be empty: every key is under the empty prefix."""
    if len(prefix) > MAX_KEY_CHARS:
        raise InvalidRequest(
            f"a metadata key has at most {MAX_KEY_CHARS:,} characters, not {len(prefix):,}"
        )
    if "\0" in prefix or not _encodable(prefix):
        raise InvalidRequest(f"a metadata key is UTF-8 text without NUL: {prefix!r}")


def check_commit(expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> None:
    for what, count in (("expectations", len(expects)), ("changes", len(changes))):
        if count > MAX_COMMIT_KEYS:
            raise InvalidRequest(f"a commit has at most {MAX_COMMIT_KEYS} {what}, not {count:,}")
    for expect in expects:
        check_key(expect.key)
        if expect.revision < 0:
            raise InvalidRequest(f"a revision is not negative: {expect.revision}", key=expect.key)
    seen: set[str] = set()
    for change in changes:
        _check_change(change)
        if change.key in seen:
            raise InvalidRequest(f"a commit changes {change.key!r} twice", key=change.key)
        seen.add(change.key)
    _check_size(expects, changes)


def check_from_revision(from_revision: int) -> None:
    if from_revision < 0:
        raise InvalidRequest(f"a revision is not negative: {from_revision}")


def check_ttl(ttl_seconds: int) -> None:
    if not 1 <= ttl_seconds <= MAX_LEASE_TTL_SECONDS:
        raise InvalidRequest(
            f"a lease lasts 1 to {MAX_LEASE_TTL_SECONDS:,} seconds, not {ttl_seconds:,}"
        )


def _check_change(change: Put | Delete) -> None:
    check_key(change.key)
    if isinstance(change, Put) and len(change.value) > MAX_VALUE_BYTES:
        raise InvalidRequest(
            f"a metadata value has at most {MAX_VALUE_BYTES:,} bytes, not {len(change.value):,}",
            key=change.key,
        )


def _check_size(expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> None:
    size = sum(len(part.key.encode()) for part in (*expects, *changes))
    size += sum(len(change.value) for change in changes if isinstance(change, Put))
    if size > MAX_COMMIT_BYTES:
        raise InvalidRequest(
            f"a commit has at most {MAX_COMMIT_BYTES:,} bytes of keys and values, not {size:,}"
        )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
