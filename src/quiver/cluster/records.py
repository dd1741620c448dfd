"""What a cluster writes into its metadata store: nodes, partitions, and who controls.

    nodes/{node}                      a live process, under its lease
    controller                        the node that controls, under the same lease
    partitions/{topic}/{index}        who holds a partition, who leads it, under which epoch
    deleted/{topic}/{index}           who still holds a partition that was deleted
    draining/{node}                   an operator wants this node empty, or it is so
    disks/{node}                      which data folder the node's replicas are in

Only ``PartitionRecord`` decides about data: it changes by compare-and-swap alone.
"""

from __future__ import annotations

from typing import Literal, NewType, TypeVar

import msgspec

from quiver.cluster.metadata.store import LeaseId
from quiver.errors import MetadataError
from quiver.model.ids import LeaderEpoch

NodeId = NewType("NodeId", str)
SessionId = NewType("SessionId", int)
"""One life of a process, as the metadata store knows it: the id of its lease."""
PartitionId = NewType("PartitionId", str)
"""``topic/index``."""

NODES, PARTITIONS, DRAINING, DISKS = "nodes/", "partitions/", "draining/", "disks/"
DELETED = "deleted/"
CONTROLLER = "controller"
NOBODY = SessionId(0)

Record = TypeVar("Record")


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: NodeId
    session: SessionId = NOBODY
    address: str = ""
    """Where it speaks the native protocol, as host:port."""
    http: str = ""
    """Where it speaks HTTP, as host:port; empty if nowhere."""
    zone: str = ""
    host: str = ""
    """The machine, if several nodes may be processes of one. Empty: a machine of its own."""
    version: str = ""
    protocols: tuple[int, ...] = ()
    """The versions of the native protocol that it speaks. Earlier versions of Quiver do not say."""
    formats: dict[str, int] = {}
    """The newest version of each stored format that it reads. Earlier versions of Quiver do not say."""
    role: Literal["full", "forwarder"] = "full"
    disk: str = ""
    """Which data folder this is: a folder that was lost comes back under another name."""
    disk_is_full: bool = False
    """It publishes nothing until there is space, so others lead if they can."""


class PartitionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a partition. Invariant: the in-sync are replicas, the leader is one of them.

    The in-sync set changes by ``eligibility.with_in_sync`` alone.
    """

    replicas: tuple[NodeId, ...]
    """The first is the one that leads if all is well."""
    leader: NodeId
    session: SessionId = NOBODY
    """The process that leads: another process of the same node does not."""
    epoch: LeaderEpoch = LeaderEpoch(0)
    in_sync: tuple[NodeId, ...]
    eligible: tuple[NodeId, ...] = ()
    """Not in sync, but with everything that was committed: they may lead if nobody in sync can."""
    target: tuple[NodeId, ...] = ()
    """Where the replicas are to be, while they are being moved."""
    lost: tuple[NodeId, ...] = ()
    """In sync once, but its data is gone: the last that was in sync. Only who is eligible has it all."""
    wanted: int = 0
    """How many replicas there are to be; 0: as many as there are."""
    pinned: bool = False
    """An operator has placed it: it stays where it is, as long as its nodes do."""
    min_in_sync: int = 1
    allow_data_loss: bool = False
    """Elect a replica that is neither in sync nor eligible when no other is left."""

    def __post_init__(self) -> None:
        assert set(self.in_sync) <= set(self.replicas), "the in-sync are replicas"
        assert self.leader in self.in_sync, "the leader is in sync"
        assert set(self.eligible) <= set(self.replicas), "the eligible are replicas"
        assert not set(self.eligible) & set(self.in_sync), "who is in sync need not be eligible"
        assert not (self.can_commit and self.eligible), "nobody is eligible once one can commit"
        assert len(set(self.replicas)) == len(self.replicas), "a node holds one replica"

    @property
    def can_commit(self) -> bool:
        """Whether enough are in sync for a leader to commit something; one that is lost never leads."""
        return not self.lost and len(self.in_sync) >= self.min_in_sync


class DeletedRecord(msgspec.Struct, frozen=True):
    """A partition that is no more. Each holder drops its replica, and takes itself off."""

    holders: tuple[NodeId, ...]


class DrainingRecord(msgspec.Struct, frozen=True, kw_only=True):
    done: bool = False
    """The node holds nothing any more: it may be stopped for good."""


class ControllerRecord(msgspec.Struct, frozen=True):
    node: NodeId
    session: SessionId


class VersionedPartition(msgspec.Struct, frozen=True):
    """A partition's record, and the revision to compare when it is changed."""

    record: PartitionRecord
    revision: int


class VersionedDraining(msgspec.Struct, frozen=True):
    record: DrainingRecord
    revision: int


def moving(record: PartitionRecord, target: tuple[NodeId, ...]) -> PartitionRecord:
    """The record while its replicas move to these nodes: those that are not there yet follow."""
    added = tuple(node for node in target if node not in record.replicas)
    return msgspec.structs.replace(record, replicas=record.replicas + added, target=target)


def node_key(node: NodeId) -> str:
    return NODES + node


def partition_key(partition: PartitionId) -> str:
    return PARTITIONS + partition


def deleted_key(partition: PartitionId) -> str:
    return DELETED + partition


def draining_key(node: NodeId) -> str:
    return DRAINING + node


def session_of(lease: LeaseId) -> SessionId:
    return SessionId(lease)


def encode(
    record: NodeRecord | PartitionRecord | ControllerRecord | DeletedRecord | DrainingRecord,
) -> bytes:
    return msgspec.json.encode(record)


def decode(value: bytes, kind: type[Record]) -> Record:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise MetadataError(f"a record in the metadata store is not valid: {error}") from error
