"""A metadata store in memory, for tests and the simulator: it keeps the contract, and nothing else.

Leases end when ``sweep`` is called: whoever has the clock calls it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from quiver.aio import Signal
from quiver.cluster.metadata.store import (
    Delete,
    Entry,
    Expect,
    Lease,
    LeaseId,
    Listing,
    MetadataStore,
    Put,
    WatchBatch,
    check_commit,
    check_from_revision,
    check_key,
    check_prefix,
    check_ttl,
)
from quiver.errors import LeaseLost, MetadataConflict, MetadataError, WatchCompacted
from quiver.model.clock import Clock


class MemoryStore(MetadataStore):
    def __init__(self, clock: Clock, history_revisions: int = 10_000) -> None:
        self._clock = clock
        self._history_revisions = history_revisions
        self._revision = 1
        self._compacted = 0
        self._entries: dict[str, tuple[Entry, LeaseId | None]] = {}
        self._history: list[WatchBatch] = []
        self._leases: dict[LeaseId, tuple[int, float]] = {}
        self._granted = 0
        self._changed = Signal(clock)
        self._closed = False

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        self._check_open()
        found = self._entries.get(key)
        return found[0] if found is not None else None

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        self._check_open()
        keys = sorted(key for key in self._entries if key.startswith(prefix))
        return Listing(tuple(self._entries[key][0] for key in keys), self._revision)

    async def commit(self, expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> int:
        expects, changes = tuple(expects), tuple(changes)
        check_commit(expects, changes)
        self._check_open()
        for change in changes:
            if isinstance(change, Put) and change.lease is not None:
                self._live(change.lease)
        for expect in expects:
            found = self._entries.get(expect.key)
            revision = found[0].revision if found is not None else 0
            if revision != expect.revision:
                raise MetadataConflict(key=expect.key, revision=revision)
        return self._change(changes)

    async def grant(self, ttl_seconds: int) -> Lease:
        check_ttl(ttl_seconds)
        self._check_open()
        self._granted += 1
        lease_id = LeaseId(1_000_000 + self._granted)
        self._leases[lease_id] = (ttl_seconds, self._clock.monotonic() + ttl_seconds)
        return Lease(lease_id, ttl_seconds)

    async def keep_alive(self, lease_id: LeaseId) -> int:
        self._check_open()
        ttl_seconds = self._live(lease_id)
        self._leases[lease_id] = (ttl_seconds, self._clock.monotonic() + ttl_seconds)
        return ttl_seconds

    async def revoke(self, lease_id: LeaseId) -> None:
        self._check_open()
        if self._leases.pop(lease_id, None) is not None:
            leased = sorted(key for key, one in self._entries.items() if one[1] == lease_id)
            self._change([Delete(key) for key in leased])

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        check_prefix(prefix)
        check_from_revision(from_revision)
        self._check_open()
        return self._watch(prefix, from_revision)

    async def close(self) -> None:
        self._closed = True
        self._changed.wake()

    async def sweep(self) -> None:
        """End the leases that are due."""
        now = self._clock.monotonic()
        for lease_id, (_, deadline) in list(self._leases.items()):
            if deadline <= now:
                await self.revoke(lease_id)

    def renew_all(self) -> None:
        """Begin every lease's time anew, as etcd does when it has a new leader."""
        now = self._clock.monotonic()
        self._leases = {one: (ttl, now + ttl) for one, (ttl, _) in self._leases.items()}

    def changes_after(self, prefix: str, position: int) -> tuple[Sequence[WatchBatch], int]:
        """What a watch has still to tell, and where it stands then."""
        if position < self._compacted:
            raise WatchCompacted(compacted_revision=self._compacted)
        batches = []
        for batch in reversed(self._history):
            if batch.revision <= position:
                break
            under = tuple(change for change in batch.changes if change.key.startswith(prefix))
            if under:
                batches.append(WatchBatch(batch.revision, under))
        return batches[::-1], max(position, self._revision)

    async def wait_beyond(self, position: int) -> None:
        while self._revision <= position and not self._closed:
            await self._changed.wait()

    async def _watch(self, prefix: str, position: int) -> AsyncGenerator[WatchBatch, None]:
        while not self._closed:
            batches, position = self.changes_after(prefix, position)
            for batch in batches:
                yield batch
            await self.wait_beyond(position)

    def _change(self, changes: Sequence[Put | Delete]) -> int:
        revision = self._revision + 1
        done: list[Entry | Delete] = []
        for change in changes:
            if isinstance(change, Put):
                entry = Entry(change.key, change.value, revision)
                self._entries[change.key] = (entry, change.lease)
                done.append(entry)
            elif self._entries.pop(change.key, None) is not None:
                done.append(change)
        if done:
            self._revision = revision
            self._history.append(WatchBatch(revision, tuple(done)))
            surplus = len(self._history) - self._history_revisions
            if surplus > 0:
                self._compacted = self._history[surplus - 1].revision
                del self._history[:surplus]
            self._changed.wake()
        return self._revision

    def _live(self, lease_id: LeaseId) -> int:
        ttl_seconds, deadline = self._leases.get(lease_id, (0, 0.0))
        if deadline <= self._clock.monotonic():
            raise LeaseLost(lease_id=lease_id)
        return ttl_seconds

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataError("the metadata store is closed")
