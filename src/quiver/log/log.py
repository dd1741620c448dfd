"""What a partition needs of a log, whether this node keeps it alone or with others.

An append is acknowledged when it is as safe as was asked for, and readers see what is acknowledged.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from quiver.aio import Signal
from quiver.errors import LogFailed
from quiver.log.delivery_index import DeliverySpan
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.ids import Microseconds, Offset
from quiver.model.topic import Acks


class LogReader(Protocol):
    """The side of a log that readers use."""

    @property
    def growth(self) -> Signal:
        """Woken whenever there is more to read."""

    @property
    def start_offset(self) -> Offset:
        """The first offset that can be read."""

    @property
    def stored_from(self) -> Offset:
        """The first offset on disk: what is before the start is excluded, and goes with its segment."""

    @property
    def next_offset(self) -> Offset:
        """Everything before it can be read."""

    @property
    def end_offset(self) -> Offset:
        """The offset after everything acknowledged, also what waits for the end of a transaction."""

    @property
    def size(self) -> int: ...

    @property
    def failure(self) -> LogFailed | None: ...

    def read_tail(self, offset: Offset, bytes_max: int) -> list[StoredBatch] | None: ...

    async def read(
        self, offset: Offset, bytes_max: int = 1 << 20, *, stored: bool = False
    ) -> list[StoredBatch]:
        """Entries from the one that holds ``offset`` on; ``stored``: also of what is excluded."""

    async def delivery_span(self, offset: Offset) -> DeliverySpan:
        """What decides the delivery of messages from ``offset`` on, to the end of a segment at most."""

    async def wait_beyond(self, offset: Offset, timeout_s: float) -> bool: ...

    async def offset_at(self, time: Microseconds) -> Offset: ...

    async def size_from(self, offset: Offset) -> int:
        """Bytes from the entry that holds ``offset`` on, and a little before it."""

    async def retain(self, limits: RetentionLimits, *, dry_run: bool = False) -> Offset:
        """Drop what the limits allow, unless this is a dry run; where the log begins then."""


class Log(LogReader, Protocol):
    @property
    def is_alone(self) -> bool:
        """Whether no other node keeps it too: whoever opens it next finds what this one has stored."""

    @property
    def staged_offset(self) -> Offset:
        """The offset after everything submitted, acknowledged or not."""

    @property
    def has_room(self) -> bool: ...

    async def wait_for_room(self) -> None: ...

    def require_current(self) -> None:
        """An error if another node may have appended what is not known here."""

    def submit(
        self,
        batch: UnstoredBatch,
        *,
        acks: Acks = Acks.QUORUM,
        append_time: Microseconds | None = None,
        at_leisure: bool = False,
    ) -> tuple[StoredBatch, asyncio.Future[StoredBatch]]:
        """Give a batch its offset now; the future is done when it is acknowledged.

        ``append_time`` is for a batch that was stored before, in another log. ``at_leisure``: nobody waits
        for it, and it may be stored with the next one.
        """

    def reconfigure(self, settings: LogSettings) -> None: ...

    async def close(self) -> None: ...
