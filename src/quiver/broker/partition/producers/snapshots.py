"""Saves what a partition knows of its producers, so that opening it reads little of the log."""

from __future__ import annotations

import asyncio

import structlog

from quiver.aio import retrieve_exception
from quiver.broker.delivery.snapshots import Snapshots
from quiver.broker.partition.producers.in_flight import InFlight, unopened
from quiver.broker.partition.producers.state import ProducerState
from quiver.errors import QuiverError
from quiver.log.log import Log
from quiver.model.ids import Offset

PRODUCERS = "producers"
"""The file beside the segments that holds a snapshot of producer sessions."""
_SNAPSHOT_BYTES = 64 << 20
"""After this many bytes a snapshot is due: opening reads no more of the log than this."""

_WORTH_BYTES = 256 << 10
"""A stop saves no snapshot for fewer bytes than this: opening reads them in a moment."""

logger = structlog.get_logger()


class ProducerSnapshots:
    """Of one partition; one snapshot is saved at a time."""

    def __init__(
        self,
        folder: str,
        log: Log,
        producers: ProducerState,
        in_flight: InFlight,
        snapshots: Snapshots,
    ) -> None:
        self._folder = folder
        self._log = log
        self._producers = producers
        self._in_flight = in_flight
        self._snapshots = snapshots
        self.saved_to = Offset(0)
        """What was published before it is in a snapshot."""
        self._unsaved_bytes = 0
        self._soon: asyncio.Task[None] | None = None
        self._due: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    def stored(self, size: int) -> None:
        """So many bytes were published: after enough of them, save."""
        self._unsaved_bytes += size
        if self._unsaved_bytes >= _SNAPSHOT_BYTES and self._due is None:
            self._due = asyncio.create_task(self._save_due())

    @property
    def is_worth_it(self) -> bool:
        """Whether opening would take long without a new snapshot."""
        return self._unsaved_bytes >= _WORTH_BYTES

    def save_soon(self) -> asyncio.Task[None]:
        """A snapshot that begins from now on; all who ask before it begins share it."""
        if self._soon is None:
            self._soon = asyncio.create_task(self._save_soon())
            self._soon.add_done_callback(retrieve_exception)  # whoever asked may have gone
        return self._soon

    async def settle(self) -> None:
        """Wait for what is being saved."""
        if self._due is not None:
            await self._due
        if self._soon is not None:
            await asyncio.wait([self._soon])

    async def save(self) -> None:
        """Save what is known now, once everything that it speaks of is stored."""
        offset = self._log.staged_offset
        self._producers.forget_before(self._log.start_offset)
        data = self._producers.snapshot(offset)
        self._unsaved_bytes = 0
        await self._in_flight.settle()
        if self._log.failure is None and self._log.next_offset >= offset:
            await self._snapshots.save(PRODUCERS, lambda: data)
            self.saved_to = offset

    async def _save_soon(self) -> None:
        async with self._turn:
            self._soon = None
            try:
                await self.save()
            except OSError as error:
                raise unopened(self._folder, error) from error

    async def _save_due(self) -> None:
        try:
            async with self._turn:
                await self.save()
        except (QuiverError, OSError) as error:
            logger.warning("producer snapshot failed", folder=self._folder, error=str(error))
        finally:
            self._due = None
