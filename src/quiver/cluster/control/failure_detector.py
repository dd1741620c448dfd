"""What a node does at once when another seems to be gone: nobody waits for a lease to end.

A process whose port refuses connections has ended, or so it seems. Whoever notices elects a leader
for the partitions that the other led, if it is itself the one to be elected; shrinks the in-sync sets
of the partitions that it leads; and takes the controller key, if the other had it. All of that
by compare-and-swap: if the suspicion is wrong, the other finds another epoch, or a set without it, or
another controller, and goes on from there. The lease's end remains for what nobody noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from quiver.aio import cancel_and_wait, for_each
from quiver.cluster.election import elected
from quiver.cluster.metadata.store import Expect, MetadataStore, Put
from quiver.cluster.records import (
    NOBODY,
    NodeId,
    PartitionId,
    PartitionRecord,
    SessionId,
    VersionedPartition,
    encode,
    partition_key,
)
from quiver.cluster.replica.epochs import NO_EPOCH
from quiver.cluster.replica.messages import Fetch
from quiver.cluster.replica.network import Network
from quiver.cluster.state import ClusterState
from quiver.errors import MetadataConflict, MetadataError, NodeGone, QuiverError
from quiver.model.clock import Clock
from quiver.model.ids import Offset

_BELIEVED_SECONDS = 5.0
_AGAIN_SECONDS = 0.25
_PROBE_SECONDS = 1.0

logger = structlog.get_logger()


class FailureDetector:
    """Tell it of each state; ``suspect`` whoever refuses connections."""

    def __init__(
        self,
        node: NodeId,
        store: MetadataStore,
        network: Network,
        clock: Clock,
        on_suspect: Callable[[NodeId], None] = lambda node: None,
    ) -> None:
        """``on_suspect`` is called with each node that is found to be gone, before anything is
        elected."""
        self._node = node
        self._store = store
        self._network = network
        self._clock = clock
        self._on_suspect = on_suspect
        self._state = ClusterState()
        self._session = NOBODY
        self._gone: dict[NodeId, tuple[SessionId, float]] = {}
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}
        self._probes: dict[NodeId, asyncio.Task[None]] = {}

    def on_state(self, state: ClusterState, session: SessionId) -> None:
        self._state, self._session = state, session

    def heard(self, node: NodeId) -> None:
        """It speaks: it is not gone."""
        self._gone.pop(node, None)

    def suspect(self, node: NodeId) -> None:
        """The node refuses connections. Told of the same node often, this acts now and then."""
        living = self._state.nodes.get(node)
        if self._session == NOBODY or living is None or node in self._tasks:
            return
        if self._gone.get(node, (NOBODY, 0.0))[0] != living.session:
            logger.warning("a node refuses connections", suspect=node)
        self._gone[node] = (living.session, self._clock.monotonic())
        self._tasks[node] = asyncio.create_task(self._act(node))

    def look_after(self, node: NodeId) -> None:
        """A connection from that node broke: see whether it is still there."""
        if node not in self._probes and node in self._state.nodes:
            self._probes[node] = asyncio.create_task(self._probe(node))

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks.values(), *self._probes.values())

    # ------------------------------------------------------------------ acting

    async def _act(self, node: NodeId) -> None:
        try:
            self._on_suspect(node)
            await for_each(self._to_elect(node), self._elect)
            await self._clock.sleep(_AGAIN_SECONDS)
        except MetadataError as error:
            logger.warning("no leader can be elected now", error=error.message)
            await self._clock.sleep(_AGAIN_SECONDS)
        finally:
            del self._tasks[node]

    def _to_elect(self, node: NodeId) -> list[tuple[PartitionId, VersionedPartition]]:
        """Partitions that the node leads, and that this one would be elected to lead."""
        session, _ = self._gone.get(node, (NOBODY, 0.0))
        return [
            (partition, versioned)
            for partition, versioned in self._state.partitions.items()
            if versioned.record.leader == node
            and versioned.record.session == session != NOBODY
            and self._successor(versioned.record) is not None
        ]

    def _successor(self, record: PartitionRecord) -> PartitionRecord | None:
        """The record once this node leads, if it is the one to be elected."""
        now = self._clock.monotonic()
        alive = {
            node: session
            for node, session in self._state.sessions().items()
            if not self._is_gone(node, session, now)
        }
        clean = self._node in record.in_sync and alive.get(self._node) == self._session
        found = elected(record, alive, self._state.draining) if clean else None
        return found if found is not None and found.leader == self._node else None

    def _is_gone(self, node: NodeId, session: SessionId, now: float) -> bool:
        suspected, at = self._gone.get(node, (NOBODY, 0.0))
        return suspected == session and now - at < _BELIEVED_SECONDS

    async def _elect(self, one: tuple[PartitionId, VersionedPartition]) -> None:
        partition, versioned = one
        successor = self._successor(versioned.record)
        if successor is None:
            return
        key = partition_key(partition)
        try:
            await self._store.commit(
                [Expect(key, versioned.revision)], [Put(key, encode(successor))]
            )
        except MetadataConflict:
            return  # another was quicker, or the leader lives
        logger.info(
            "partition changed",
            partition=partition,
            reason="leader gone",
            leader=successor.leader,
            epoch=successor.epoch,
            in_sync=successor.in_sync,
            eligible=successor.eligible,
        )

    async def _probe(self, node: NodeId) -> None:
        """Ask it about nothing: any answer will do."""
        question = Fetch(
            partition=PartitionId(""),
            log=0,
            node=self._node,
            session=self._session,
            epoch=NO_EPOCH,
            offset=Offset(0),
            last_epoch=NO_EPOCH,
            synced=Offset(0),
            watermark=Offset(0),
        )
        try:
            await self._network.call(node, question, _PROBE_SECONDS)
        except NodeGone:
            self.suspect(node)
        except QuiverError:
            pass  # slow, or cut off: its lease will tell
        finally:
            del self._probes[node]
