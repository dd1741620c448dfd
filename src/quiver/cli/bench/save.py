"""The measurement that ``quiver plan`` reads: a node's rates for messages of several sizes.

Messages are sent and received in Arrow batches, so that the node is the bottleneck and not this
program; only ``send_per_s`` and the latency use single messages. Each run is bounded in time and in
bytes, and its topic is deleted.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import typer

from quiver.cli.bench.result import quantiles_ms
from quiver.cli.bench.run import Advance, BenchOptions, bench_latency, bench_publish, bench_read
from quiver.cli.plan.measurement import Measurement, Point
from quiver.cli.support.output import progress
from quiver.cli.support.session import connected_async
from quiver.errors import QuiverError
from quiver.protocol import TopicInfo
from quiver.version import __version__

if TYPE_CHECKING:
    from quiver import AsyncClient

SIZES = (100, 1_000, 10_000)
RUN_BYTES_MAX = 256 << 20
"""What a run stores at most."""
LATENCY_RATE = 500.0
SYNCS = 50
_BATCH_BYTES = 256 << 10
_RECEIVE_MAX = 10_000
_DISK_CHUNK = bytes(1 << 20)


def take_measurement(context: typer.Context, folder: str, seconds: float) -> Measurement:
    """Measure the node that answers, and the disk that ``folder`` is on, for ``seconds`` each time."""

    async def carry_out() -> Measurement:
        async with connected_async(context, context.params["url"]) as client:
            with progress("measuring", len(SIZES) * 3 + 3) as advance:
                return await _measured(client, folder, seconds, advance)

    return asyncio.run(carry_out())


async def _measured(
    client: AsyncClient, folder: str, seconds: float, advance: Advance
) -> Measurement:
    points = [await _point(client, size, seconds, advance) for size in SIZES]
    async with _topic(client) as topic:
        sent = await bench_publish(client, topic, _options(SIZES[1], seconds), _ignored)
        advance(1)
    async with _topic(client) as topic:
        options = _options(SIZES[1], seconds, rate=LATENCY_RATE)
        latency = await bench_latency(client, topic, options, _ignored)
        advance(1)
    sync_ms, written = await asyncio.to_thread(_disk, folder, seconds)
    advance(1)
    return Measurement(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        software=f"quiver {__version__}",
        cores=os.cpu_count() or 1,
        points=points,
        send_per_s=sent.rate,
        latency_ms=latency.latencies_ms,
        sync_ms=sync_ms,
        disk_write_bytes_per_s=written,
    )


async def _point(client: AsyncClient, size: int, seconds: float, advance: Advance) -> Point:
    async with _topic(client) as topic:
        count, publish_per_s = await _publish(client, topic.name, size, seconds)
        (partition,) = (await client.describe_topic(topic.name)).partitions
        advance(1)
        deliver_per_s = await _deliver(client, topic.name, count, seconds)
        advance(1)
        options = _options(size, seconds, messages=count)
        read = await bench_read(client, topic, options, _ignored)
        advance(1)
    return Point(
        size_bytes=size,
        publish_per_s=publish_per_s,
        deliver_per_s=deliver_per_s,
        read_per_s=read.rate,
        stored_bytes=(partition.bytes or 0) / count,
    )


async def _publish(client: AsyncClient, topic: str, size: int, seconds: float) -> tuple[int, float]:
    """How many messages were stored, and how many a second."""
    rows = max(1, _BATCH_BYTES // size)
    content = os.urandom(rows * size)
    payloads = [content[at : at + size] for at in range(0, rows * size, size)]
    batch = pa.record_batch({"payload": pa.array(payloads, pa.binary())})
    count, began = 0, time.perf_counter()
    async with client.producer(topic) as producer:
        while count * size < RUN_BYTES_MAX and time.perf_counter() - began < seconds:
            await producer.send_arrow(batch)
            count += rows
        await producer.flush()
        return count, count / (time.perf_counter() - began)


async def _deliver(client: AsyncClient, topic: str, count: int, seconds: float) -> float:
    """How many messages a second one consumer receives and acknowledges."""
    await client.create_subscription(topic, [topic], start="earliest")
    try:
        received, began = 0, time.perf_counter()
        while received < count and time.perf_counter() - began < seconds:
            batch = await client.receive_batch(topic, _RECEIVE_MAX, wait=seconds)
            await client.ack(topic, batch)
            received += batch.num_rows
        if not received:
            raise QuiverError(f"nothing was delivered within {seconds:g} s; give more --seconds")
        return received / (time.perf_counter() - began)
    finally:
        await client.delete_subscription(topic)


def _disk(folder: str, seconds: float) -> tuple[dict[str, float], float]:
    """How long a sync takes, and how many bytes a second can be written."""
    with tempfile.TemporaryFile(dir=folder) as file:
        times, descriptor = [], file.fileno()
        for _ in range(SYNCS):
            os.write(descriptor, _DISK_CHUNK[:4096])
            began = time.perf_counter()
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - began)
        written, began = 0, time.perf_counter()
        while written < RUN_BYTES_MAX and (not written or time.perf_counter() - began < seconds):
            for _ in range(16):
                written += os.write(descriptor, _DISK_CHUNK)
            os.fdatasync(descriptor)
        return quantiles_ms(times), written / (time.perf_counter() - began)


@asynccontextmanager
async def _topic(client: AsyncClient) -> AsyncIterator[TopicInfo]:
    topic = await client.create_topic(f"bench-{os.urandom(6).hex()}")
    try:
        yield topic
    finally:
        await client.delete_topic(topic.name)


def _options(
    size: int, seconds: float, *, rate: float | None = None, messages: int | None = None
) -> BenchOptions:
    if messages is None:
        messages = RUN_BYTES_MAX // size if rate is None else max(1, int(rate * seconds))
    return BenchOptions(
        messages=messages,
        size=size,
        batch=10_000,
        rate=rate,
        topic=None,
        partitions=1,
        acks=None,
        # Whatever is sent gets time to arrive, on a machine that is busy too.
        seconds=seconds if rate is None else seconds + 30,
    )


def _ignored(_: int) -> None:
    """Progress of a run within the measurement."""
