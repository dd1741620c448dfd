"""Publishes the staged entries of a decision: the same bytes, in the same order, exactly once.

Every message has its sequence by the decision, so the partition knows each again however often and
by whomever it is sent: to finish what another driver began is to publish it all once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from quiver.aio import cancel_and_wait
from quiver.client import AsyncClient
from quiver.spark.write.staged.decisions import Decision
from quiver.spark.write.staged.transfer import Piece, Transfer

_PIECE_ENTRIES = 16
_PARTITIONS_AT_ONCE = 4


async def publish_staged(client: AsyncClient, staging: str, decision: Decision) -> None:
    """Publish every entry of the decision; returns once all are acknowledged."""
    turns = asyncio.Semaphore(_PARTITIONS_AT_ONCE)

    async def publish(transfer: Transfer, pieces: Iterable[Piece]) -> None:
        async with turns:
            for piece in pieces:
                await transfer.carry(client, staging, piece)

    tasks = [
        asyncio.create_task(publish(Transfer(client.cluster, *place, decision.producer_id), pieces))
        for place, pieces in pieces_of(decision).items()
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(*tasks)


def pieces_of(decision: Decision) -> dict[tuple[str, int], list[Piece]]:
    """By partition, what is published there, in order. The same decision gives the same pieces."""
    sequences = {(one.topic, one.partition): one.sequence for one in decision.targets}
    pieces: dict[tuple[str, int], list[Piece]] = {}
    for entry in sorted(decision.entries, key=lambda one: (one.staging_partition, one.offset)):
        place = entry.topic, entry.partition
        mine = pieces.setdefault(place, [])
        last = mine[-1] if mine else None
        if (
            last is None
            or last.staging_partition != entry.staging_partition
            or len(last.entries) == _PIECE_ENTRIES
        ):
            last = Piece(*place, entry.staging_partition, sequences[place], [])
            mine.append(last)
        last.entries.append(entry)
        sequences[place] += entry.count
    return pieces
