"""Where a log is cut whose topic becomes a copy of its former copy."""

from __future__ import annotations

import pytest

from quiver.broker.mirror.failback import _cut
from quiver.model.ids import Offset
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.partition.transactions import id_of, open_partition, publish


@pytest.mark.parametrize(
    ("common", "cut"),
    [
        (1, 1),  # nothing is open
        (2, 1),  # the first is open
        (3, 1),  # the first and the second
        (4, 1),  # the second, and where it begins the first is open
        (5, 5),  # both have ended
        (6, 6),
        (7, 6),  # the third
        (9, 9),  # no transaction ends in what follows
    ],
)
@async_test
async def test_no_transaction_is_open_where_a_log_is_cut(common: int, cut: int) -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"before")
    await publish(partition, b"first", producer=1)
    await publish(partition, b"second", producer=2)
    await partition.close_transactions({id_of(1): True})
    await partition.close_transactions({id_of(2): True})
    await publish(partition, b"between")
    await publish(partition, b"third", producer=3)
    await partition.close_transactions({id_of(3): True})
    await publish(partition, b"after")
    await publish(partition, b"and more")
    assert await _cut(partition.log, Offset(common)) == cut
    await partition.close()


@async_test
async def test_a_log_with_a_transaction_open_at_any_time_is_cut_where_the_first_begins() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"before")
    await publish(partition, b"in", producer=1)
    for producer in range(2, 20):
        await publish(partition, b"in", producer=producer)
        await partition.close_transactions({id_of(producer - 1): True})
    end = partition.log.next_offset
    await partition.close_transactions({id_of(19): True})
    assert await _cut(partition.log, end) == 1
    await partition.close()
