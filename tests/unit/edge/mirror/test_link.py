"""The connections of a mirror to its source: how much may be asked for at a time."""

from __future__ import annotations

import pytest

from quiver.edge.mirror.link import FETCHES_BYTES_MAX, SourceLink
from quiver.edge.mirror.reach import reach_source
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
