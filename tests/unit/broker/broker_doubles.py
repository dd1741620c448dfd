"""A broker for tests: in memory but for its metadata, with a disk that can be held up or broken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from quiver.broker.broker import Broker, BrokerEnvironment
from quiver.broker.maintenance import MaintenanceLimits
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.store import MetadataStore
from quiver.log.disk.disk import Disk
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import BatchBuilder
from quiver.model.clock import Clock
from quiver.model.envelope import UNSTAMPED, ProducerStamp
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.testing.clock import ManualClock

T = TypeVar("T")


class Gate:
    """Runs disk work on the event loop, once it is let through."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = 0
        self.calls = 0

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def __call__(self, call: Callable[[], T], /) -> T:
        self.calls += 1
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1
        return call()


@asynccontextmanager
async def open_broker(
    folder: Path,
    disk: Disk,
    *,
    clock: Clock | None = None,
    gate: Gate | None = None,
    checks: Gate | None = None,
    wrap: Callable[[MetadataStore], MetadataStore] = lambda store: store,
    **limits: Any,
) -> AsyncIterator[Broker]:
    """A broker over the disk, with the metadata of the folder; closed as a node closes it."""
    clock = clock or ManualClock()
    disk.make_folder("/data")
    store = await SqliteStore.open(str(folder / "metadata.db"), clock)
    limits.setdefault("free_bytes_min", 0)
    environment = BrokerEnvironment(
        folder="/data",
        store=wrap(store),
        disk=disk,
        clock=clock,
        run_blocking=gate or Gate(),
        run_checks=checks,
        limits=MaintenanceLimits(**limits),
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        broker = await Broker.open(environment)
        stack.push_async_callback(broker.close)
        if gate is not None:
            stack.callback(gate.open)
        yield broker


async def until(reached: Callable[[], bool], seconds_max: float = 50.0) -> None:
    """Let others have their turns until something has come to pass."""
    deadline = time.monotonic() + seconds_max
    while not reached():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.0005)


def stamp(producer: int, sequence: int, epoch: int = 0) -> ProducerStamp:
    return ProducerStamp(ProducerId(producer), ProducerEpoch(epoch), Sequence(sequence))


def batch_of(
    *payloads: bytes, stamped: ProducerStamp = UNSTAMPED, sequence: int | None = None
) -> UnstoredBatch:
    """A batch; ``sequence`` is the producer's own number of its last message."""
    builder = BatchBuilder()
    for payload in payloads:
        builder.add(payload, sequence=sequence)
    return builder.build(stamp=stamped)


def data_of(batch: UnstoredBatch) -> bytes:
    return batch.head + bytes(batch.body)


async def publish(broker: Broker, topic: str, batch: UnstoredBatch, partition: int = 0) -> Any:
    """Publish as a session does, and wait until it is acknowledged."""
    offer = broker.publisher.offer(topic, data_of(batch))
    await broker.publisher.check(offer)
    placed, _ = broker.publisher.store(await broker.publisher.partition(topic, partition), offer)
    return await placed


async def payloads(broker: Broker, topic: str, partition: int = 0) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        read = await broker.reader.fetch(topic, partition, offset, bytes_max=1 << 20)
        if not read.entries:
            return found
        for entry in read.entries:
            found += entry.record_batch().column("payload").to_pylist()
            offset = entry.next_offset
