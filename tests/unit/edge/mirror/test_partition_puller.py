"""The copy of a partition: answers overlap on their way into the log, and count once they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa

from quiver.broker.mirror.mirrors import Mirrors
from quiver.broker.mirror.partition_copy import Checked, PartitionCopy
from quiver.broker.mirror.progress import PartitionProgress
from quiver.broker.partition.producers.gaps import LogGaps
from quiver.broker.topics.catalog import TopicRecord
from quiver.edge.mirror.environment import MirrorEnvironment
from quiver.edge.mirror.link import SourceLink
from quiver.edge.mirror.partition_puller import PartitionPuller
from quiver.errors import NotLeader
from quiver.model.envelope import seal_batch, store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.schema import PAYLOAD, schema_of
from quiver.protocol import FetchLog, LogFetched
from quiver.testing.clock import ManualClock
from tests.aio import async_test, turns
from tests.unit.broker.mirror.mirror_doubles import ORIGIN, topic_record


def entry_bytes(offset: int) -> bytes:
    rows = pa.record_batch([pa.array([b"%d" % offset], pa.binary())], schema=schema_of(PAYLOAD))
    stored = store_batch(
        seal_batch(rows.serialize().to_pybytes(), 1, PAYLOAD),
        base_offset=Offset(offset),
        epoch=LeaderEpoch(0),
        append_time=Microseconds(offset),
        durable_offset=Offset(0),
    )
    return b"".join(stored.buffers())


class Source:
    """A link to a log with ``end`` entries, of which each answer has one."""

    def __init__(self, end: int, fetch_bytes_max: int) -> None:
        self.end = end
        self.fetch_bytes_max = lambda: fetch_bytes_max
        self.asked: list[FetchLog] = []

    compression = "none"

    async def fetch(self, request: FetchLog, *_: object) -> tuple[LogFetched, memoryview]:
        self.asked.append(request)
        if request.offset >= self.end:
            await asyncio.Event().wait()  # it has nothing more, and keeps the fetch waiting
        body = entry_bytes(request.offset)
        reply = LogFetched(
            start_offset=0,
            next_offset=self.end,
            read_to=request.offset + 1,
            epoch=1,
            time_us=0,
            size=len(body),
            left_bytes=0,
        )
        return reply, memoryview(body)

    async def pace(self, size: int) -> None: ...


class Storing:
    """Entries that are on their way until ``outcome`` is set."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        await asyncio.shield(self.outcome)


class Target:
    """A log that stores what it is given when the test says so."""

    def __init__(self) -> None:
        self.stored: list[Storing] = []
        self.gaps = LogGaps()
        self.begun = 0
        self.gaps = LogGaps()

    @property
    def end(self) -> Offset:
        return Offset(len(self.stored))

    async def settle(self) -> None:
        self.begun += 1

    async def last(self) -> None:
        return None

    async def append(self, entries: list[Checked], _: object) -> Storing:
        self.stored.append(Storing())
        return self.stored[-1]


class Stage:
    def __init__(self, end: int, fetch_bytes_max: int = 1 << 30) -> None:
        self.source, self.target = Source(end, fetch_bytes_max), Target()
        self.clock = ManualClock()
        self.progress = PartitionProgress("eu", "orders", 0, self.clock)
        self.puller = PartitionPuller(
            topic_record(origin=ORIGIN),
            0,
            cast(SourceLink, self.source),
            self.progress,
            MirrorEnvironment(
                mirrors=cast(Mirrors, self),
                cluster="c2",
                clock=self.clock,
                run_checks=self._check,
            ),
        )

    async def _check(self, call: Callable[[], Any]) -> Any:
        return call()

    # What the puller uses of the mirrors.

    async def partition_copy(self, record: TopicRecord, index: int) -> PartitionCopy:
        return cast(PartitionCopy, self.target)

    def current(self, record: TopicRecord) -> TopicRecord:
        return record

    async def __aenter__(self) -> Stage:
        self._task = asyncio.create_task(self.puller.run())
        await turns()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@async_test
async def test_the_next_answer_is_submitted_while_the_one_before_is_stored() -> None:
    async with Stage(end=3) as stage:
        assert len(stage.target.stored) == 3
        assert not any(one.outcome.done() for one in stage.target.stored)


@async_test
async def test_a_copy_that_is_behind_holds_a_bounded_number_of_answers() -> None:
    async with Stage(end=100) as stage:
        assert len(stage.target.stored) <= 3
        assert len(stage.source.asked) <= 6


@async_test
async def test_an_answer_counts_when_it_is_stored_and_not_before() -> None:
    async with Stage(end=2) as stage:
        first, second = stage.target.stored
        assert stage.progress.described().next_offset == 0
        assert stage.progress.lag_s >= 0
        first.outcome.set_result(None)
        await turns()
        assert stage.progress.described().next_offset == 1
        assert stage.progress.described().lag_messages == 1
        second.outcome.set_result(None)
        await turns()
        assert stage.progress.described().lag_messages == 0
        assert stage.progress.lag_s == 0


@async_test
async def test_entries_that_could_not_be_stored_end_the_fetch_that_waits_and_all_begins_again() -> (
    None
):
    async with Stage(end=1) as stage:
        (only,) = stage.target.stored
        only.outcome.set_exception(NotLeader("this node is no longer the leader"))
        await turns()
        assert "no longer the leader" in stage.progress.error
        await stage.clock.advance(20)
        await turns()
        assert stage.target.begun == 2


@async_test
async def test_what_was_stored_while_nobody_waited_for_it_is_shown() -> None:
    async with Stage(end=2) as stage:
        first, second = stage.target.stored
        first.outcome.set_exception(NotLeader("this node is no longer the leader"))
        second.outcome.set_result(None)
        await turns()
        await stage.clock.advance(20)
        await turns()
        assert stage.progress.described().next_offset == 2


@async_test
async def test_a_fetch_asks_for_no_more_than_the_partition_may() -> None:
    async with Stage(end=1, fetch_bytes_max=100) as stage:
        assert {one.bytes_max for one in stage.source.asked} == {100}
