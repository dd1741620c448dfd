"""What an operator does to a subscription: seek, peek, purge, cancel, redrive, and look up messages."""

from __future__ import annotations

import msgspec

from quiver.protocol.base import Reply, Request


class Place(msgspec.Struct, array_like=True):
    """An offset of one partition."""

    topic: str
    partition: int
    offset: int


class Seek(Request, tag="seek"):
    """Begin again somewhere else: what is before counts as acknowledged, what is after is delivered.

    Receipts given out before are good no more.
    """

    subscription: str
    at: str | None = None
    """``earliest`` or ``latest``."""
    time_us: int | None = None
    """Instead: at the first message appended at or after this time."""
    offset: int | None = None
    """Instead: at this offset in every partition."""
    places: list[Place] | None = None
    """Instead: at an offset in each of these partitions; the others stay as they are."""


class Peek(Request, tag="peek"):
    """Look at pending messages; nothing changes."""

    subscription: str
    messages_max: int = 100
    bytes_max: int = 4 << 20
    states: list[str] = msgspec.field(default_factory=lambda: ["ready", "delayed", "leased"])


class PeekedBatchInfo(msgspec.Struct, kw_only=True):
    """Pending messages of one partition. Bitmaps and entries are as in a portion."""

    topic: str
    topic_number: int
    partition: int
    offsets: bytes
    states: dict[str, bytes]
    deliveries: dict[int, bytes] = {}
    """How often they were delivered so far, where at all."""
    size: int


class Peeked(Reply, tag="peeked"):
    """The body is the entries of each batch, one after the other."""

    batches: list[PeekedBatchInfo] = msgspec.field(name="glances")


class Purge(Request, tag="purge"):
    """Finish what is pending, whoever has it; only what matches the filter if there is one."""

    subscription: str
    filter: str | None = None


class Cancel(Request, tag="cancel"):
    """Let scheduled messages never be delivered, for every subscription of their topic."""

    topic: str
    ids: list[str]


class Counted(Reply, tag="counted"):
    """How many messages that was."""

    count: int


class Redrive(Request, tag="redrive"):
    """Send some dead letters of a subscription back; ask again until none is left."""

    subscription: str
    """The one that failed with them, or the queue of its dead letters."""
    to: str | None = None
    """A topic to send them to, instead of each to its own."""
    filter: str | None = None
    dry_run: bool = False
    """Count all that match, and send none."""
    messages_max: int = 1000


class Redriven(Reply, tag="redriven"):
    count: int
    by_topic: dict[str, int]


class FindMessage(Request, tag="find_message"):
    """A message by its id, and where it stands with each subscription."""

    topic: str
    message_id: str


class Status(msgspec.Struct, kw_only=True):
    """Where a message stands with one subscription."""

    subscription: str
    state: str
    """``pending``, ``delayed`` or ``leased``, or how it ended: ``acknowledged``, ``dead-lettered``,
    ``expired``, ``cancelled``, ``purged``, ``skipped`` (by a seek), ``filtered``,
    ``dropped-unread`` (by retention), ``before-subscription``, or ``finished`` if that is no longer
    known."""
    deliveries: int = 0
    consumer: str | None = None
    """Who holds it, or who acknowledged it or failed with it last."""
    until_us: int | None = None
    """When the delay or the lease ends."""
    at_us: int | None = None
    """When it ended."""


class MessageFound(Reply, tag="message_found"):
    """The body is an entry with the message, or nothing if retention has removed it."""

    partition: int
    offset: int
    topic_number: int
    statuses: list[Status]


class ReadState(Request, tag="read_state"):
    """Where every pending message of a subscription stands, at one moment."""

    subscription: str


class PartitionDeliveries(msgspec.Struct, kw_only=True):
    """The pending messages of one partition, as bitmaps that follow each other in the body."""

    topic: str
    topic_number: int
    partition: int
    next_offset: int
    """Everything before was looked at; what comes after is not in here."""
    states: dict[str, int]
    """By state (``ready``, ``delayed``, ``leased``, ``dead``): the size of the bitmap of offsets."""
    deliveries: dict[int, int]
    """By how often they were delivered, where at all: the size of the bitmap of offsets."""


class StateRead(Reply, tag="state_read"):
    """The body is the bitmaps: of each partition first those of the states, then the others."""

    partitions: list[PartitionDeliveries]
