"""The log of one coordinator: its partition of ``__transactions``, each record a message.

Records that are written in the same moment share one entry, and one sync. Once a write has failed the log is
of no use: what is in memory is ahead of it, and the partition has to be read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import structlog

from quiver.aio import call_later, retrieve_exception
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers.in_flight import Placed, unavailable
from quiver.broker.transactions.records import (
    AnyTransactionRecord,
    Checkpoint,
    decode_record,
    encode_record,
)
from quiver.errors import LogClosed, LogFailed, QuiverError
from quiver.log.retention import RetentionLimits
from quiver.model.builder import BatchBuilder
from quiver.model.clock import Clock, Timer
from quiver.model.ids import Offset

CHECKPOINT_BYTES = 8 << 20
"""After this many bytes of records a checkpoint is due: opening reads no more of them than this."""
_READ_BYTES = 4 << 20
_LATER_S = 0.5
"""How long records that nobody waits for may wait for others, to share their entry."""

logger = structlog.get_logger()


class TransactionLog:
    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock
        self.failure: QuiverError | None = None
        self._records: list[AnyTransactionRecord] = []
        self._stored: asyncio.Future[None] | None = None
        """Of the records that are not with the partition yet."""
        self._newest: asyncio.Future[None] | None = None
        self._is_due = False
        self._later: Timer | None = None
        self._bytes_since = self._checkpoint_bytes = 0

    async def replay(self) -> AsyncIterator[AnyTransactionRecord]:
        """Every record there is, in order. What is before the last checkpoint may be missing."""
        log = self.partition.log
        offset = log.start_offset
        while offset < log.next_offset:
            for entry in await log.read(offset, _READ_BYTES):
                offset = entry.next_offset
                for payload in entry.record_batch().column("payload").to_pylist():
                    record = decode_record(payload)
                    self._count(record, len(payload))
                    yield record

    # ------------------------------------------------------------------ writing

    def write(self, records: Iterable[AnyTransactionRecord]) -> asyncio.Future[None]:
        """Write records together with all that are written in this moment; done when they are durable."""
        stored = self._add(records)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        return stored

    def write_later(self, records: Iterable[AnyTransactionRecord]) -> None:
        """Write records that nobody waits for, with the next that somebody waits for."""
        self._add(records)
        if self._later is None and not self._is_due:
            self._later = call_later(self._clock, _LATER_S, self._flush)

    def underway(self) -> asyncio.Future[None] | None:
        """Done when everything that was written so far is durable; ``None`` if it is."""
        if self._stored is not None:
            self._flush()
        if self.failure is None and (self._newest is None or self._newest.done()):
            return None
        return self._newest

    def _add(self, records: Iterable[AnyTransactionRecord]) -> asyncio.Future[None]:
        self._records += records
        if self._stored is None:
            self._stored = asyncio.get_running_loop().create_future()
            self._stored.add_done_callback(retrieve_exception)
        return self._stored

    def _flush(self) -> None:
        self._is_due = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        records, self._records = self._records, []
        stored, self._stored = self._stored, None
        if stored is None:
            return
        self._newest = stored
        if self.failure is not None:
            stored.set_exception(self.failure)
            return
        try:
            placed = self._submit(records)
        except QuiverError as error:
            self._fail(error)
            stored.set_exception(error)
            return
        placed.add_done_callback(lambda done: self._ended(done, stored))

    def _submit(self, records: list[AnyTransactionRecord]) -> asyncio.Future[Placed]:
        builder = BatchBuilder()
        for record in records:
            payload = encode_record(record)
            self._count(record, len(payload))
            builder.add(payload)
        return self.partition.publish(builder.build(), None)

    def _ended(self, done: asyncio.Future[Placed], stored: asyncio.Future[None]) -> None:
        if done.cancelled():
            error: BaseException | None = LogClosed("the log of transactions is closed")
        else:
            error = done.exception()
        if isinstance(error, LogFailed | LogClosed):
            error = unavailable(error)
        if error is None:
            stored.set_result(None)
            return
        self._fail(error)
        stored.set_exception(error)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = (
                error if isinstance(error, QuiverError) else unavailable(LogFailed(str(error)))
            )

    # ------------------------------------------------------------------ checkpoints

    def _count(self, record: AnyTransactionRecord, size: int) -> None:
        if isinstance(record, Checkpoint):
            self._checkpoint_bytes, self._bytes_since = size, 0
        else:
            self._bytes_since += size

    @property
    def is_checkpoint_due(self) -> bool:
        """A large checkpoint is written less often."""
        return self._bytes_since >= max(CHECKPOINT_BYTES, 2 * self._checkpoint_bytes)

    async def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write the whole state, and drop what is before it."""
        self._flush()
        log = self.partition.log
        offset = log.staged_offset
        stored = self.write([checkpoint])
        self._flush()
        await asyncio.shield(stored)
        await self.drop_before(Offset(offset))

    async def drop_before(self, offset: Offset) -> None:
        try:
            await self.partition.retain(RetentionLimits(before=offset).capped(offset))
        except (QuiverError, OSError) as error:  # it is dropped after the next checkpoint
            logger.warning(
                "records before a checkpoint remain", folder=self.partition.folder, error=str(error)
            )

    def close(self) -> None:
        """Write what is left; nothing more is taken."""
        self._flush()
        self._fail(LogClosed("the log of transactions is closed"))
