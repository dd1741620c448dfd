"""Messages into batches: order, bounds, and many threads at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from quiver.client.producer.accumulator import Accumulator, BatchLimits
from quiver.client.producer.buffer_budget import BufferFull
from quiver.client.producer.pending_batch import PendingBatch
from quiver.errors import InvalidBatch, InvalidRequest
from quiver.model.builder import BatchBuilder
from quiver.model.schema import schema_of
from quiver.model.topic import Compression
from tests.unit.client.scripted_node import HastyClock


def accumulator(
    partitions: int = 1,
    wake: Callable[[], None] = lambda: None,
    clock: HastyClock | None = None,
    **limits: int,
) -> Accumulator:
    return Accumulator(
        "orders",
        range(partitions),
        BatchLimits(**limits),
        compression=Compression.NONE,
        clock=clock or HastyClock(),
        wake=wake,
    )


def payloads(batch: PendingBatch) -> list[bytes]:
    assert batch.encoded is not None
    rows = pa.ipc.read_record_batch(
        pa.py_buffer(batch.encoded.body), schema_of(batch.encoded.columns)
    )
    column: list[bytes] = rows.column("payload").to_pylist()
    return column


def drain(gathered: Accumulator, partition: int = 0) -> list[PendingBatch]:
    batches = []
    while (batch := gathered.next_batch(partition, is_idle=True)) is not None:
        batches.append(batch)
    return batches


class TestBatches:
    def test_places_count_up_within_a_batch(self) -> None:
        gathered = accumulator(batch_count=3)
        deliveries = [gathered.add(b"%d" % number, 1) for number in range(5)]
        assert [delivery.place for delivery in deliveries] == [0, 1, 2, 0, 1]
        assert [payloads(batch) for batch in drain(gathered)] == [
            [b"0", b"1", b"2"],
            [b"3", b"4"],
        ]

    def test_a_message_that_does_not_fit_opens_the_next_batch(self) -> None:
        gathered = accumulator(batch_bytes=100)
        gathered.add(b"a", 60)
        gathered.add(b"b", 60)
        assert [payloads(batch) for batch in drain(gathered)] == [[b"a"], [b"b"]]

    def test_without_a_partition_the_message_that_did_not_fit_begins_the_next_partition(
        self,
    ) -> None:
        gathered = accumulator(partitions=3, batch_bytes=100)
        woken: dict[int, list[int]] = {}
        for number in range(12):
            gathered.add(b"%d" % number, 30)
            woken[number] = sorted(gathered.take_woken())
        assert {number: each for number, each in woken.items() if each} == {
            0: [0],
            3: [0, 1],
            6: [1, 2],
            9: [0, 2],
        }
        found = [[payloads(batch) for batch in drain(gathered, place)] for place in range(3)]
        assert found == [
            [[b"0", b"1", b"2"], [b"9", b"10", b"11"]],
            [[b"3", b"4", b"5"]],
            [[b"6", b"7", b"8"]],
        ]

    def test_a_full_batch_is_encoded_by_the_thread_that_filled_it(self) -> None:
        gathered = accumulator(batch_count=2)
        gathered.add(b"a", 1)
        gathered.add(b"b", 1)
        batch = gathered.next_batch(0, is_idle=False)
        assert batch is not None
        assert batch.encoded is not None
        assert batch.builder is None

    def test_an_open_batch_waits_for_its_linger_while_others_are_under_way(self) -> None:
        clock = HastyClock()
        gathered = accumulator(clock=clock)
        gathered.add(b"a", 1)
        assert gathered.next_batch(0, is_idle=False) is None
        clock.now += 0.005
        assert gathered.next_batch(0, is_idle=False) is not None

    def test_many_plain_messages_are_added_as_if_one_by_one(self) -> None:
        gathered, other = accumulator(), accumulator()
        messages = [b"%d" % number for number in range(20)]
        gathered.add(b"first", 5)
        many = gathered.add_plain(messages, 40)
        assert many is not None
        one_by_one = [other.add(b"first", 5), *(other.add(each, 2) for each in messages)]
        assert [each.place for each in many] == [each.place for each in one_by_one[1:]]
        assert gathered.budget.used == other.budget.used
        assert [payloads(batch) for batch in drain(gathered)] == [
            payloads(batch) for batch in drain(other)
        ]

    @pytest.mark.parametrize("limits", [{"batch_count": 20}, {"batch_bytes": 40}])
    def test_many_plain_messages_that_fill_a_batch_are_not_added_together(
        self, limits: dict[str, int]
    ) -> None:
        gathered = accumulator(**limits)
        assert gathered.add_plain([b"x"] * 20, 40) is None
        assert gathered.add_plain([b"x"] * 19, 39) is not None
        assert gathered.add_plain([b"x"], 1) is None
        assert len(drain(gathered)) == 1

    def test_many_plain_messages_wait_for_room_one_by_one(self) -> None:
        gathered = accumulator(buffer_bytes=100)
        assert gathered.add_plain([b"x"] * 2, 101) is None
        assert gathered.budget.used == 0

    def test_once_everything_was_taken_the_next_message_wakes_though_others_are_under_way(
        self,
    ) -> None:
        gathered = accumulator(batch_count=2)
        gathered.add(b"a", 1)
        gathered.add(b"b", 1)
        assert gathered.next_batch(0, is_idle=False) is not None
        assert gathered.next_batch(0, is_idle=False) is None
        gathered.take_woken()
        gathered.add(b"c", 1)
        assert gathered.take_woken() == [0]

    def test_columns_arrive_beside_payloads(self) -> None:
        gathered = accumulator()
        gathered.add(b"a", 1)
        gathered.add(b"b", 1, 0, b"key", {"priority": 3})
        (batch,) = drain(gathered)
        assert batch.pinned == {1}
        assert batch.count == 2

    def test_an_interrupt_inside_a_message_spoils_the_batch_and_not_the_next(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gathered = accumulator()
        gathered.add(b"a", 1)
        with monkeypatch.context() as patch:

            def interrupted(*_: object, **__: object) -> int:
                raise KeyboardInterrupt

            patch.setattr(BatchBuilder, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                gathered.add(b"b", 1, 0, b"key")
        (batch,) = drain(gathered)
        assert isinstance(batch.failure, InvalidBatch)
        gathered.add(b"c", 1)
        assert [payloads(batch) for batch in drain(gathered)] == [[b"c"]]

    def test_an_interrupt_while_encoding_leaves_it_to_the_event_loop(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gathered = accumulator(batch_count=1)
        with monkeypatch.context() as patch:

            def interrupted(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(BatchBuilder, "build", interrupted)
            with pytest.raises(KeyboardInterrupt):
                gathered.add(b"a", 1)
        assert gathered.take_woken() == [0]
        assert [payloads(batch) for batch in drain(gathered)] == [[b"a"]]


class TestWaking:
    def test_the_first_message_wakes_and_the_next_do_not(self) -> None:
        calls: list[None] = []
        gathered = accumulator(wake=lambda: calls.append(None))
        for _ in range(10):
            gathered.add(b"x", 1)
        assert len(calls) == 1
        assert gathered.take_woken() == [0]

    def test_whoever_closes_all_batches_sends_them_and_nobody_is_woken(self) -> None:
        calls: list[None] = []
        gathered = accumulator(wake=lambda: calls.append(None))
        gathered.add(b"x", 1)
        assert [batch.count for batch in gathered.close_all()] == [1]
        assert gathered.take_woken() == []
        assert len(drain(gathered)) == 1
        gathered.add(b"y", 1)
        assert len(calls) == 2
        assert gathered.take_woken() == [0]

    def test_a_full_batch_wakes_though_its_partition_is_busy(self) -> None:
        calls: list[None] = []
        gathered = accumulator(wake=lambda: calls.append(None), batch_count=3)
        gathered.add(b"x", 1)
        gathered.take_woken()
        gathered.add(b"x", 1)
        assert len(calls) == 1
        gathered.add(b"x", 1)
        assert len(calls) == 2

    def test_a_partition_that_ran_dry_wakes_again(self) -> None:
        calls: list[None] = []
        gathered = accumulator(wake=lambda: calls.append(None))
        gathered.add(b"x", 1)
        gathered.take_woken()
        assert len(drain(gathered)) == 1
        gathered.add(b"y", 1)
        assert len(calls) == 2

    def test_one_call_serves_all_partitions_until_it_is_answered(self) -> None:
        calls: list[None] = []
        gathered = accumulator(partitions=5, wake=lambda: calls.append(None))
        for partition in range(5):
            gathered.add(b"x", 1, partition)
        assert len(calls) == 1
        assert sorted(gathered.take_woken()) == [0, 1, 2, 3, 4]


class TestBounds:
    def test_no_more_is_taken_than_the_buffer_holds(self) -> None:
        gathered = accumulator(buffer_bytes=100)
        gathered.add(b"x", 60)
        with pytest.raises(BufferFull) as full:
            gathered.add(b"y", 60)
        assert full.value.size == 60
        (batch,) = drain(gathered)
        gathered.release(batch)
        gathered.add(b"y", 60)

    def test_waiting_for_room_ends_when_there_is_some(self) -> None:
        gathered = accumulator(buffer_bytes=100)
        gathered.add(b"x", 60)
        assert not gathered.budget.wait(60, 0.01)
        woken: list[bool] = []
        waiter = threading.Thread(target=lambda: woken.append(gathered.budget.wait(60, 30)))
        waiter.start()
        (batch,) = drain(gathered)
        gathered.release(batch)
        waiter.join()
        assert woken == [True]

    def test_a_refusal_reaches_those_who_wait_and_those_who_come(self) -> None:
        gathered = accumulator(buffer_bytes=100)
        gathered.add(b"x", 60)
        woken: list[bool] = []
        waiter = threading.Thread(target=lambda: woken.append(gathered.budget.wait(60, 30)))
        waiter.start()
        gathered.refuse(InvalidRequest("closed"))
        waiter.join()
        assert woken == [True]
        for size in (1, 60):
            with pytest.raises(InvalidRequest, match="closed"):
                gathered.add(b"y", size)


class TestThreads:
    def test_what_many_threads_add_is_all_there_and_in_each_threads_order(self) -> None:
        threads, each, partitions = 8, 2_000, 3
        ready = threading.Semaphore(0)
        gathered = accumulator(
            partitions, wake=ready.release, batch_count=7, buffer_bytes=threads * 100
        )

        def add(thread: int) -> None:
            for number in range(each):
                while gathered.budget.wait(10, 60):
                    with contextlib.suppress(BufferFull):
                        gathered.add(b"%d/%d" % (thread, number), 10, thread % partitions)
                        break

        workers = [threading.Thread(target=add, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
        while sum(map(len, found.values())) < threads * each:
            assert ready.acquire(timeout=30), "whoever adds something new wakes"
            for partition in gathered.take_woken():
                for batch in drain(gathered, partition):
                    found[partition] += payloads(batch)
                    gathered.release(batch)
        for worker in workers:
            worker.join()
        for thread in range(threads):
            prefix = b"%d/" % thread
            mine = [one for one in found[thread % partitions] if one.startswith(prefix)]
            assert mine == [b"%d/%d" % (thread, number) for number in range(each)]
