"""Publishes messages with ids: those whose ids were stored within the dedup window are left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.aio import forward_outcome
from quiver.broker.partition.producers.dedup import Seen, ids_of
from quiver.broker.partition.producers.in_flight import (
    UNKNOWN_OFFSET,
    InFlight,
    Placed,
    StoredOnce,
    unavailable,
)
from quiver.broker.partition.producers.snapshots import ProducerSnapshots
from quiver.broker.partition.producers.state import ProducerState
from quiver.log.log import Log
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.builder import encode_record_batch
from quiver.model.clock import Clock
from quiver.model.envelope import ProducerStamp
from quiver.model.ids import NO_PRODUCER, Microseconds, Sequence
from quiver.model.topic import Acks
from quiver.model.transaction import transaction_id

Stage = Callable[[UnstoredBatch, pa.RecordBatch, Acks], tuple[StoredBatch, asyncio.Future[Placed]]]
"""Gives a batch its offset; the future is done when it is acknowledged."""


class DedupPublisher:
    """Of one partition."""

    def __init__(
        self,
        producers: ProducerState,
        in_flight: InFlight,
        saved: ProducerSnapshots,
        *,
        log: Log,
        clock: Clock,
        stage: Stage,
    ) -> None:
        self._producers = producers
        self._window = producers.window
        self._in_flight = in_flight
        self._saved = saved
        self._log = log
        self._clock = clock
        self._stage = stage

    def publish(
        self, batch: UnstoredBatch, rows: pa.RecordBatch, acks: Acks, *, is_repeat: bool
    ) -> asyncio.Future[Placed]:
        """Store those messages of a batch whose ids are new; ``is_repeat``: none of them is."""
        self._window.expire(self._clock.time_us())
        ids = ids_of(rows, batch.columns)
        repeated = list(range(len(ids))) if is_repeat else self._repeated(batch, ids)
        if not repeated:
            entry, placed = self._stage(batch, rows, acks)
            self._window.record(ids, entry.base_offset, entry.append_time)
            return placed
        if len(repeated) == len(ids):
            if not is_repeat:
                self._producers.sessions.skip(batch)
            return self._repeats_only(ids, must_save=batch.producer_id != NO_PRODUCER)
        left = np.delete(np.arange(len(ids)), repeated)
        new = rows.take(pa.array(left))
        # What is left counts as the end of the batch, so that the producer's next one follows it.
        sequence = batch.sequence + (len(repeated) if batch.sequence >= 0 else 0)
        stamp = ProducerStamp(batch.producer_id, batch.producer_epoch, Sequence(sequence))
        rest = encode_record_batch(new, stamp=stamp, flags=batch.flags)
        entry, placed = self._stage(rest, new, acks)
        self._window.record([ids[row] for row in left], entry.base_offset, entry.append_time)
        once = StoredOnce(entry.base_offset, entry.append_time, self._places(ids, repeated))
        return self._then(placed, once)

    def _repeated(self, batch: UnstoredBatch, ids: list[str | None]) -> list[int]:
        """The rows whose ids were stored before. ``DedupIdPending`` if another transaction has one."""
        transactions = self._producers.transactions
        if not len(transactions):
            return self._window.repeats(ids, transactions.hidden)
        own = transaction_id(batch.producer_id, batch.producer_epoch) if batch.flags else None
        return self._window.repeats(
            ids, transactions.hidden, pending=lambda: transactions.offsets(but=own)
        )

    def _repeats_only(self, ids: list[str | None], *, must_save: bool) -> asyncio.Future[Placed]:
        """Done when the originals are stored and, of a producer, that it has sent these again."""
        places = self._places(ids, range(len(ids)))
        once = StoredOnce(UNKNOWN_OFFSET, Microseconds(0), places)
        return self._then(asyncio.ensure_future(self._settled(must_save)), once)

    async def _settled(self, must_save: bool) -> None:
        await self._in_flight.settle()
        if must_save:
            await asyncio.shield(self._saved.save_soon())
        if self._log.failure is not None:
            raise unavailable(self._log.failure)

    def _places(self, ids: list[str | None], rows: Iterable[int]) -> dict[int, Seen]:
        """Where the messages in these rows are, as far as that is still known."""
        asked = list(rows)
        found = self._window.find_all([ids[row] for row in asked])
        return {row: seen for row, seen in zip(asked, found, strict=True) if seen is not None}

    def _then(self, done: asyncio.Future[Any], once: StoredOnce) -> asyncio.Future[Placed]:
        """``once``, when it is done."""
        placed: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        done.add_done_callback(partial(forward_outcome, placed, once))
        return placed
