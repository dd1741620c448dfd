"""A batch on its way: from its first message until it is acknowledged or has failed.

It is filled under the accumulator's lock, encoded once by whichever thread closed it, and from then
on belongs to the event loop, which keeps here how sending it went.
"""

from __future__ import annotations

from quiver.client.producer.delivery import BatchPromise
from quiver.client.transport.channel import Channel
from quiver.errors import QuiverError
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import BatchBuilder


class PendingBatch:
    """``size`` is what it takes of the buffer, about the bytes that its messages have."""

    __slots__ = (
        "attempts",
        "builder",
        "channel",
        "count",
        "encoded",
        "failure",
        "is_claimed",
        "is_in_doubt",
        "is_in_flight",
        "is_routed",
        "last_error",
        "opened",
        "payloads",
        "pinned",
        "promise",
        "request_id",
        "sequence",
        "size",
        "user_sequence",
    )

    def __init__(self, promise: BatchPromise, opened: float) -> None:
        self.promise = promise
        self.opened = opened
        builder = BatchBuilder()
        self.builder: BatchBuilder | None = builder
        self.payloads = builder.payloads
        self.encoded: UnstoredBatch | None = None
        self.failure: QuiverError | None = None
        """Why it can never be sent."""
        self.count = 0
        """How many messages it has; counted when it is closed."""
        self.size = 0
        self.is_claimed = False
        self.is_routed = False
        """Something in it is in this partition because of its key, its id or its number."""
        self.pinned: set[int] = set()
        """Places of messages that are in this partition because the user said so."""
        self.user_sequence: int | None = None
        """The highest of the numbers that the user gave its messages."""
        self.sequence: int | None = None
        self.attempts = 0
        self.is_in_flight = False
        self.is_in_doubt = False
        """It was sent and may be stored, though nobody said so."""
        self.last_error: QuiverError | None = None
        self.channel: Channel | None = None
        """Over which it was sent last, if it was, with ``request_id``."""
        self.request_id = 0
