"""A short-lived cache of batch slices.

Receives take an entry slice by slice, and several subscriptions often take the same slices. An entry
is decoded once for all its slices, and a slice is cut once for all subscriptions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

import pyarrow as pa
from pyroaring import BitMap64

from quiver.broker.delivery.batch_slice import batch_slice
from quiver.model.batch import StoredBatch

_KEPT_S = 0.1
_PIECES_MAX = 4
_PIECE_BYTES_MAX = 1 << 20


class _Piece(NamedTuple):
    entry: StoredBatch
    offsets: BitMap64
    batch_slice: StoredBatch


class SliceCache:
    """Slices of the entries of one partition. Used from one event loop."""

    def __init__(self) -> None:
        self._decoded: tuple[StoredBatch, pa.RecordBatch] | None = None
        self._pieces: deque[_Piece] = deque(maxlen=_PIECES_MAX)
        self._forgetting: asyncio.TimerHandle | None = None

    def of(self, entry: StoredBatch, offsets: BitMap64, *, keep: bool) -> StoredBatch:
        """The rows at these offsets, in order; ``keep`` them if others will want the same."""
        for piece in self._pieces:
            if piece.entry is entry and piece.offsets == offsets:
                return piece.batch_slice
        made = batch_slice(entry, offsets, self._rows(entry))
        if keep and made.size() <= _PIECE_BYTES_MAX:
            self._pieces.append(_Piece(entry, offsets, made))
        return made

    def _rows(self, entry: StoredBatch) -> pa.RecordBatch:
        if self._decoded is not None and self._decoded[0] is entry:
            return self._decoded[1]
        rows = entry.record_batch()
        self._decoded = entry, rows
        if self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_later(_KEPT_S, self._forget)
        return rows

    def _forget(self) -> None:
        self._forgetting = self._decoded = None
        self._pieces.clear()
