"""What the clients of a simulated cluster saw, and what its replicas hold in the end."""

from __future__ import annotations

from typing import Literal

import msgspec

from quiver.cluster.records import NodeId, PartitionId, SessionId

Outcome = Literal["done", "failed", "unknown"]


class Send(msgspec.Struct, kw_only=True):
    """One publish: of ``value``, the ``sequence``-th of its producer in this partition."""

    producer: int
    sequence: int
    partition: PartitionId
    value: str
    invoked: float
    ended: float = -1.0
    outcome: Outcome = "unknown"
    offset: int = -1
    epoch: int = -1


class Read(msgspec.Struct, frozen=True, kw_only=True):
    reader: int
    partition: PartitionId
    invoked: float
    ended: float
    asked: int
    epoch: int
    watermark: int | None
    """Everything before it is committed, if the leader knew that much."""
    values: tuple[tuple[int, str], ...]
    """Offsets and values."""


class Led(msgspec.Struct, frozen=True, kw_only=True):
    partition: PartitionId
    epoch: int
    node: NodeId
    session: SessionId
    at: float


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """A leader gave a value its offset, confirmed or not."""

    partition: PartitionId
    epoch: int
    offset: int
    value: str
    node: NodeId


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """A leader confirmed everything before ``end``, when its own log was synced to ``durable``."""

    partition: PartitionId
    epoch: int
    node: NodeId
    end: int
    durable: int
    at: float


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription of the history, as far as the rules depend on it."""

    topics: tuple[str, ...]
    ordering: str
    guarantee: str
    max_deliveries: int


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One message that a consumer was given; those of one lease came together."""

    queue: str
    consumer: str
    partition: PartitionId
    offset: int
    value: str
    key: str
    attempt: int
    lease: int
    invoked: float
    """When the consumer asked; the message was given out between this and ``ended``."""
    ended: float
    deadline: float
    """By the clock of whoever gave it out."""
    pushed: float = -1.0
    """When its node pushed it to a consumer with a session; it may arrive much later."""
    pushed_by: str = ""


class Settlement(msgspec.Struct, kw_only=True):
    """What a consumer did with messages of one lease: ack, nack, reject or extend."""

    queue: str
    consumer: str
    kind: str
    partition: PartitionId
    lease: int
    offsets: tuple[int, ...]
    invoked: float
    ended: float = -1.0
    outcome: Outcome = "unknown"
    stale: tuple[int, ...] = ()
    """Those of which it was told that its lease had ended."""
    visibility_s: float = 0.0


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer said that it leaves: what it holds may go to others from then on."""

    queue: str
    consumer: str
    at: float


class Life(msgspec.Struct, kw_only=True):
    """One life of a consumer with a session, from its start to its end."""

    queue: str
    consumer: str
    began: float
    leaving: float = 1e9
    """When it began to end."""
    ended: float = 1e9
    how: str = ""
    """closed, killed (its process is gone), or lost (with its machine, without a word)."""
    visibility_s: float


class Start(msgspec.Struct, kw_only=True):
    """A session told a node that its program gets these messages; those of a batch went together."""

    queue: str
    consumer: str
    batch: int
    partition: PartitionId
    offset: int
    at: float
    answered: float = 1e9


class Touch(msgspec.Struct, kw_only=True):
    """A node heard from a consumer which messages it works on, and answered."""

    consumer: str
    node: NodeId
    at: float
    answered: float
    held: tuple[tuple[PartitionId, int], ...]


class Stranded(msgspec.Struct, frozen=True, kw_only=True):
    """A node keeps messages for a consumer that is gone, longer than it may."""

    queue: str
    consumer: str
    partition: PartitionId
    offsets: tuple[int, ...]
    node: NodeId
    how: str
    ended: float
    at: float


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A message among the dead letters of a subscription."""

    queue: str
    partition: PartitionId
    offset: int


class Transaction(msgspec.Struct, kw_only=True):
    """One transaction of a worker: what it took and published, and what it was told."""

    id: int
    worker: str
    began: float
    inputs: list[tuple[PartitionId, int]] = []
    """Messages of which it was told that they wait for it."""
    outputs: list[tuple[PartitionId, str]] = []
    """What it has sent, be it stored or not. It asked for a commit only if all of it was stored.

    A client that chooses the partition by itself names the topic alone."""
    asked: str = ""
    """commit or abort; nothing if it was forgotten."""
    asked_at: float = 1e9
    told: str = ""
    """committed, aborted, or the code of another error; nothing if there was no answer."""
    ended: float = -1.0
    fenced: float = 1e9
    """When another life of the worker had its name."""
    outcome: str = ""
    """What the coordinator says in the end."""


class SinkPart(msgspec.Struct, kw_only=True):
    """One attempt of a task of a sink: its part of the batch's transaction, and what it has sent."""

    number: int
    """Of the batch."""
    transaction: int
    values: list[str] = []


class SinkCommit(msgspec.Struct, kw_only=True):
    """A driver asked for the commit of a batch with these parts."""

    number: int
    parts: list[int]
    asked_at: float
    told_at: float = 1e9
    """When it was told that the batch is committed."""


class LogBegins(msgspec.Struct, frozen=True, kw_only=True):
    """A leader's readers saw where the second log of a partition begins."""

    partition: PartitionId
    epoch: int
    node: NodeId
    start: int
    at: float


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica holds after everything was healed."""

    node: NodeId
    watermark: int
    values: tuple[tuple[int, int, str], ...]
    """Offset, epoch and value."""


class History(msgspec.Struct):
    sends: list[Send] = []
    reads: list[Read] = []
    led: list[Led] = []
    appended: list[Appended] = []
    confirmed: list[Confirmed] = []
    copies: dict[PartitionId, list[Copy]] = {}
    states: dict[PartitionId, list[Copy]] = {}
    """The same of the second log, whose beginning is dropped now and then."""
    begins: list[LogBegins] = []
    queues: dict[str, Queue] = {}
    deliveries: list[Delivery] = []
    settlements: list[Settlement] = []
    departures: list[Departure] = []
    lives: list[Life] = []
    starts: list[Start] = []
    touches: list[Touch] = []
    stranded: list[Stranded] = []
    letters: list[Letter] = []
    transactions: list[Transaction] = []
    seen: list[Read] = []
    """What readers and consumers of the results of transactions saw, at any time."""
    elsewhere: list[tuple[str, PartitionId, int]] = []
    """Subscription, partition and offset of what consumers got from the cluster that this one copies."""
    delivered: list[tuple[PartitionId, int]] = []
    """Results that consumers were given."""
    sink_rows: dict[int, list[str]] = {}
    """The rows of each batch of a sink."""
    sink_parts: list[SinkPart] = []
    sink_commits: list[SinkCommit] = []
    sink_seen: list[Read] = []
    """What readers of the sink's topic saw, at any time."""
    sink_results: dict[PartitionId, tuple[tuple[int, str], ...]] = {}
    """What a reader sees of it when all is over."""
    results: dict[PartitionId, tuple[tuple[int, str], ...]] = {}
    """What a reader sees of each partition with results when all is over: offsets and values."""
    trimmed: tuple[str, ...] = ()
    """Topics of which all that is finished may be gone, and nothing else."""
    drained: bool = False
    """Whether consumers had the time to finish everything in the end."""
    drained_to: dict[PartitionId, int] = {}
    """Where each partition ended then: a publish that was long on its way may have come later."""
    is_calm: bool = False
    """Whether no process ended and no link failed: then every reply arrives."""
    clocks_s: tuple[float, float] = (0.0, 0.0)
    """How far a node's clock was behind at most (below zero) and ahead at most."""
    trouble: list[str] = []
    """What did not come to its end in time."""

    def encode(self) -> bytes:
        """Byte for byte the same for the same seed."""
        return msgspec.json.encode(self)
