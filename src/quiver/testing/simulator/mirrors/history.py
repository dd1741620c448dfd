"""What happened between two simulated clusters of which one copies the topics of the other."""

from __future__ import annotations

import msgspec
from msgspec import field

from quiver.cluster.records import NodeId, PartitionId
from quiver.testing.simulator.history import History

LOOSE = "loose"
"""A topic of the source whose confirmed messages may be taken back, by a power cut or an election."""

DEALS = "deals"
"""A topic of both clusters that transactions write to."""
DEAD_LETTERS = ".dlq"
ASIDE = ".diverged-"
"""What is in the names of topics that have what was kept aside."""

Mark = tuple[int, int, int, int]
"""Offset, count, time and checksum of an entry."""


class LedLog(msgspec.Struct, kw_only=True):
    """The log of a partition under one leader: what it found, and what it added."""

    node: NodeId
    epoch: int
    at: float
    found: int
    """Where it ended when this leader began."""
    marks: list[Mark]
    own: list[int] = []
    """The offsets of the entries that were published in this cluster."""

    @property
    def end(self) -> int:
        return self.marks[-1][0] + self.marks[-1][1] if self.marks else self.found

    @property
    def own_from(self) -> int | None:
        """In a copy: the offset of the first entry that was published there."""
        return self.own[0] if self.own else None

    def between(self, begin: int, end: int) -> list[Mark]:
        return [mark for mark in self.marks if begin <= mark[0] < end]


class Promotion(msgspec.Struct, kw_only=True):
    """What an operator was told of the promote of a topic."""

    invoked: float
    """When it was asked for first. It may have happened without an answer."""
    ended: float = 1e9
    is_fenced: bool = False
    is_complete: bool = False


class Gap(msgspec.Struct, frozen=True):
    """Offsets that a node said the source had no more."""

    topic: str
    index: int
    begin: int
    end: int


class FailbackPart(msgspec.Struct, kw_only=True):
    """What a partition went through on its way to be a copy again."""

    cut: int
    """Where its log was cut."""
    end: int
    tail: list[Mark] = []
    """What its log had from there on, when it was said to be kept aside."""
    older: list[Mark] = []
    """What earlier leaders had before that: retention may be further on one replica than on another."""
    epoch: int = 0
    """Of the leader under which it became a copy."""


class Failback(msgspec.Struct, kw_only=True):
    """A topic on its way to be a copy of its former copy, by its records in the metadata store."""

    number: int
    aside: str
    began: float
    finished: float = 1e9
    parts: dict[PartitionId, FailbackPart] = {}
    letters: dict[PartitionId, int] = {}
    """Where the dead letters ended when the topic became a copy."""
    left: list[str] = []
    """Replicas in sync that still had something of the tail when the topic became a copy."""


class Deal(msgspec.Struct, kw_only=True):
    """A transaction in a mirrored topic: what it has sent, and what its writer was told."""

    writer: str
    id: int
    values: list[tuple[PartitionId, str]] = []
    asked: str = ""
    """commit or abort; nothing if it was forgotten."""
    told: str = ""


Visible = dict[PartitionId, tuple[tuple[int, str], ...]]
"""What a reader sees in the end: offsets and values."""


class Turn(msgspec.Struct, kw_only=True):
    """A cluster that was a primary once follows again. All is by partition, as its leader has it."""

    follower: str
    before: dict[PartitionId, list[Mark]]
    """What it had when it was still a primary."""
    kept: dict[PartitionId, list[Mark]] = {}
    """What it has kept aside."""
    here: dict[PartitionId, list[Mark]] = {}
    there: dict[PartitionId, list[Mark]] = {}
    """What both have when it is a copy that has everything."""
    own_here: dict[PartitionId, list[int]] = {}
    own_there: dict[PartitionId, list[int]] = {}
    """The offsets of the entries that each says were published there."""
    taken: list[str] = []
    """The partitions that take a publish then."""


class MirrorHistory(History):
    """The history of the source, and with it what its copy is."""

    target: History = field(default_factory=History)
    """What the clients of the cluster that copies saw."""
    logs: dict[PartitionId, list[LedLog]] = field(default_factory=dict)
    """Every log of the source, leader by leader."""
    copied: dict[PartitionId, list[LedLog]] = field(default_factory=dict)
    """The same of the cluster that copies."""
    gaps: list[Gap] = field(default_factory=list)
    source_starts: dict[PartitionId, int] = field(default_factory=dict)
    """Where each partition of the source begins in the end."""
    counted: dict[PartitionId, float] = field(default_factory=dict)
    """By what was shown before a promote: what was acknowledged until then counts in the copy."""
    promotions: dict[str, Promotion] = field(default_factory=dict)
    queues_copied: list[str] = field(default_factory=list)
    """The subscriptions that the copy has in the end."""
    diverged: dict[PartitionId, str] = field(default_factory=dict)
    """Partitions whose copying is said to be broken in the end, and why."""
    failbacks: dict[str, Failback] = field(default_factory=dict)
    """The topics of the source that became copies of their copies, by name."""
    followed: list[str] = field(default_factory=list)
    """The subscriptions that the other cluster has too. A copy delivers to all others."""
    kept: dict[PartitionId, LedLog] = field(default_factory=dict)
    """What each topic that was kept aside has in the end, by its partition."""
    kept_values: dict[PartitionId, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    deals: list[Deal] = field(default_factory=list)
    """Transactions of either cluster."""
    deals_visible: list[Visible] = field(default_factory=list)
    """Of the cluster that was copied first, of the other, and of what is kept aside."""
    back: MirrorHistory | None = None
    """From then on: the cluster that copied is the source, and the source copies."""
    turns: list[Turn] = field(default_factory=list)
    """When the clusters went on taking turns, after all else."""
    finished_before: list[tuple[str, PartitionId, int]] = field(default_factory=list)
    """Subscription, partition and offset of what was acknowledged before the source was a copy."""


def last_of(logs: list[LedLog]) -> LedLog:
    """The log under the newest leader."""
    return max(logs, key=lambda one: one.epoch)
