"""A node's view of the cluster: what the metadata store says, kept up to date by one watch.

Everything comes through one watch, in the store's order: whoever sees a change has seen all that
came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
import structlog

from quiver.aio import Signal, report_unexpected
from quiver.cluster.metadata.store import Delete, Entry, MetadataStore
from quiver.cluster.records import (
    CONTROLLER,
    DELETED,
    DRAINING,
    NODES,
    PARTITIONS,
    ControllerRecord,
    DeletedRecord,
    DrainingRecord,
    NodeRecord,
    PartitionRecord,
    VersionedDraining,
    VersionedPartition,
    decode,
)
from quiver.cluster.state import ClusterState
from quiver.errors import MetadataError, WatchCompacted
from quiver.model.clock import Clock

OnLoad = Callable[[tuple[Entry, ...], int], None]
"""Called with everything in the store and its revision, whenever it was read anew."""
OnCommit = Callable[[tuple[Entry | Delete, ...], int], None]
"""Called with what one commit has changed in the store, and its revision."""

_AGAIN_SECONDS = 0.5

logger = structlog.get_logger()


class ClusterView:
    """``load`` it once, then let ``follow`` run."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        *,
        on_load: OnLoad = lambda entries, revision: None,
        on_commit: OnCommit = lambda changes, revision: None,
        on_change: Callable[[ClusterState], None] = lambda state: None,
    ) -> None:
        """``on_load`` and ``on_commit`` are called before ``on_change``."""
        self.state = ClusterState()
        self._on_load = on_load
        self._on_commit = on_commit
        self._on_change = on_change
        self._seen = Signal(clock)
        self._store = store
        self._clock = clock

    async def load(self) -> ClusterState:
        """Read everything anew."""
        listing = await self._store.list("")
        if listing.revision >= self.state.revision:
            self._on_load(listing.entries, listing.revision)
            state = changed(ClusterState(), listing.revision, listing.entries)
            self._show(msgspec.structs.replace(state, touched=None))
        return self.state

    async def follow(self) -> None:
        """Keep the view up to date for ever."""
        while True:
            try:
                await self._follow()
            except WatchCompacted:
                await self._load_again()
            except MetadataError as error:
                logger.warning("the cluster's state cannot be followed", error=error.message)
                await self._clock.sleep(_AGAIN_SECONDS)
            except Exception as error:
                report_unexpected("a change in the cluster could not be taken up", error)
                await self._clock.sleep(_AGAIN_SECONDS)
                await self._load_again()  # whoever missed it is told of everything

    async def _follow(self) -> None:
        async with aclosing(self._store.watch("", self.state.revision)) as watch:
            async for batch in watch:
                if batch.revision > self.state.revision:
                    self._on_commit(batch.changes, batch.revision)
                    self._show(changed(self.state, batch.revision, batch.changes))

    async def _load_again(self) -> None:
        try:
            await self.load()
        except MetadataError as error:
            logger.warning("the cluster's state cannot be read", error=error.message)
            await self._clock.sleep(_AGAIN_SECONDS)

    def _show(self, state: ClusterState) -> None:
        self.state = state
        self._seen.wake()
        self._on_change(state)

    async def wait_for(self, revision: int, timeout_s: float) -> bool:
        """Wait until what was in the store at ``revision`` is known here; whether it is."""
        deadline = self._clock.monotonic() + timeout_s
        while self.state.revision < revision and self._clock.monotonic() < deadline:
            await self._seen.wait(deadline - self._clock.monotonic())
        return self.state.revision >= revision


def changed(
    state: ClusterState, revision: int, changes: tuple[Entry | Delete, ...]
) -> ClusterState:
    """The state after one commit. What it does not concern is the same object as before."""
    changed_keys: dict[str, dict[str, Entry | None]] = {
        NODES: {},
        PARTITIONS: {},
        DELETED: {},
        DRAINING: {},
    }
    fields: dict[str, Any] = {"revision": revision}
    for change in changes:
        key, entry = change.key, change if isinstance(change, Entry) else None
        prefix = key[: key.find("/") + 1]
        if prefix in changed_keys:
            changed_keys[prefix][key.removeprefix(prefix)] = entry
        elif key == CONTROLLER:
            fields["controller"] = decode(entry.value, ControllerRecord) if entry else None
            fields["controller_revision"] = entry.revision if entry else 0
    for prefix, field, read in _TABLES:
        if changed_keys[prefix]:
            fields[field] = _with(getattr(state, field), changed_keys[prefix], read)
    fields["touched"] = frozenset((*changed_keys[PARTITIONS], *changed_keys[DELETED]))
    return msgspec.structs.replace(state, **fields)


def _with(
    table: Mapping[str, Any], changed_keys: Mapping[str, Entry | None], read: Callable[[Entry], Any]
) -> dict[str, Any]:
    """The table with these changes, sorted."""
    new = dict(table)
    for name, entry in changed_keys.items():
        if entry is None:
            new.pop(name, None)
        else:
            new[name] = read(entry)
    grown = any(entry is not None and name not in table for name, entry in changed_keys.items())
    return dict(sorted(new.items())) if grown else new


def _draining(entry: Entry) -> VersionedDraining:
    record = decode(entry.value, DrainingRecord) if entry.value else DrainingRecord()
    return VersionedDraining(record, entry.revision)


_TABLES: tuple[tuple[str, str, Callable[[Entry], Any]], ...] = (
    (NODES, "nodes", lambda entry: decode(entry.value, NodeRecord)),
    (
        PARTITIONS,
        "partitions",
        lambda entry: VersionedPartition(decode(entry.value, PartitionRecord), entry.revision),
    ),
    (DELETED, "deleted", lambda entry: decode(entry.value, DeletedRecord)),
    (DRAINING, "draining", _draining),
)
