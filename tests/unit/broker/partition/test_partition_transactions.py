"""A partition with transactions: nothing is seen before its end, and nothing of what was aborted."""

from __future__ import annotations

import asyncio
import errno

import pytest

from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers import open_transactions
from quiver.broker.partition.producers.split_handover import SplitHandover, encode_handover
from quiver.errors import (
    DedupIdPending,
    LogFailed,
    OffsetOutOfRange,
    Overloaded,
    PartitionUnavailable,
    TransactionAborted,
    TransactionError,
)
from quiver.log.group_commit import LEISURE_S
from quiver.log.retention import RetentionLimits
from quiver.model.envelope import (
    is_hidden,
)
from quiver.model.ids import Microseconds, Offset
from quiver.model.topic import Acks
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test, turns
from tests.unit.broker.broker_doubles import Gate
from tests.unit.broker.partition.transactions import id_of, open_partition, publish


async def _seen(partition: Partition) -> list[bytes]:
    """What a reader sees."""
    found: list[bytes] = []
    offset = partition.committed.start_offset
    while offset < partition.committed.next_offset:
        entries = await partition.committed.read(offset)
        assert entries[0].base_offset <= offset
        for entry in entries:
            if not is_hidden(entry):
                found += entry.record_batch().column("payload").to_pylist()
            offset = entry.next_offset
    return found


# ---------------------------------------------------------------------- what readers see


@async_test
async def test_an_open_transaction_is_not_seen_nor_what_comes_after_it() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"before")
    await publish(partition, b"in", producer=7)
    await publish(partition, b"after")
    assert await _seen(partition) == [b"before"]
    assert partition.committed.next_offset == 1
    assert partition.log.next_offset == 3
    await partition.close()


@async_test
async def test_a_committed_transaction_is_seen_in_its_place() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"in", producer=7)
    await publish(partition, b"after")
    await partition.close_transactions({id_of(7): True})
    assert await _seen(partition) == [b"in", b"after"]
    assert partition.committed.next_offset == 3
    await partition.close()


@async_test
async def test_an_aborted_transaction_is_never_seen_and_entries_have_no_gaps() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"a", b"b", producer=7)
    await publish(partition, b"after")
    await publish(partition, b"c", producer=7)
    await partition.close_transactions({id_of(7): False})
    assert await _seen(partition) == [b"after"]
    entries = await partition.committed.read(Offset(0))
    assert [entry.base_offset for entry in entries] == [0, 2, 3, 4]
    assert [is_hidden(entry) for entry in entries] == [True, False, True, True]
    await partition.close()


@async_test
async def test_transactions_that_end_together_share_a_marker() -> None:
    disk = SimulatedDisk(1)
    partition = await open_partition(disk)
    for producer in range(1, 6):
        await publish(partition, b"%d" % producer, producer=producer)
    await partition.close_transactions({id_of(one): one != 3 for one in range(1, 6)})
    assert partition.log.next_offset == 5 + 2  # one for the commits, and one for the abort
    assert await _seen(partition) == [b"1", b"2", b"4", b"5"]
    await partition.close()
    partition = await open_partition(disk)
    assert await _seen(partition) == [b"1", b"2", b"4", b"5"]
    for producer in (2, 3):  # each of them has ended
        with pytest.raises(TransactionError):
            await publish(partition, b"late", producer=producer)
    await partition.close()


@async_test
async def test_a_marker_that_is_not_durable_ends_nothing() -> None:
    gate = Gate()
    partition = await open_partition(SimulatedDisk(1), gate)
    await publish(partition, b"in", producer=7)
    gate.shut()
    closing = asyncio.create_task(partition.close_transactions({id_of(7): True}))
    again = asyncio.create_task(partition.close_transactions({id_of(7): True}))
    await turns()
    assert partition.committed.next_offset == 0
    assert not closing.done()
    assert not again.done()
    gate.open()
    await closing
    await again
    assert partition.log.next_offset == 2
    assert partition.committed.next_offset == 2
    await partition.close()


@async_test
async def test_readers_see_what_is_shown_before_its_marker_is_durable() -> None:
    gate = Gate()
    partition = await open_partition(SimulatedDisk(1), gate)
    await publish(partition, b"in", producer=7)
    await publish(partition, b"not", producer=8)
    waiting = asyncio.create_task(partition.committed.wait_beyond(Offset(0), 60))
    await turns()
    gate.shut()
    durable = await partition.show_transactions({id_of(7): True, id_of(8): False})
    assert durable is not None
    assert await waiting
    assert await _seen(partition) == [b"in"]
    assert partition.committed.next_offset == partition.log.next_offset == 2
    gate.open()
    after = publish(partition, b"after")
    await durable  # with what follows it
    await after
    assert await _seen(partition) == [b"in", b"after"]
    await partition.close()


@async_test
async def test_only_those_markers_are_shown_that_are_to_be() -> None:
    gate = Gate()
    partition = await open_partition(SimulatedDisk(1), gate)
    await publish(partition, b"1", producer=7)
    await publish(partition, b"2", producer=8)
    gate.shut()
    closing = asyncio.create_task(partition.close_transactions({id_of(7): True}))
    await turns()
    await partition.show_transactions({id_of(8): True})
    assert await _seen(partition) == []
    gate.open()
    await closing
    assert await _seen(partition) == [b"1", b"2"]
    await partition.close()


@async_test
async def test_what_is_shown_and_not_durable_yet_is_durable_when_it_is_closed() -> None:
    clock = ManualClock()
    partition = await open_partition(SimulatedDisk(1), clock=clock)
    await publish(partition, b"in", producer=7)
    await partition.show_transactions({id_of(7): True})
    closing = asyncio.create_task(partition.close_transactions({id_of(7): True}))
    await turns()
    assert not closing.done()
    await clock.advance(LEISURE_S)
    await closing
    assert partition.log.next_offset == 2
    await partition.close()


@async_test
async def test_a_log_that_failed_does_not_say_that_its_transactions_have_ended() -> None:
    disk, clock = SimulatedDisk(1), ManualClock()
    partition = await open_partition(disk, clock=clock)
    await publish(partition, b"in", producer=7)
    durable = await partition.show_transactions({id_of(7): True})
    disk.fail("append", errno.EIO, times=None)
    await clock.advance(LEISURE_S)
    assert durable is not None
    with pytest.raises(LogFailed):
        await durable
    with pytest.raises(PartitionUnavailable):
        await partition.close_transactions({id_of(7): True})
    with pytest.raises(PartitionUnavailable):
        await partition.show_transactions({id_of(7): True})


@async_test
async def test_ending_what_is_not_open_here_writes_nothing() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await partition.close_transactions({id_of(7): True})
    await publish(partition, b"in", producer=7)
    await partition.close_transactions({id_of(7): True})
    await partition.close_transactions({id_of(7): True, id_of(7, 1): False})
    assert partition.log.next_offset == 2
    await partition.close()


@async_test
async def test_whoever_waits_goes_on_with_the_end_of_the_transaction() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"in", producer=7)
    waiting = asyncio.create_task(partition.committed.wait_beyond(Offset(0), 60))
    await publish(partition, b"after")
    await turns()
    assert not waiting.done()
    await partition.close_transactions({id_of(7): False})
    assert await waiting
    await partition.close()


@async_test
async def test_an_offset_behind_an_open_transaction_is_out_of_range() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"in", producer=7)
    await publish(partition, b"after")
    with pytest.raises(OffsetOutOfRange) as caught:
        await partition.committed.read(Offset(1))
    assert caught.value.details["next_offset"] == 0
    assert await partition.committed.read(Offset(0)) == []
    assert partition.committed.read_tail(Offset(0), 1000) == []
    await partition.close()


@async_test
async def test_an_offset_by_time_is_not_behind_an_open_transaction() -> None:
    clock = ManualClock()
    partition = await open_partition(SimulatedDisk(1), clock=clock)
    await publish(partition, b"in", producer=7)
    assert await partition.committed.offset_at(Microseconds(clock.time_us() + 10**9)) == 0
    await partition.close()


# ---------------------------------------------------------------------- sessions


@async_test
async def test_a_batch_that_comes_after_the_end_is_refused_and_a_repeat_is_acknowledged() -> None:
    partition = await open_partition(SimulatedDisk(1))
    first = await publish(partition, b"in", producer=7, sequence=0)
    await partition.close_transactions({id_of(7): False})
    again = await publish(partition, b"in", producer=7, sequence=0)
    assert again.base_offset == first.base_offset
    with pytest.raises(TransactionAborted):
        publish(partition, b"late", producer=7, sequence=1)
    with pytest.raises(TransactionAborted):
        publish(partition, b"late", producer=7)
    assert partition.log.next_offset == 2
    await partition.close()


@async_test
async def test_a_batch_after_a_commit_is_refused_and_nobody_is_told_of_an_abort() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"in", producer=7, sequence=0)
    await partition.close_transactions({id_of(7): True})
    with pytest.raises(TransactionError) as caught:
        publish(partition, b"late", producer=7, sequence=1)
    assert not isinstance(caught.value, TransactionAborted)
    await partition.close()


@async_test
async def test_the_next_transaction_begins_at_sequence_0_and_fences_the_one_before() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"a", producer=7, sequence=0)
    await partition.close_transactions({id_of(7): True})
    await publish(partition, b"b", producer=7, epoch=1, sequence=0)
    with pytest.raises(TransactionError):
        publish(partition, b"late", producer=7, sequence=1)
    await partition.close_transactions({id_of(7, 1): True})
    assert await _seen(partition) == [b"a", b"b"]
    await partition.close()


@async_test
async def test_without_sequences_nothing_is_a_repeat() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"a", producer=7)
    await publish(partition, b"a", producer=7)
    await partition.close_transactions({id_of(7): True})
    assert await _seen(partition) == [b"a", b"a"]
    await partition.close()


@async_test
async def test_a_batch_of_a_transaction_is_as_safe_as_its_marker_will_be() -> None:
    gate = Gate()
    partition = await open_partition(SimulatedDisk(1), gate)
    gate.shut()
    placed = publish(partition, b"in", producer=7, acks=Acks.NONE)
    await turns()
    assert not placed.done()
    gate.open()
    await placed
    await partition.close()


@async_test
async def test_a_partition_has_a_bounded_number_of_open_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_transactions, "OPEN_MAX", 2)
    partition = await open_partition(SimulatedDisk(1))
    for producer in (7, 8):
        await publish(partition, b"a", producer=producer)
    with pytest.raises(Overloaded):
        publish(partition, b"a", producer=9)
    await publish(partition, b"b", producer=7)
    await partition.close_transactions({id_of(7): True})
    await publish(partition, b"a", producer=9)
    await partition.close()


# ---------------------------------------------------------------------- restarts


@async_test
async def test_an_open_transaction_is_open_after_a_restart_and_can_be_ended_then() -> None:
    disk = SimulatedDisk(1)
    partition = await open_partition(disk)
    await publish(partition, b"a", producer=7, sequence=0)
    await publish(partition, b"b", producer=8, sequence=0)
    await partition.close_transactions({id_of(8): False})
    await partition.close()
    for _ in range(2):
        partition = await open_partition(disk)
        assert partition.open_transactions_before(1 << 60) == [id_of(7)]
        assert await _seen(partition) == []
        await partition.close()
    partition = await open_partition(disk)
    await partition.close_transactions({id_of(7): True})
    assert await _seen(partition) == [b"a"]
    with pytest.raises(TransactionError):
        publish(partition, b"late", producer=7, sequence=1)
    await partition.close()


@async_test
async def test_a_crash_between_batch_and_marker_leaves_the_transactionopen_partition() -> None:
    disk = SimulatedDisk(1)
    partition = await open_partition(disk)
    await publish(partition, b"a", producer=7)
    disk.crash()
    partition = await open_partition(disk)
    assert partition.open_transactions_before(1 << 60) == [id_of(7)]
    assert await _seen(partition) == []
    await partition.close_transactions({id_of(7): False})
    disk.crash()
    partition = await open_partition(disk)
    await publish(partition, b"b")
    assert partition.open_transactions_before(1 << 60) == []
    assert await _seen(partition) == [b"b"]
    await partition.close()


@async_test
async def test_what_is_hidden_is_known_from_a_snapshot_alone() -> None:
    disk = SimulatedDisk(1)
    partition = await open_partition(disk)
    await publish(partition, b"a", producer=7)
    await partition.close_transactions({id_of(7): False})
    await publish(partition, b"b")
    await partition._saved.save()
    await partition.close()
    partition = await open_partition(disk)
    assert await _seen(partition) == [b"b"]
    await partition.close()


# ---------------------------------------------------------------------- retention and age


@async_test
async def test_retention_keeps_messages_of_open_transactions() -> None:
    partition = await open_partition(SimulatedDisk(1))
    for payload in (b"0", b"1"):
        await publish(partition, payload)
    await publish(partition, b"in", producer=7)
    await publish(partition, b"after")
    assert await partition.retain(RetentionLimits(messages=0)) == 2
    await partition.close_transactions({id_of(7): True})
    assert await _seen(partition) == [b"in", b"after"]
    assert await partition.retain(RetentionLimits(messages=0)) == 5
    await partition.close()


@async_test
async def test_transactions_are_asked_about_once_they_are_old_enough() -> None:
    clock = ManualClock()
    partition = await open_partition(SimulatedDisk(1), clock=clock)
    await publish(partition, b"in", producer=7)
    began = clock.time_us()
    assert partition.open_transactions_before(began) == []
    assert partition.open_transactions_before(began + 1) == [id_of(7)]
    await partition.close()


# ---------------------------------------------------------------------- ids


@async_test
async def test_the_ids_of_an_aborted_transaction_are_free_again() -> None:
    disk = SimulatedDisk(1)
    partition = await open_partition(disk)
    await publish(partition, b"a", producer=7, ids=["x"])
    await partition.close_transactions({id_of(7): False})
    await publish(partition, b"b", ids=["x"])
    await publish(partition, b"c", ids=["x"])
    assert await _seen(partition) == [b"b"]
    await partition.close()
    partition = await open_partition(disk)
    await publish(partition, b"d", ids=["x"])
    assert await _seen(partition) == [b"b"]
    await partition.close()


@async_test
async def test_the_ids_of_a_committed_transaction_are_repeats() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"a", producer=7, ids=["x"])
    await partition.close_transactions({id_of(7): True})
    await publish(partition, b"b", ids=["x"])
    assert await _seen(partition) == [b"a"]
    await partition.close()


@async_test
async def test_an_id_of_an_open_transaction_is_neither_new_nor_a_repeat_for_others() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"a", producer=7, ids=["x"])
    with pytest.raises(DedupIdPending) as caught:
        publish(partition, b"b", ids=["x"])
    assert caught.value.retryable
    with pytest.raises(DedupIdPending):
        publish(partition, b"b", producer=8, ids=["x"])
    await publish(partition, b"c", producer=7, ids=["x"])
    await partition.close_transactions({id_of(7): True})
    assert await _seen(partition) == [b"a"]
    await partition.close()


@async_test
async def test_a_batch_of_which_some_ids_are_known_stays_in_its_transaction() -> None:
    partition = await open_partition(SimulatedDisk(1))
    await publish(partition, b"a", ids=["x"])
    await publish(partition, b"b", b"c", producer=7, ids=["x", "y"])
    assert await _seen(partition) == [b"a"]
    await partition.close_transactions({id_of(7): False})
    assert await _seen(partition) == [b"a"]
    await partition.close()


@async_test
async def test_a_split_hands_down_no_ids_that_were_aborted_and_waits_for_open_ones() -> None:
    clock = ManualClock()
    partition = await open_partition(SimulatedDisk(1), clock=clock)
    await publish(partition, b"a", producer=7, ids=["aborted"])
    await partition.close_transactions({id_of(7): False})
    await publish(partition, b"b", producer=8, ids=["open"])
    splitting = asyncio.create_task(partition.export_handover())
    await turns()
    assert not splitting.done()
    await partition.close_transactions({id_of(8): True})
    data = await partition.handover(await splitting)
    assert b"open" in data
    assert b"aborted" not in data
    await partition.close()


@async_test
async def test_a_split_fails_if_a_transaction_with_ids_staysopen_partition() -> None:
    clock = ManualClock()
    partition = await open_partition(SimulatedDisk(1), clock=clock)
    await publish(partition, b"a", producer=7, ids=["x"])
    splitting = asyncio.create_task(partition.export_handover())
    await turns()
    await clock.advance(60)
    with pytest.raises(PartitionUnavailable):
        await splitting
    await partition.close()


@async_test
async def test_an_id_of_the_parent_is_a_repeat_beside_transactions() -> None:
    clock = ManualClock()
    partition = await open_partition(SimulatedDisk(1), clock=clock)
    handover = SplitHandover(ids=[(clock.time_us(), ["x"])])
    await partition.import_handover(encode_handover(handover))
    await publish(partition, b"a", producer=7, ids=["y"])
    await partition.close_transactions({id_of(7): False})
    await publish(partition, b"b", producer=8, ids=["z"])
    await publish(partition, b"c", ids=["x"])
    assert partition.log.next_offset == 3
    await partition.close()
