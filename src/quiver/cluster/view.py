"""A node's view of the cluster: what the metadata store says, kept up to date by one watch.

Everything comes through one watch, in the store's order: whoever sees a change has seen all that
came before it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

import structlog

from quiver.cluster.controller import ClusterState
from quiver.cluster.metadata import Delete, Entry, MetadataStore
from quiver.cluster.records import (
    CONTROLLER,
    DRAINING,
    NODES,
    PARTITIONS,
    ControllerRecord,
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    VersionedPartition,
    decode,
)
from quiver.cluster.signal import Signal
from quiver.errors import MetadataError, WatchCompacted
from quiver.model.clock import Clock

_AGAIN_SECONDS = 0.5

logger = structlog.get_logger()


class ClusterView:
    """``load`` it once, then let ``follow`` run."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self.state = ClusterState()
        self.on_change: Callable[[ClusterState], None] = lambda state: None
        self.on_load: Callable[[tuple[Entry, ...], int], None] = lambda entries, revision: None
        """Called with everything in the store, before ``on_change``, whenever it was read anew."""
        self.on_commit: Callable[[tuple[Entry | Delete, ...], int], None] = lambda changes, at: None
        """Called with each change in the store, before ``on_change``."""
        self._seen = Signal(clock)
        self._store = store
        self._clock = clock

    async def load(self) -> ClusterState:
        """Read everything anew."""
        listing = await self._store.list("")
        if listing.revision >= self.state.revision:
            self.on_load(listing.entries, listing.revision)
            self._show(changed(ClusterState(), listing.revision, listing.entries))
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

    async def _follow(self) -> None:
        async with aclosing(self._store.watch("", self.state.revision)) as watch:
            async for batch in watch:
                if batch.revision > self.state.revision:
                    self.on_commit(batch.changes, batch.revision)
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
        self.on_change(state)

    async def wait_for(self, revision: int, timeout_s: float) -> bool:
        """Wait until what was in the store at ``revision`` is known here; whether it is."""
        deadline = self._clock.monotonic() + timeout_s
        while self.state.revision < revision and self._clock.monotonic() < deadline:
            await self._seen.wait(deadline - self._clock.monotonic())
        return self.state.revision >= revision


def changed(
    state: ClusterState, revision: int, changes: tuple[Entry | Delete, ...]
) -> ClusterState:
    """The state after one commit."""
    nodes, partitions = dict(state.nodes), dict(state.partitions)
    draining = set(state.draining)
    controller, controller_revision = state.controller, state.controller_revision
    for change in changes:
        key, entry = change.key, change if isinstance(change, Entry) else None
        if key.startswith(NODES):
            nodes.pop(NodeId(key.removeprefix(NODES)), None)
            if entry is not None:
                node = decode(entry.value, NodeRecord)
                nodes[node.id] = node
        elif key.startswith(PARTITIONS):
            partition = PartitionId(key.removeprefix(PARTITIONS))
            partitions.pop(partition, None)
            if entry is not None:
                record = decode(entry.value, PartitionRecord)
                partitions[partition] = VersionedPartition(record, entry.revision)
        elif key.startswith(DRAINING):
            draining.discard(NodeId(key.removeprefix(DRAINING)))
            if entry is not None:
                draining.add(NodeId(key.removeprefix(DRAINING)))
        elif key == CONTROLLER:
            controller = decode(entry.value, ControllerRecord) if entry is not None else None
            controller_revision = entry.revision if entry is not None else 0
    return ClusterState(
        revision=revision,
        nodes=dict(sorted(nodes.items())),
        partitions=dict(sorted(partitions.items())),
        draining=frozenset(draining),
        controller=controller,
        controller_revision=controller_revision,
    )
