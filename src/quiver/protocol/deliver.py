"""Deliveries: receive messages under a lease, and settle them."""

from __future__ import annotations

import msgspec

from quiver.protocol.base import Reply, Request


class Receive(Request, tag="receive"):
    """Lease messages. Waits up to ``wait_ms`` while there are none."""

    subscription: str
    messages_max: int = 100
    bytes_max: int = 4 << 20
    wait_ms: int = 0
    visibility_ms: int | None = None
    """How long the lease lasts; the subscription's visibility if not given."""
    consumer: str = ""
    partitions: list[str] | None = None
    """Of a group: what the consumer reads, as ``topic/partition``. Nodes tell it each other."""


class AwaitReady(Request, tag="await_ready"):
    """Wait up to ``wait_ms`` until the node has messages of the subscription. Leases nothing.

    A node that passes a receive on waits like this at the leaders of the partitions.
    """

    subscription: str
    wait_ms: int = 0
    consumer: str = ""
    partitions: list[str] | None = None
    """As in ``Receive``."""


class Ready(Reply, tag="ready"):
    is_ready: bool
    """Whether a receive may get something. Another consumer may be sooner."""


class PortionInfo(msgspec.Struct, kw_only=True):
    """Messages of one partition, under one lease."""

    topic: str
    topic_number: int
    partition: int
    lease: bytes
    """What settles these messages, together with their offsets."""
    deadline_us: int
    offsets: bytes
    """Which messages these are: a 64-bit roaring bitmap, portable format. In order, they are the
    rows of the portion's entries, one after the other."""
    deliveries: dict[int, bytes] = {}
    """How often, this time included, where more than once: bitmaps by count."""
    size: int
    """How many bytes of the body are this portion's entries."""


class Received(Reply, tag="received"):
    """The body is the entries of each portion, one after the other."""

    portions: list[PortionInfo]
    by_priority: bool = False
    """Whether higher priorities go first. Not where the subscription keeps an order."""
    leader: str = ""
    """The node that has these messages, if it is another one than was asked: ask it the next time."""


class Settlement(msgspec.Struct, array_like=True):
    """Messages of one lease: the lease, and a bitmap of offsets."""

    lease: bytes
    offsets: bytes


class Ack(Request, tag="ack"):
    """Finish messages, durably."""

    subscription: str
    settlements: list[Settlement]


class Nack(Request, tag="nack"):
    """Give messages back to be delivered again, after the back-off or ``delay_ms``."""

    subscription: str
    settlements: list[Settlement]
    delay_ms: int | None = None
    error: str | None = None


class Reject(Request, tag="reject"):
    """Make messages dead letters now, however often they were delivered."""

    subscription: str
    settlements: list[Settlement]
    error: str | None = None


class Extend(Request, tag="extend"):
    """Hold messages for ``visibility_ms`` from now on."""

    subscription: str
    settlements: list[Settlement]
    visibility_ms: int


class Return(Request, tag="return"):
    """Messages that nobody has looked at: they are ready again at once, as if never delivered."""

    subscription: str
    settlements: list[Settlement]


class Consume(Request, tag="consume"):
    """Open a session: the node pushes messages as ``received``, with the id of this request.

    The first answer is ``consuming``. It comes again when other nodes lead the partitions. The session
    ends with ``failed`` or the connection.
    """

    subscription: str
    consumer: str = ""
    window: int = 1
    """How many messages may be pushed before the consumer starts them."""
    bytes_max: int = 16 << 20
    visibility_ms: int | None = None
    """How long the consumer may be silent before its messages go to others; the subscription's
    visibility if not given."""
    partitions: list[str] | None = None
    """Of a group in a cluster: what the consumer reads, as ``topic/partition``."""


class Consuming(Reply, tag="consuming"):
    """The session is open, or the leaders have changed."""

    leaders: list[str] = []
    """The other nodes that lead partitions of the subscription."""
    leads: bool = True
    """Whether this node leads some."""
    ordering: str = "none"
    guarantee: str = "at-least-once"
    visibility_ms: int = 30_000
    session_timeout_ms: int = 10_000
    max_processing_ms: int = 0
    """For how long the consumer's leases are extended; 0 from a node that does not say."""


class Progress(Request, tag="progress"):
    """What a consumer with a session starts, works on or returns. Without anything: it is there.

    A message is delivered, and its lease begins, when it is started. The answer ``settled`` says what
    the program may not have. It comes when the start is as durable as the guarantee asks.
    """

    session: int
    """The id of the request that opened the session."""
    started: list[Settlement] = []
    held: list[Settlement] = []
    """What the consumer works on, from whichever node: its leases are extended where that is due."""
    released: list[Settlement] = []
    """What was pushed and will not be started."""
    window: int | None = None
    """From now on; as before if not given."""
    partitions: list[str] | None = None
    is_over: bool = False
    """Whether the consumer closes the session."""
    is_silent: bool = False
    """With ``is_over``: the program ended without a word. Who passes messages on to it says so."""
    is_moved: bool = False
    """With ``is_over``: the consumer goes on with what it has, in sessions at other nodes."""
    answer: bool = True
    """Whether the consumer waits for the answer."""


class Settled(Reply, tag="settled"):
    """``stale`` were not settled: their lease had ended, and they may be with another consumer."""

    stale: list[Settlement] = []
