"""What a partition knows of its producers: their sessions, the ids they used, and their transactions.

Also of a copied log where it has gaps, in place of what its source had no more.

It is a fold over the entries of the log. ``rebuild`` makes it from a snapshot and the entries since.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from quiver import arrow_compute as pc
from quiver.broker.partition.producers.dedup import DedupWindow, ids_of
from quiver.broker.partition.producers.gaps import LogGaps, NotedGap
from quiver.broker.partition.producers.open_transactions import OpenTransaction, OpenTransactions
from quiver.broker.partition.producers.sessions import ProducerSession, ProducerSessions
from quiver.broker.partition.producers.split_handover import SplitHandover
from quiver.log.log import LogReader
from quiver.model.batch import StoredBatch
from quiver.model.ids import Offset, ProducerId
from quiver.model.schema import COLUMN_BIT

_READ_BYTES = 4 << 20
_SEQUENCE = COLUMN_BIT["sequence"]
DEDUP_ID = COLUMN_BIT["dedup_id"]


class ProducerSnapshot(msgspec.Struct, frozen=True):
    """The producers as they were when everything below ``offset`` had been recorded."""

    offset: Offset
    sessions: dict[ProducerId, ProducerSession]
    ids_from: Offset | None = None
    """Where the oldest batch was whose messages had ids that were remembered."""
    transactions: list[OpenTransaction] = []
    """Those that were open."""
    hidden: bytes = b""
    """The bitmap of offsets that no reader sees."""
    gaps: list[tuple[Offset, Offset]] = []
    gap_messages: int = 0
    gaps_noted: list[NotedGap] = []


class ProducerState:
    """Of one partition. ``record`` takes every entry, in order, as soon as it is staged."""

    def __init__(
        self,
        window: DedupWindow,
        sessions: ProducerSessions,
        transactions: OpenTransactions,
        gaps: LogGaps,
    ) -> None:
        self.window = window
        self.sessions = sessions
        self.transactions = transactions
        self.gaps = gaps

    def record(self, entry: StoredBatch, rows: pa.RecordBatch | None) -> None:
        """Note an entry; the ids of its messages are noted apart."""
        self.sessions.record(entry, _last_user_sequence(entry, rows))
        if entry.flags:
            self.transactions.record(entry)
            self.gaps.record(entry)

    def forget_before(self, start: Offset) -> None:
        """The log begins at ``start``: whether something before it is hidden matters no more.

        It does as long as an id is remembered of it.
        """
        ids_from = self.window.first_offset
        self.transactions.forget_before(start if ids_from is None else min(start, ids_from))

    def snapshot(self, offset: Offset) -> bytes:
        """Everything up to ``offset``, which is the end of what was recorded."""
        hidden = self.transactions.hidden
        if hidden:
            hidden.run_optimize()
        return _encoder.encode(
            ProducerSnapshot(
                offset,
                self.sessions.by_producer,
                self.window.first_offset,
                self.transactions.opened,
                hidden.serialize() if hidden else b"",
                self.gaps.ranges,
                self.gaps.messages,
                self.gaps.noted,
            )
        )

    @classmethod
    async def rebuild(
        cls,
        log: LogReader,
        snapshot: ProducerSnapshot,
        window: DedupWindow,
        handover: SplitHandover,
    ) -> tuple[ProducerState, int]:
        """From the snapshot and the entries stored since; ids from the entries alone.

        Also how many bytes were stored since.
        """
        for time, ids in handover.ids:
            window.import_handover(ids, time)
        hidden = BitMap64.deserialize(snapshot.hidden) if snapshot.hidden else None
        producers = cls(
            window,
            ProducerSessions(snapshot.sessions),
            OpenTransactions(snapshot.transactions, hidden),
            LogGaps(snapshot.gaps, snapshot.gap_messages, snapshot.gaps_noted),
        )
        ids_from = snapshot.offset if snapshot.ids_from is None else snapshot.ids_from
        size = 0
        async for entry, entry_ids in ids_in(log, min(ids_from, snapshot.offset)):
            if entry_ids:
                window.expire(entry.append_time)
                window.record(entry_ids, entry.base_offset, entry.append_time)
            if entry.base_offset >= snapshot.offset:
                size += entry.size()
                producers.record(entry, entry.record_batch() if entry.columns & _SEQUENCE else None)
        producers.import_producers(handover)
        return producers, size

    def import_producers(self, handover: SplitHandover) -> None:
        for producer, session in handover.producers.items():
            self.sessions.import_handover(producer, session.epoch, session.last_user_sequence)


def decode_snapshot(data: bytes) -> ProducerSnapshot | None:
    """The snapshot in these bytes; ``None`` if they are damaged: the log knows it all too."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return None


async def ids_in(
    log: LogReader, offset: Offset
) -> AsyncIterator[tuple[StoredBatch, list[str | None]]]:
    """The entries from ``offset`` on, each with the ids of its messages if it has any.

    Those of excluded messages count too, as far as they are stored: a repeat of one is a repeat.
    """
    offset = max(offset, log.stored_from)
    while offset < log.next_offset:
        for entry in await log.read(offset, _READ_BYTES, stored=True):
            has_ids = entry.columns & DEDUP_ID
            yield entry, ids_of(entry.record_batch(), entry.columns) if has_ids else []
            offset = entry.next_offset


def _last_user_sequence(entry: StoredBatch, rows: pa.RecordBatch | None) -> int | None:
    if not entry.columns & _SEQUENCE or rows is None or entry.flags:
        return None
    last: int | None = pc.max(rows.column("sequence")).as_py()
    return last


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ProducerSnapshot] = msgspec.msgpack.Decoder(ProducerSnapshot)
