"""Publishes the staged entries of a decision: the same bytes, in the same order, exactly once.

Every message has its sequence by the decision, so the partition knows each again however often and
by whomever it is sent: to finish what another driver began is to publish it all once more. A node
that leads both partitions copies the entries itself. Where there is none, the driver carries them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from quiver.aio import cancel_and_wait
from quiver.client import AsyncClient
from quiver.errors import ProtocolError, QuiverError, SequenceGap
from quiver.protocol import Copy
from quiver.spark.write.decisions import Decision
from quiver.spark.write.transfer import Piece, Transfer, forgotten

_PIECE_ENTRIES = 16
_PARTITIONS_AT_ONCE = 4
_COPY_TIMEOUT_S = 60.0


async def publish_staged(client: AsyncClient, staging: str, decision: Decision) -> None:
    """Publish every entry of the decision; returns once all are acknowledged."""
    turns = asyncio.Semaphore(_PARTITIONS_AT_ONCE)

    async def publish(transfer: Transfer, pieces: Iterable[Piece]) -> None:
        async with turns:
            for piece in pieces:
                if not await _copy(client, staging, decision, piece):
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


async def _copy(client: AsyncClient, staging: str, decision: Decision, piece: Piece) -> bool:
    """Have the node copy a piece that leads both partitions; ``False`` if none does now."""
    cluster = client.cluster
    assert decision.staging_number is not None, "what has entries has staged them"
    request = Copy(
        topic=piece.topic,
        partition=piece.partition,
        from_topic=staging,
        from_number=decision.staging_number,
        from_partition=piece.staging_partition,
        offsets=[entry.offset for entry in piece.entries],
        producer_id=decision.producer_id,
        producer_epoch=0,
        sequence=piece.sequence,
    )
    try:
        leader = (await cluster.layout(piece.topic)).address(piece.partition)
        if (await cluster.layout(staging)).address(piece.staging_partition) != leader:
            return False
        channel = await cluster.pool.channel(leader)
        await channel.call(request, timeout_s=_COPY_TIMEOUT_S)
    except SequenceGap as gap:
        raise forgotten(piece.topic, piece.partition, gap) from gap
    except QuiverError as error:
        # A node of an earlier version breaks the connection off.
        if not error.retryable and not isinstance(error, ProtocolError):
            raise
        cluster.forget(piece.topic)
        cluster.forget(staging)
        return False
    return True
