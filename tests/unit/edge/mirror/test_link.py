"""The connections of a mirror to its source: how much may be asked for at a time."""

from __future__ import annotations

from typing import Any

import pytest

from quiver.edge.mirror.link import FETCHES_BYTES_MAX, SourceLink
from quiver.edge.mirror.reach import reach_source
from quiver.model.mirror.settings import MirrorCompression
from quiver.protocol import FetchLog, LogFetched
from quiver.testing.clock import ManualClock
from tests.aio import async_test


def link_of(partitions: int) -> SourceLink:
    clock = ManualClock()
    source = reach_source("quiver://127.0.0.1:1", "", clock)
    return SourceLink(source, None, clock, partitions=lambda: partitions)


@pytest.mark.parametrize("partitions", [1, 2, 100])
@async_test
async def test_all_partitions_together_ask_for_a_bounded_number_of_bytes(partitions: int) -> None:
    link = link_of(partitions)
    assert 0 < partitions * link.fetch_bytes_max() <= FETCHES_BYTES_MAX
    await link.close()


@async_test
async def test_a_partition_among_very_many_still_asks_for_something() -> None:
    link = link_of(10**9)
    assert link.fetch_bytes_max() == 64 << 10
    await link.close()


class FarCluster:
    """Each answer takes so long."""

    def __init__(self, clock: ManualClock, took_s: float) -> None:
        self._clock = clock
        self.took_s = took_s

    async def layout(self, _: str) -> None: ...

    async def call(self, *_: object, **__: object) -> tuple[str, tuple[LogFetched, memoryview]]:
        await self._clock.advance(self.took_s)
        reply = LogFetched(start_offset=0, next_offset=9, read_to=9, epoch=1, time_us=0, size=9)
        return "", (reply, memoryview(b"123456789"))


def far_link(clock: ManualClock, cluster: FarCluster, **given: Any) -> SourceLink:
    source: Any = cluster
    return SourceLink(source, given.pop("rate", None), clock, **given)


FETCH = FetchLog(topic="orders", partition=0, offset=0)


@async_test
async def test_answers_are_compressed_while_they_take_long_to_arrive() -> None:
    clock = ManualClock()
    cluster = FarCluster(clock, 0.1)
    link = far_link(clock, cluster, compression=MirrorCompression.AUTO)
    assert link.compression is MirrorCompression.NONE
    await link.fetch(FETCH, "orders", 0, 0.0)
    assert link.compression is MirrorCompression.ZSTD
    cluster.took_s = 0.001
    await link.fetch(FETCH, "orders", 0, 0.0)
    assert link.compression is MirrorCompression.NONE


@async_test
async def test_a_fetch_that_waited_for_messages_says_nothing_of_the_link() -> None:
    clock = ManualClock()
    link = far_link(clock, FarCluster(clock, 5.0), compression=MirrorCompression.AUTO)
    await link.fetch(FETCH, "orders", 0, 20.0)
    assert link.compression is MirrorCompression.NONE


@async_test
async def test_a_link_that_is_limited_is_used_well_and_what_was_asked_for_holds() -> None:
    clock = ManualClock()
    cluster = FarCluster(clock, 0.1)
    limited = far_link(clock, cluster, rate=1000, compression=MirrorCompression.AUTO)
    assert limited.compression is MirrorCompression.ZSTD
    for asked in (MirrorCompression.NONE, MirrorCompression.ZSTD):
        link = far_link(clock, cluster, compression=asked)
        await link.fetch(FETCH, "orders", 0, 0.0)
        assert link.compression is asked
