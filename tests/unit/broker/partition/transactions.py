"""A partition that is published to in transactions, for tests."""

from __future__ import annotations

import asyncio

from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers.in_flight import Placed
from quiver.log.disk.disk import Disk
from quiver.log.settings import LogSettings
from quiver.model.builder import BatchBuilder
from quiver.model.envelope import TRANSACTIONAL, UNSTAMPED, ProducerStamp, seal_batch
from quiver.model.guard import check_batch
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.model.topic import Acks
from quiver.model.transaction import TransactionId, transaction_id
from quiver.testing.clock import ManualClock
from tests.unit.broker.broker_doubles import Gate

FOLDER = "/data/topic@1/0"
WINDOW_US = 60_000_000


async def open_partition(
    disk: Disk,
    gate: Gate | None = None,
    clock: ManualClock | None = None,
) -> Partition:
    return await Partition.open(
        FOLDER,
        LogSettings(),
        disk=disk,
        clock=clock or ManualClock(),
        run_blocking=gate or Gate(),
        dedup_window_us=WINDOW_US,
    )


def id_of(producer: int, epoch: int = 0) -> TransactionId:
    return transaction_id(ProducerId(producer), ProducerEpoch(epoch))


def publish(
    partition: Partition,
    *payloads: bytes,
    producer: int = 0,
    epoch: int = 0,
    sequence: int = -1,
    ids: list[str] | None = None,
    acks: Acks = Acks.QUORUM,
) -> asyncio.Future[Placed]:
    """Publish in the transaction of a producer and epoch; without a producer in none."""
    builder = BatchBuilder()
    for place, payload in enumerate(payloads):
        builder.add(payload, dedup_id=None if ids is None else ids[place])
    batch = builder.build(stamp=UNSTAMPED)
    if producer:
        stamp = ProducerStamp(ProducerId(producer), ProducerEpoch(epoch), Sequence(sequence))
        batch = seal_batch(batch.body, batch.count, batch.columns, stamp, TRANSACTIONAL)
    return partition.publish(batch, check_batch(batch, 1 << 20).rows, acks)
