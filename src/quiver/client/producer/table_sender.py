"""Puts the rows of a table into a producer's partitions, as batches that are encoded already.

Rows are checked as the node will check them, and rows that a named producer has stored in an earlier
run are left out. Between two batches, others have their turn on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, TypeVar

import pyarrow as pa

from quiver.client.producer.accumulator import BatchLimits, Rerouted
from quiver.client.producer.buffer_budget import BufferFull
from quiver.client.producer.delivery import BatchPromise
from quiver.client.producer.sender import Sender
from quiver.client.producer.table import (
    Piece,
    TableDelivery,
    checked_table,
    numbers_in,
    partitions_of,
    pieces,
)
from quiver.client.producer.validation import MessageValidator
from quiver.client.transport.cluster import TopicLayout
from quiver.errors import InvalidRequest
from quiver.model.builder import encode_record_batch
from quiver.model.guard import check_batch

T = TypeVar("T")
_ROWS_AT_A_TIME = 100_000
_ROWS_AT_ONCE = 5_000
"""How many rows may keep the event loop until their partitions are known."""


class WhenBudget(Protocol):
    """Calls something again when there is room for so many bytes, until it succeeds."""

    def __call__(self, size: int, offer: Callable[[], T], /) -> Awaitable[T]: ...


class TableSender:
    def __init__(
        self,
        sender: Sender,
        validator: MessageValidator,
        limits: BatchLimits,
        when_budget: WhenBudget,
    ) -> None:
        self._sender = sender
        self._validator = validator
        self._limits = limits
        self._when_budget = when_budget

    async def send(self, data: pa.RecordBatch | pa.Table) -> TableDelivery:
        table = checked_table(data)
        delivery, first = TableDelivery(table.num_rows), 0
        for rows in table.to_batches(max_chunksize=_ROWS_AT_A_TIME):
            routing = self._sender.routing
            places = await self._places(rows, routing)
            wanted = self._wanted(numbers_in(rows), places)
            for piece in self._pieces(rows, places, first):
                fresh = self._fresh(piece, wanted, first, delivery)
                if len(fresh.rows):
                    await self._send_piece(fresh, routing, delivery)
                if self._sender.name is None:  # numbered rows must not be overtaken
                    await asyncio.sleep(0)
            first += len(rows)
        return delivery

    async def _places(self, rows: pa.RecordBatch, routing: TopicLayout) -> list[int | None] | None:
        """The partition of each row; of many rows it is found in a thread."""
        if len(rows) < _ROWS_AT_ONCE or self._sender.name is not None:
            return partitions_of(rows, routing.router)
        return await asyncio.to_thread(partitions_of, rows, routing.router)

    def _pieces(
        self, rows: pa.RecordBatch, places: list[int | None] | None, first: int
    ) -> Iterator[Piece]:
        return pieces(
            rows,
            places,
            first,
            bytes_max=self._limits.batch_bytes,
            count_max=self._limits.batch_count,
        )

    async def _send_piece(
        self, piece: Piece, routing: TopicLayout, delivery: TableDelivery
    ) -> None:
        """Send the rows of a piece, by another layout if there is one by now."""
        try:
            delivery.add(await self._send_rows(piece, routing), piece.numbers)
        except Rerouted:
            routing = self._sender.routing
            places = partitions_of(piece.rows, routing.router)
            for part in self._pieces(piece.rows, places, 0):
                numbers = [piece.numbers[row] for row in part.numbers]
                again = Piece(part.partition, part.rows, numbers)
                await self._send_piece(again, routing, delivery)

    def _wanted(
        self, numbers: list[int | None] | None, places: list[int | None] | None
    ) -> list[bool] | None:
        """Which rows are not stored yet; ``None`` if that is all of them."""
        if numbers is None:
            return None
        if self._sender.name is None:
            raise InvalidRequest("a sequence needs a named producer: producer(…, name='…')")
        if any(number is None for number in numbers):
            raise InvalidRequest("some rows have no sequence: give all rows one, or none")
        return self._validator.take_numbers(numbers, places)  # type: ignore[arg-type]

    def _fresh(
        self, piece: Piece, wanted: list[bool] | None, first: int, delivery: TableDelivery
    ) -> Piece:
        """The piece without rows that are stored already, which are delivered with that."""
        if wanted is None or all(wanted[number - first] for number in piece.numbers):
            return piece
        assert piece.partition is not None, "numbered rows have their partition"
        repeat = self._validator.already_stored(piece.partition).promise
        kept: list[int] = []
        for row, number in enumerate(piece.numbers):
            if wanted[number - first]:
                kept.append(row)
            else:
                delivery.add(repeat, [number])
        return Piece(
            piece.partition,
            piece.rows.take(pa.array(kept, pa.int64())),
            [piece.numbers[row] for row in kept],
        )

    async def _send_rows(self, piece: Piece, routing: TopicLayout) -> BatchPromise:
        sender, rows = self._sender, piece.rows
        encoded = encode_record_batch(rows, sender.accumulator.compression)
        check_batch(encoded, sender.layout.info.settings.message_bytes_max)
        last: int | None = None
        if "sequence" in rows.schema.names:
            last = rows.column("sequence")[-1].as_py()

        def offer() -> BatchPromise:
            return sender.accumulator.add_encoded(
                piece.partition,
                encoded,
                routing=None if piece.partition is None else routing,
                user_sequence=last,
            )

        try:
            return offer()
        except BufferFull as full:
            return await self._when_budget(full.size, offer)
