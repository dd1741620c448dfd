"""The broker: topics, publishing and reading, and what happens when things go wrong beneath."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiver.broker.publish.publisher import LIGHT_BYTES
from quiver.errors import (
    DiskFull,
    InvalidRequest,
    InvalidSetting,
    LogFailed,
    MessageTooLarge,
    OffsetOutOfRange,
    PartitionNotFound,
    PartitionUnavailable,
    ProducerFenced,
    QuiverError,
    TopicExists,
    TopicNotFound,
)
from quiver.model.builder import encode_record_batch
from quiver.model.topic import Acks, Compression, Durability, Retention, TopicSettings
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test, turns
from tests.unit.broker.broker_doubles import (
    Gate,
    batch_of,
    data_of,
    open_broker,
    payloads,
    publish,
    stamp,
    until,
)

# ---------------------------------------------------------------------- topics


@async_test
async def test_a_topic_is_described_with_everything_that_was_set(tmp_path: Path) -> None:
    settings = TopicSettings(
        partitions=3,
        durability=Durability.INTERVAL,
        sync_interval_ms=7,
        retention=Retention(age="1h", bytes="1GiB", messages=9, acked=True),
        compression=Compression.ZSTD,
        message_bytes_max=1000,
        acks=Acks.LEADER,
        segment_bytes=2 << 20,
        segment_age_s=60,
    )
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        created = await broker.topics.create("orders", settings)
        assert created.settings == settings
        assert created == await broker.topics.describe("orders")
        assert [
            (info.index, info.start_offset, info.next_offset) for info in created.partitions
        ] == [
            (0, 0, 0),
            (1, 0, 0),
            (2, 0, 0),
        ]


@async_test
async def test_a_description_tells_the_extent_of_each_partition(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await broker.topics.create("orders", TopicSettings(partitions=2))
        await publish(broker, "orders", batch_of(b"a", b"b"), 1)
        first, second = (await broker.topics.describe("orders")).partitions
        assert (first.next_offset, first.bytes) == (0, 0)
        assert second.next_offset == 2
        assert second.bytes is not None
        assert second.bytes > 0


@async_test
async def test_topics_are_listed_by_name(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        for name in ("c", "a", "b"):
            await broker.topics.create(name, TopicSettings())
        assert [topic.name for topic in broker.topics.infos()] == ["a", "b", "c"]


@async_test
async def test_a_topic_may_exist_already_if_it_is_the_same(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        first = await broker.topics.create("orders", TopicSettings(partitions=2))
        again = await broker.topics.create("orders", TopicSettings(partitions=2), exist_ok=True)
        assert again.number == first.number
        with pytest.raises(TopicExists):
            await broker.topics.create("orders", TopicSettings(partitions=2))
        with pytest.raises(TopicExists):
            await broker.topics.create("orders", TopicSettings(partitions=3), exist_ok=True)


@async_test
async def test_altered_settings_hold_for_the_next_publish(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await broker.topics.create("orders", TopicSettings())
        await publish(broker, "orders", batch_of(b"x" * 100))
        await broker.topics.alter("orders", {"message_bytes_max": 99})
        with pytest.raises(MessageTooLarge):
            await publish(broker, "orders", batch_of(b"x" * 100))


@pytest.mark.parametrize("name", ["../up", "..", "a/b", "__mine", "x" * 201, ""])
def test_no_name_makes_a_folder_outside_its_place(name: str, tmp_path: Path) -> None:
    @async_test
    async def check() -> None:
        disk = SimulatedDisk(1)
        async with open_broker(tmp_path, disk) as broker:
            with pytest.raises(InvalidSetting):
                await broker.topics.create(name, TopicSettings())
            assert disk.list_folder("/") == ["data"]
            assert disk.list_folder("/data") == []

    check()


@async_test
async def test_what_is_not_there_has_its_own_error(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await broker.topics.create("orders", TopicSettings())
        for call in (
            broker.topics.describe("none"),
            broker.topics.delete("none"),
            broker.topics.alter("none", {}),
            broker.reader.fetch("none", 0, 0, bytes_max=1),
            broker.reader.find_offset("none", 0, "latest", None),
            broker.publisher.open_producer("name", "none"),
        ):
            with pytest.raises(TopicNotFound):
                await call
        for index in (-1, 1, 1 << 62):
            with pytest.raises(PartitionNotFound):
                await broker.reader.fetch("orders", index, 0, bytes_max=1)


@async_test
async def test_one_partition_that_cannot_be_opened_does_not_hide_the_others(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await broker.topics.create("orders", TopicSettings(partitions=3))
        for index in range(3):
            await publish(broker, "orders", batch_of(b"p"), index)
    disk.fail("read", errno.EIO, path="*/1/checkpoint", times=None)
    async with open_broker(tmp_path, disk) as broker:
        described = await broker.topics.describe("orders")
        assert [info.next_offset for info in described.partitions] == [1, None, 1]


# ---------------------------------------------------------------------- publishing and reading


@async_test
async def test_a_fetch_beyond_the_end_does_not_wait(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await broker.topics.create("orders", TopicSettings())
        assert not await broker.reader.wait_for_data("orders", 0, 7, wait_s=30)
        with pytest.raises(OffsetOutOfRange) as refused:
            await broker.reader.fetch("orders", 0, 7, bytes_max=1)
        assert refused.value.details == {"first_offset": 0, "next_offset": 0}


@async_test
async def test_a_fetch_at_the_end_waits_until_something_comes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock) as broker:
        await broker.topics.create("orders", TopicSettings())
        await publish(broker, "orders", batch_of(b"p"))
        early = asyncio.create_task(broker.reader.wait_for_data("orders", 0, 1, wait_s=10))
        await clock.advance(9.9)
        assert not early.done()
        await clock.advance(0.2)
        assert await early is False
        served = asyncio.create_task(broker.reader.wait_for_data("orders", 0, 1, wait_s=10))
        await turns()
        await publish(broker, "orders", batch_of(b"q"))
        assert await served is True


@pytest.mark.parametrize(("offset", "bytes_max"), [(-1, 1), (0, -1), (-(1 << 63), 1)])
def test_negative_numbers_are_no_request(offset: int, bytes_max: int, tmp_path: Path) -> None:
    @async_test
    async def check() -> None:
        async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
            await broker.topics.create("orders", TopicSettings())
            with pytest.raises(InvalidRequest):
                await broker.reader.fetch("orders", 0, offset, bytes_max=bytes_max)

    check()


@async_test
async def test_offsets_are_found_by_name_and_by_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock) as broker:
        await broker.topics.create("orders", TopicSettings())
        times = []
        for _ in range(3):
            times.append((await publish(broker, "orders", batch_of(b"p", b"q"))).append_time)
            await clock.advance(1)

        async def find(at: str | None = None, time_us: int | None = None) -> int:
            return await broker.reader.find_offset("orders", 0, at, time_us)

        assert (await find("earliest"), await find("latest")) == (0, 6)
        assert [await find(time_us=moment) for moment in times] == [0, 2, 4]
        assert await find(time_us=times[1] + 1) == 4
        assert (await find(time_us=-(1 << 63)), await find(time_us=(1 << 63) - 1)) == (0, 6)
        for at in (None, "middle", "x" * 100_000):
            with pytest.raises(InvalidRequest) as refused:
                await find(at)
            assert len(refused.value.message) < 300


@async_test
async def test_a_large_batch_is_checked_elsewhere_and_a_small_one_on_the_spot(
    tmp_path: Path,
) -> None:
    checks = Gate()
    async with open_broker(tmp_path, SimulatedDisk(1), checks=checks) as broker:
        await broker.topics.create("orders", TopicSettings(message_bytes_max=32 << 20))
        zeros = pa.record_batch({"payload": [bytes(LIGHT_BYTES)]})
        small = broker.publisher.offer("orders", data_of(batch_of(b"p")))
        large = broker.publisher.offer(
            "orders", data_of(encode_record_batch(zeros, Compression.ZSTD))
        )
        assert (small.is_light, large.is_light) == (True, False)
        await broker.publisher.check(small)
        assert checks.calls == 0
        await broker.publisher.check(large)
        assert checks.calls == 1
        assert large.is_light


# ---------------------------------------------------------------------- deleting


@async_test
async def test_a_topic_of_a_deleted_name_shows_no_old_data(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        for number in range(3):
            await broker.topics.create("orders", TopicSettings())
            await publish(broker, "orders", batch_of(b"%d" % number))
            assert await payloads(broker, "orders") == [b"%d" % number]
            await broker.topics.delete("orders")
        assert disk.list_folder("/data/topics") == []


async def _deletion(tmp_path: Path, disk: SimulatedDisk, crash_after: int | None) -> int:
    """Delete a topic; how many operations of the disk that took, or fewer if it crashed."""
    async with open_broker(tmp_path, disk) as broker:
        await broker.topics.create("orders", TopicSettings(partitions=2))
        for index in range(2):
            await publish(broker, "orders", batch_of(b"old"), index)
        begun = disk.operation_count
        if crash_after is not None:
            disk.crash_at(begun + crash_after)
        await broker.topics.delete("orders")
        return disk.operation_count - begun


@pytest.mark.parametrize("end", ["kill", "crash"])
@pytest.mark.parametrize("crash_after", range(1, 58, 3))
def test_a_deletion_cut_off_anywhere_is_finished_at_the_next_start(
    crash_after: int, end: str, tmp_path: Path
) -> None:
    @async_test
    async def check() -> None:
        disk = SimulatedDisk(crash_after)
        try:
            await _deletion(tmp_path, disk, crash_after)
        except BaseException as error:
            if type(error).__name__ != "SimulatedCrash":
                raise
        getattr(disk, end)()
        async with open_broker(tmp_path, disk) as broker:
            assert broker.topics.infos() == []
            await broker.topics.create("orders", TopicSettings(partitions=2))
            assert await payloads(broker, "orders", 0) == []
            assert await payloads(broker, "orders", 1) == []
            assert disk.list_folder("/data/topics") == ["orders@2"]

    check()


@async_test
async def test_the_operations_of_a_deletion_are_few_enough_to_try_them_all(tmp_path: Path) -> None:
    assert 10 < await _deletion(tmp_path, SimulatedDisk(1), None) < 58


@async_test
async def test_a_publish_that_races_a_deletion_is_stored_or_refused(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SimulatedDisk(1)) as broker:
        await broker.topics.create("orders", TopicSettings())
        publishes = [
            asyncio.create_task(publish(broker, "orders", batch_of(b"%d" % number)))
            for number in range(50)
        ]
        await turns(3)
        deleting = asyncio.create_task(broker.topics.delete("orders"))
        publishes += [
            asyncio.create_task(publish(broker, "orders", batch_of(b"late"))) for _ in range(50)
        ]
        results = await asyncio.gather(*publishes, return_exceptions=True)
        await deleting
        refused = {type(result) for result in results if isinstance(result, Exception)}
        assert refused <= {TopicNotFound, PartitionUnavailable}
        await broker.topics.create("orders", TopicSettings())
        assert await payloads(broker, "orders") == []


@async_test
async def test_whoever_still_looks_at_a_deleted_topic_does_not_bring_it_back(
    tmp_path: Path,
) -> None:
    """A description under way must not leave a partition of the old topic for the new one."""
    disk, gate = SimulatedDisk(1), Gate()
    async with open_broker(tmp_path, disk, gate=gate) as broker:
        await broker.topics.create("orders", TopicSettings(partitions=8))
        await publish(broker, "orders", batch_of(b"one"))
        gate.shut()
        describing = asyncio.create_task(broker.topics.describe("orders"))
        opening = asyncio.create_task(broker.publisher.open_producer("name", "orders"))
        await until(lambda: gate.waiting > 0)
        deleting = asyncio.create_task(broker.topics.delete("orders"))
        await until(lambda: broker.topics.count == 0)
        gate.open()
        await deleting
        for asked in (describing, opening):
            with pytest.raises(TopicNotFound):
                await asked
        await broker.topics.create("orders", TopicSettings(partitions=8))
        for index in range(8):
            await publish(broker, "orders", batch_of(b"new"), index)
        assert disk.list_folder("/data/topics") == ["orders@2"]
    async with open_broker(tmp_path, disk) as broker:
        for index in range(8):
            assert await payloads(broker, "orders", index) == [b"new"]


@async_test
async def test_a_topic_can_be_deleted_on_a_full_disk(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await broker.topics.create("orders", TopicSettings())
        await publish(broker, "orders", batch_of(b"p"))
        for operation in ("append", "create"):
            disk.fail(operation, errno.ENOSPC, times=None)
        await broker.topics.delete("orders")
        assert disk.list_folder("/data/topics") == []
        disk.heal()


@async_test
async def test_data_that_cannot_be_removed_is_removed_at_the_next_start(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await broker.topics.create("orders", TopicSettings())
        await publish(broker, "orders", batch_of(b"p"))
        fault = disk.fail("remove", errno.EIO, path="*.log", times=2)
        await broker.topics.delete("orders")
        with pytest.raises(TopicNotFound):
            await broker.topics.describe("orders")
        assert disk.list_folder("/data/topics") == ["orders@1"]
    async with open_broker(tmp_path, disk):
        assert fault.hits == 2
    async with open_broker(tmp_path, disk):
        assert disk.list_folder("/data/topics") == []


# ---------------------------------------------------------------------- clients that leave


@pytest.mark.parametrize("change", ["create", "alter", "delete"])
@pytest.mark.parametrize("after", range(0, 12, 2))
def test_a_change_whose_client_left_is_made_whole_or_not_at_all(
    change: str, after: int, tmp_path: Path
) -> None:
    @async_test
    async def check() -> None:
        disk = SimulatedDisk(1)
        async with open_broker(tmp_path, disk) as broker:
            if change != "create":
                await broker.topics.create("orders", TopicSettings())
            calls: dict[str, Any] = {
                "create": lambda: broker.topics.create("orders", TopicSettings()),
                "alter": lambda: broker.topics.alter("orders", {"sync_interval_ms": 7}),
                "delete": lambda: broker.topics.delete("orders"),
            }
            asked = asyncio.create_task(calls[change]())
            await turns(after)
            asked.cancel()
            await asyncio.wait([asked])
            # Whatever came of it, the node goes on with what the store has.
            await broker.topics.create("other", TopicSettings())
            if change == "delete" and after > 0:
                with pytest.raises(TopicNotFound):
                    await broker.topics.describe("orders")
            if broker.topics.count == 1:
                await broker.topics.create("orders", TopicSettings())
            await broker.topics.alter("orders", {"sync_interval_ms": 8})
            await publish(broker, "orders", batch_of(b"kept"))
        async with open_broker(tmp_path, disk) as broker:
            assert (await broker.topics.describe("orders")).settings.sync_interval_ms == 8
            assert await payloads(broker, "orders") == [b"kept"]

    check()


# ---------------------------------------------------------------------- producers


@async_test
async def test_opening_a_name_again_fences_its_predecessor_everywhere(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await broker.topics.create("orders", TopicSettings(partitions=2))
        first, _ = await broker.publisher.open_producer("billing", "orders")
        stamped = stamp(first.producer_id, 0, first.epoch)
        await publish(broker, "orders", batch_of(b"1", stamped=stamped, sequence=1), 0)
        second, sequences = await broker.publisher.open_producer("billing", "orders")
        assert (second.producer_id, sequences) == (first.producer_id, {0: 1})
        for index in range(2):
            late = stamp(first.producer_id, 1 if index == 0 else 0, first.epoch)
            with pytest.raises(ProducerFenced):
                await publish(broker, "orders", batch_of(b"2", stamped=late, sequence=2), index)
    async with open_broker(tmp_path, disk) as broker:
        with pytest.raises(ProducerFenced):
            await publish(broker, "orders", batch_of(b"2", stamped=stamped), 1)
        assert await payloads(broker, "orders", 0) == [b"1"]


# ---------------------------------------------------------------------- full and failing disks


@async_test
async def test_a_full_disk_stops_publishes_and_nothing_else_until_there_is_space(
    tmp_path: Path,
) -> None:
    disk, clock = SimulatedDisk(1, capacity_bytes=10 << 20), ManualClock()
    async with open_broker(tmp_path, disk, clock=clock, free_bytes_min=1 << 20) as broker:
        await broker.topics.create("orders", TopicSettings())
        await publish(broker, "orders", batch_of(b"before"))
        disk.capacity_bytes = 1 << 20
        await clock.advance(1.5)
        with pytest.raises(DiskFull):
            await publish(broker, "orders", batch_of(b"refused"))
        assert await payloads(broker, "orders") == [b"before"]
        await broker.topics.create("other", TopicSettings())
        await broker.topics.alter("orders", {"sync_interval_ms": 7})
        await broker.topics.delete("other")
        assert (await broker.reader.find_offset("orders", 0, "latest", None)) == 1
        disk.capacity_bytes = 10 << 20
        await clock.advance(1.5)
        await publish(broker, "orders", batch_of(b"after"))
        assert await payloads(broker, "orders") == [b"before", b"after"]


@async_test
async def test_a_disk_that_fills_in_the_middle_of_a_write_stores_nothing_by_half(
    tmp_path: Path,
) -> None:
    disk, clock = SimulatedDisk(1, capacity_bytes=100_000), ManualClock()
    stored = []
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        await broker.topics.create("orders", TopicSettings())
        with contextlib.suppress(LogFailed):
            for number in range(1000):
                payload = b"%04d" % number * 250
                await publish(broker, "orders", batch_of(payload))
                stored.append(payload)
        with pytest.raises(DiskFull):
            await publish(broker, "orders", batch_of(b"still full"))
        # It cannot be opened again while the disk is full, and is read all the same.
        for _ in range(5):
            await clock.advance(2)
            assert await payloads(broker, "orders") == stored
        disk.capacity_bytes = 1 << 30
        await clock.advance(60)
        await publish(broker, "orders", batch_of(b"space again"))
        assert await payloads(broker, "orders") == [*stored, b"space again"]
    disk.crash()
    async with open_broker(tmp_path, disk) as broker:
        assert await payloads(broker, "orders") == [*stored, b"space again"]


@async_test
async def test_a_failed_partition_is_opened_again_and_its_readers_go_on(tmp_path: Path) -> None:
    disk, clock = SimulatedDisk(1), ManualClock()
    async with open_broker(tmp_path, disk, clock=clock) as broker:
        await broker.topics.create("orders", TopicSettings())
        await publish(broker, "orders", batch_of(b"a"))
        disk.fail("sync", errno.EIO, path="*.log")
        with pytest.raises(QuiverError):
            await publish(broker, "orders", batch_of(b"maybe"))
        waiting = asyncio.create_task(broker.reader.wait_for_data("orders", 0, 1, wait_s=20))
        await clock.advance(1.5)
        await until(lambda: broker.publisher.ready_partition("orders", 0) is not None)
        await publish(broker, "orders", batch_of(b"b"))
        await clock.advance(20)
        await waiting
        assert await payloads(broker, "orders") in ([b"a", b"b"], [b"a", b"maybe", b"b"])


@async_test
async def test_other_partitions_do_not_notice_one_that_fails(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with open_broker(tmp_path, disk) as broker:
        await broker.topics.create("orders", TopicSettings(partitions=2))
        await publish(broker, "orders", batch_of(b"a"), 0)
        await publish(broker, "orders", batch_of(b"a"), 1)
        disk.fail("append", errno.EIO, path="*/0/*.log", times=None)
        with pytest.raises(QuiverError):
            await publish(broker, "orders", batch_of(b"b"), 0)
        await publish(broker, "orders", batch_of(b"b"), 1)
        assert await payloads(broker, "orders", 1) == [b"a", b"b"]
        disk.heal()


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_what_was_acknowledged_is_there_after(end: str, tmp_path: Path) -> None:
    @async_test
    async def check() -> None:
        disk = SimulatedDisk(7)
        async with open_broker(tmp_path, disk) as broker:
            await broker.topics.create("orders", TopicSettings())
            for number in range(20):
                await publish(broker, "orders", batch_of(b"%d" % number))
            getattr(disk, end)()
        async with open_broker(tmp_path, disk) as broker:
            assert await payloads(broker, "orders") == [b"%d" % number for number in range(20)]

    check()
