"""The benchmarks: publish, read, and the latency from a publish to a reader.

Each run is bounded in messages and in time, and its result says how many messages it did. Without
``--topic`` a run creates its topic and deletes it.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import typer

from quiver.aio import cancel_and_wait
from quiver.cli.bench.result import BenchResult, quantiles_ms
from quiver.cli.support.output import progress
from quiver.cli.support.session import connected_async
from quiver.errors import QuiverError
from quiver.protocol import TopicInfo

if TYPE_CHECKING:
    from quiver import AsyncClient, AsyncProducer, Delivery

Advance = Callable[[int], None]
STEP = 256
"""Messages sent in one go, after which other work gets its turn. The first of each is timed."""
TICK_S = 0.001
"""At a given rate, how far apart the goes are at least."""
STAMP = struct.Struct("<16sq")
_PROBE_S = 0.05
_ARRIVE_S = 30.0
"""What was sent within the time of a run may still arrive so much later, from a busy machine."""


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    messages: int
    size: int
    batch: int
    rate: float | None
    """Messages per second; ``None`` is as fast as it goes."""
    topic: str | None
    """An existing topic; ``None`` makes one for the run."""
    partitions: int
    acks: str | None
    seconds: float


Run = Callable[["AsyncClient", TopicInfo, BenchOptions, Advance], Awaitable[BenchResult]]


def measure(
    context: typer.Context, options: BenchOptions, run: Run, prepare: Run | None = None
) -> BenchResult:
    """Carry out a benchmark, after what has to be there first."""

    async def carry_out() -> BenchResult:
        async with (
            connected_async(context, context.params["url"]) as client,
            _bench_topic(client, options) as topic,
        ):
            if prepare is not None:
                with progress("preparing", options.messages) as advance:
                    await prepare(client, topic, options, advance)
            with progress("measuring", options.messages) as advance:
                return await run(client, topic, options, advance)

    return asyncio.run(carry_out())


@asynccontextmanager
async def _bench_topic(client: AsyncClient, options: BenchOptions) -> AsyncIterator[TopicInfo]:
    """The topic of a run."""
    if options.topic is not None:
        yield await client.describe_topic(options.topic)
        return
    topic = await client.create_topic(f"bench-{os.urandom(6).hex()}", partitions=options.partitions)
    try:
        yield topic
    finally:
        await client.delete_topic(topic.name)


async def bench_publish(
    client: AsyncClient, topic: TopicInfo, options: BenchOptions, advance: Advance
) -> BenchResult:
    """Send as fast as the buffer allows, or at the rate asked for, and wait for every message."""
    payload = os.urandom(options.size)
    latencies_s = array("d")
    started = time.perf_counter()
    sent = 0
    async with _producer(client, topic, options) as producer:
        async for count in _paced(options, advance):
            sent_at = time.perf_counter()
            first = await producer.send(payload)
            first.add_done_callback(_timed(latencies_s, sent_at))
            for _ in range(count - 1):
                await producer.send(payload)
            sent += count
        await producer.flush()
    return _result("publish", topic, options, sent, started, latencies_s)


async def bench_read(
    client: AsyncClient, topic: TopicInfo, options: BenchOptions, advance: Advance
) -> BenchResult:
    """Read what is there, from the beginning, as record batches."""
    started = time.perf_counter()
    deadline, count = started + options.seconds, 0
    async with client.read(topic.name, start="earliest") as reader:
        async for batch in reader:
            advance(batch.num_rows)
            count += batch.num_rows
            if count >= options.messages or time.perf_counter() > deadline:
                break
    return _result("read", topic, options, count, started, array("d"))


async def bench_latency(
    client: AsyncClient, topic: TopicInfo, options: BenchOptions, advance: Advance
) -> BenchResult:
    """Publish at a steady rate while a reader follows; time each message on its way."""
    run, latencies_s = os.urandom(16), array("d")
    ready, done = asyncio.Event(), asyncio.Event()

    async def follow() -> None:
        async with client.read(topic.name, start="latest", follow=True) as reader:
            async for message in reader.messages():
                now_ns = time.perf_counter_ns()
                if len(message.payload) < STAMP.size or not message.payload.startswith(run):
                    continue
                _, sent_ns = STAMP.unpack_from(message.payload)
                ready.set()
                if sent_ns:
                    latencies_s.append((now_ns - sent_ns) / 1e9)
                    if len(latencies_s) == options.messages:
                        done.set()

    padding = os.urandom(options.size - STAMP.size)
    following = asyncio.create_task(follow())
    try:
        async with (
            asyncio.timeout(options.seconds),
            _producer(client, topic, options) as producer,
        ):
            while not ready.is_set():  # the reader has begun once it sees a message without a time
                await (await producer.send(STAMP.pack(run, 0) + padding))
                await _either(ready, following, _PROBE_S)
            started = time.perf_counter()
            async for count in _paced(options, advance):
                for _ in range(count):
                    await producer.send(STAMP.pack(run, time.perf_counter_ns()) + padding)
            await producer.flush()
            await _either(done, following, options.seconds)
    except TimeoutError:
        if not ready.is_set():
            raise QuiverError(
                f"the reader received nothing within {options.seconds:g} s; give more --seconds"
            ) from None
    finally:
        await cancel_and_wait(following)
    return _result("latency", topic, options, len(latencies_s), started, latencies_s)


def _producer(client: AsyncClient, topic: TopicInfo, options: BenchOptions) -> AsyncProducer:
    return client.producer(
        topic.name,
        acks=options.acks,
        batch_count=options.batch,
        delivery_timeout=options.seconds + _ARRIVE_S,
    )


async def _paced(options: BenchOptions, advance: Advance) -> AsyncIterator[int]:
    """How many messages to send now, again and again, until all are sent or the time is up."""
    step = STEP if options.rate is None else min(STEP, max(1, int(options.rate * TICK_S)))
    started, sent = time.perf_counter(), 0
    while sent < options.messages:
        due_s = 0.0 if options.rate is None else started + sent / options.rate - time.perf_counter()
        await asyncio.sleep(max(0.0, due_s))  # others get their turn even if it is due already
        if time.perf_counter() - started > options.seconds:
            return
        count = min(step, options.messages - sent)
        yield count
        sent += count
        advance(count)


def _timed(latencies_s: array[float], sent_at: float) -> Callable[[Delivery], None]:
    def done(_: Delivery) -> None:
        latencies_s.append(time.perf_counter() - sent_at)

    return done


async def _either(event: asyncio.Event, task: asyncio.Task[None], timeout_s: float) -> None:
    """Wait for the event, but no longer than the task lives or the time allows."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([waiting, task], timeout=timeout_s, return_when="FIRST_COMPLETED")
    finally:
        waiting.cancel()
    if task.done():
        task.result()


def _result(
    what: str,
    topic: TopicInfo,
    options: BenchOptions,
    count: int,
    started: float,
    latencies_s: array[float],
) -> BenchResult:
    return BenchResult(
        what=what,
        topic=topic.name,
        partitions=len(topic.partitions),
        asked=options.messages,
        messages=min(count, options.messages),
        size_bytes=options.size,
        seconds=time.perf_counter() - started,
        latencies_ms=quantiles_ms(latencies_s),
    )
