"""What a source says to those that have more than it has confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from quiver.broker.mirror.source import MirrorSource
from quiver.broker.partition.partition import Partition
from quiver.errors import MirrorDiverged, NotEnoughReplicas
from quiver.log.settings import LogSettings
from quiver.model.ids import Offset
from quiver.model.mirror.entry_mark import EntryMark, mark_of
from quiver.protocol import FetchLog
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import Gate, batch_of
from tests.unit.broker.mirror.mirror_doubles import topic_record


@asynccontextmanager
async def source() -> AsyncIterator[tuple[MirrorSource, Partition, Gate]]:
    gate, clock = Gate(), ManualClock()
    partition = await Partition.open(
        "/data/orders@1/0",
        LogSettings(),
        disk=SimulatedDisk(1),
        clock=clock,
        run_blocking=gate,
    )

    async def get(*_: Any) -> Partition:
        return partition

    topics: Any = SimpleNamespace(get=lambda _: topic_record())
    placement = SimpleNamespace(term=lambda *_: 3)
    partitions: Any = SimpleNamespace(get=get, placement=placement)
    nothing: Any = None
    yield (
        MirrorSource(topics, nothing, partitions, nothing, clock, run_checks=gate),
        partition,
        gate,
    )
    await partition.close()


def fetch(offset: int, last: EntryMark | None = None) -> FetchLog:
    return FetchLog(topic="orders", partition=0, offset=Offset(offset), last=last)


@async_test
async def test_whether_it_has_an_entry_is_not_said_before_that_is_confirmed() -> None:
    async with source() as (one, partition, gate):
        gate.shut()
        entry, stored = partition.log.submit(batch_of(b"not confirmed yet"))
        with pytest.raises(NotEnoughReplicas):
            await one.wait_for_data(fetch(1, mark_of(entry)))
        gate.open()
        await asyncio.wait([stored])
        await one.wait_for_data(fetch(1, mark_of(entry)))


@async_test
async def test_a_copy_that_has_more_than_is_written_here_has_diverged() -> None:
    async with source() as (one, partition, _):
        entry, stored = partition.log.submit(batch_of(b"the only one"))
        await stored
        with pytest.raises(MirrorDiverged) as raised:
            await one.wait_for_data(fetch(2, mark_of(entry)))
        assert raised.value.details["next_offset"] == 1
