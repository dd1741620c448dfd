"""Entries of a source on their way into the local log."""

from __future__ import annotations

import asyncio

import pytest

from quiver.broker.mirror.partition_copy import Checked, PartitionCopy
from quiver.broker.partition.partition import Partition
from quiver.errors import CorruptLog
from quiver.log.settings import LogSettings
from quiver.model.envelope import store_batch
from quiver.model.guard import check_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import Gate, batch_of


def checked(offset: int) -> Checked:
    batch = batch_of(b"%d" % offset)
    entry = store_batch(
        batch,
        base_offset=Offset(offset),
        epoch=LeaderEpoch(0),
        append_time=Microseconds(0),
        durable_offset=Offset(0),
    )
    return entry, batch, check_batch(batch, 1 << 20).rows


@async_test
async def test_nothing_more_is_stored_once_the_copy_is_promoted_in_the_middle_of_an_answer() -> (
    None
):
    partition = await Partition.open(
        "/data/topic@1/0",
        LogSettings(),
        disk=SimulatedDisk(1),
        clock=ManualClock(),
        run_blocking=Gate(),
    )
    is_promoted = False

    def require_wanted() -> None:
        if is_promoted:
            raise CorruptLog("the topic is mirrored no more")

    copy = PartitionCopy(partition)
    appending = asyncio.create_task(copy.append([checked(i) for i in range(100)], require_wanted))
    await asyncio.sleep(0)
    is_promoted = True
    with pytest.raises(CorruptLog):
        await appending
    assert 0 < copy.end < 100
    await partition.close()
