"""What an operator can see and change in the cluster, from any node.

Every change is a compare-and-swap on a record that the controller and the replicas act on. Nothing is
carried out here, and a change that another node made meanwhile is never overwritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from quiver import protocol
from quiver.cluster.control.operations import pinned_to
from quiver.cluster.election import elected, is_led
from quiver.cluster.metadata.store import Delete, Expect, MetadataStore, Put
from quiver.cluster.records import (
    DRAINING,
    DrainingRecord,
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    decode,
    encode,
    partition_key,
)
from quiver.cluster.state import ClusterState
from quiver.cluster.view import ClusterView
from quiver.errors import (
    InvalidRequest,
    MetadataConflict,
    NodeNotFound,
    PartitionNotFound,
    PartitionUnavailable,
    TopicNotFound,
)

_ATTEMPTS = 20


class ClusterAdministration:
    def __init__(self, store: MetadataStore, view: ClusterView) -> None:
        self._store = store
        self._view = view

    def describe(self) -> protocol.ClusterInfo:
        return described(self._view.state)

    async def move(self, topic: str, partition: int, nodes: Sequence[str]) -> None:
        """Have these nodes hold a partition, the first of them as its leader in the end."""
        target = tuple(NodeId(node) for node in nodes)
        self._require_homes(target)

        def moved(record: PartitionRecord) -> PartitionRecord:
            return pinned_to(record, target)

        await self._change(topic, partition, moved)

    async def transfer(self, topic: str, partition: int, node: str | None) -> None:
        """Have another replica lead a partition: the one named, or the best of the others."""

        def transferred(record: PartitionRecord) -> PartitionRecord:
            return with_leader(record, self._view.state, None if node is None else NodeId(node))

        await self._change(topic, partition, transferred)

    async def decommission(self, node: str, *, cancel: bool) -> None:
        """Have a node emptied, or no longer."""
        key = DRAINING + node
        if cancel:
            await self._store.commit([], [Delete(key)])
            return
        state = self._view.state
        if node not in known_nodes(state) and node not in state.draining:
            raise NodeNotFound(f"there is no node named {node[:100]!r}", node=node[:100])
        _require_room_without(NodeId(node), state)
        await self._store.commit([], [Put(key, encode(DrainingRecord()))])

    # ------------------------------------------------------------------ records

    async def _change(
        self, topic: str, partition: int, change: Callable[[PartitionRecord], PartitionRecord]
    ) -> None:
        key = partition_key(self._find(topic, partition))
        for _ in range(_ATTEMPTS):
            entry = await self._store.get(key)
            if entry is None:
                raise TopicNotFound(f"there is no topic {topic[:200]!r}", topic=topic[:200])
            record = decode(entry.value, PartitionRecord)
            changed = change(record)
            if changed == record:
                return
            try:
                await self._store.commit([Expect(key, entry.revision)], [Put(key, encode(changed))])
                return
            except MetadataConflict:
                continue
        raise MetadataConflict(f"{topic}/{partition} changed {_ATTEMPTS} times in a row")

    def _find(self, topic: str, partition: int) -> PartitionId:
        """The partition's id; of topics that had the same name one after the other, the last."""
        found = {
            place: one
            for one in self._view.state.partitions
            if (place := place_of(one))[0] == topic
        }
        if not found:
            raise TopicNotFound(f"there is no topic {topic[:200]!r}", topic=topic[:200])
        newest = max(number for _, number, _ in found)
        here = found.get((topic, newest, partition))
        if here is None:
            raise PartitionNotFound(f"topic {topic!r} has no partition {partition}")
        return here

    def _require_homes(self, nodes: tuple[NodeId, ...]) -> None:
        """``InvalidRequest`` unless these are live nodes that hold replicas, each named once."""
        if not nodes:
            raise InvalidRequest("name at least one node for the partition")
        if len(set(nodes)) < len(nodes):
            raise InvalidRequest(
                "a node is named twice: each node holds one replica of a partition"
            )
        for node in nodes:
            record = self._view.state.nodes.get(node)
            if record is None:
                raise NodeNotFound(
                    f"there is no running node named {node[:100]!r}", node=node[:100]
                )
            if record.role == "forwarder":
                raise InvalidRequest(f"{node} is a forwarder, which stores nothing")
            if node in self._view.state.draining:
                raise InvalidRequest(f"{node} is being decommissioned")


# ---------------------------------------------------------------------- pure


def with_leader(
    record: PartitionRecord, state: ClusterState, node: NodeId | None
) -> PartitionRecord:
    """The record under another leader, who is from now on the one that leads if all is well."""
    alive = state.sessions()
    if node is not None and node == record.leader and is_led(record, alive):
        return _preferring(record, node)
    others = {one: session for one, session in alive.items() if one != record.leader}
    if node is not None and (node not in record.in_sync or node not in alive):
        in_sync = ", ".join(record.in_sync)
        raise InvalidRequest(
            f"{node} is not in sync, so it cannot become leader; in sync are {in_sync}"
        )
    if node is None:
        in_sync_only = msgspec.structs.replace(record, allow_data_loss=False, eligible=())
        best = elected(in_sync_only, others)
        if best is None:
            raise PartitionUnavailable("no other replica is in sync, so the leader cannot move")
        node = best.leader
    successor = elected(_preferring(record, node), alive)
    assert successor is not None, "the first of the replicas lives and is in sync"
    return successor


def _preferring(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    others = tuple(one for one in record.replicas if one != node)
    return msgspec.structs.replace(record, replicas=(node, *others))


def _require_room_without(node: NodeId, state: ClusterState) -> None:
    """``InvalidRequest`` if a partition has more replicas than there would be nodes for them."""
    left = [
        one.id
        for one in state.nodes.values()
        if one.role == "full" and one.id != node and one.id not in state.draining
    ]
    for partition, versioned in state.partitions.items():
        record = versioned.record
        if node in record.replicas and len(record.target or record.replicas) > len(left):
            topic, _, index = place_of(partition)
            raise InvalidRequest(
                f"{topic}/{index} has {len(record.replicas)} replicas and without {node} there are "
                f"only {len(left)} nodes: add a node first, or give the topic fewer replicas"
            )


def place_of(partition: PartitionId) -> tuple[str, int, int]:
    """The topic's name and number, and the index."""
    folder, _, index = partition.rpartition("/")
    topic, _, number = folder.rpartition("@")
    return topic, int(number), int(index)


def known_nodes(state: ClusterState) -> dict[NodeId, NodeRecord]:
    """Nodes that live, and those that hold something and do not."""
    holders = {node for one in state.partitions.values() for node in one.record.replicas}
    away = {node: NodeRecord(id=node) for node in holders}
    return dict(sorted({**away, **state.nodes}.items()))


def described(state: ClusterState) -> protocol.ClusterInfo:
    """The cluster as an operator reads it."""
    alive = state.sessions()
    leads: Counter[NodeId] = Counter()
    holds: Counter[NodeId] = Counter()
    partitions = []
    for partition, versioned in state.partitions.items():
        record = versioned.record
        topic, _, index = place_of(partition)
        holds.update(record.replicas)
        led = is_led(record, alive)
        if led:
            leads[record.leader] += 1
        partitions.append(
            protocol.PartitionPlacement(
                topic=topic,
                index=index,
                leader=record.leader if led else None,
                epoch=record.epoch,
                replicas=list(record.replicas),
                in_sync=list(record.in_sync),
                eligible=list(record.eligible),
                target=list(record.target),
                min_in_sync=record.min_in_sync,
            )
        )
    nodes = [
        protocol.NodeInfo(
            id=node.id,
            address=node.address,
            http=node.http,
            zone=node.zone,
            host=node.host,
            version=node.version,
            protocols=list(node.protocols),
            role=node.role,
            alive=node.id in alive,
            draining=node.id in state.draining,
            disk_is_full=node.disk_is_full,
            leads=leads[node.id],
            holds=holds[node.id],
        )
        for node in known_nodes(state).values()
    ]
    return protocol.ClusterInfo(
        nodes=nodes,
        partitions=sorted(partitions, key=lambda one: (one.topic, one.index)),
        controller=None if state.controller is None else state.controller.node,
        revision=state.revision,
    )
