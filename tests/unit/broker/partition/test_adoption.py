"""What a single node stored becomes replicas, whole, wherever a crash interrupts that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quiver.broker.delivery.snapshots import FileSnapshots, LoggedSnapshots
from quiver.broker.delivery.state_log import STATE_SETTINGS
from quiver.broker.partition.adoption import Adoption
from quiver.broker.partition.partition import PRODUCERS, Partition
from quiver.broker.topics.catalog import TopicCatalog
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.store import MetadataStore
from quiver.cluster.records import PARTITIONS, NodeId, PartitionRecord, decode
from quiver.cluster.replica.replica_log import ReplicaLog
from quiver.errors import LogFailed
from quiver.log.disk.real_disk import RealDisk
from quiver.log.partition_log import PartitionLog
from quiver.log.settings import LogSettings
from quiver.model.clock import SystemClock
from quiver.model.guard import check_batch
from quiver.model.topic import TopicSettings
from tests.aio import async_test
from tests.unit.broker.broker_doubles import Gate, batch_of, stamp

HOLDER = NodeId("box.0")
CLOCK = SystemClock()
TIMES = ("make_folder", "rename", "sync_folder", "remove_folder")


class Crash(Exception):
    """The process ends here."""


class DyingDisk:
    """Ends the process before its change number ``steps``."""

    def __init__(self, steps: int) -> None:
        self._disk = RealDisk()
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        if name in TIMES:
            if self._steps == 0:
                raise Crash
            self._steps -= 1
        return getattr(self._disk, name)


def adoption(folder: Path, store: MetadataStore, disk: Any) -> Adoption:
    return Adoption(
        store,
        str(folder / "topics"),
        str(folder / "partitions"),
        HOLDER,
        disk=disk,
        clock=CLOCK,
        run_blocking=Gate(),
    )


async def stored_by_a_single_node(folder: Path, store: MetadataStore) -> bytes:
    """Two partitions, one of which was never used; the snapshot of the other's producers."""
    catalog = TopicCatalog(store, CLOCK)
    record = await catalog.create("orders", TopicSettings(partitions=2))
    at = f"{folder}/topics/{record.folder}/0"
    partition = await Partition.open(
        at, LogSettings(), disk=RealDisk(), clock=CLOCK, run_blocking=Gate()
    )
    for number in range(10):
        batch = batch_of(b"%d" % number, stamped=stamp(7, number))
        await partition.publish(batch, check_batch(batch, 1 << 20).rows)
    await partition.close()
    return await FileSnapshots(at, RealDisk(), Gate()).load(PRODUCERS)


async def check_adopted(folder: Path, store: MetadataStore, producers: bytes) -> None:
    entries = (await store.list(PARTITIONS)).entries
    assert [entry.key for entry in entries] == ["partitions/orders@1/0", "partitions/orders@1/1"]
    for entry in entries:
        record = decode(entry.value, PartitionRecord)
        assert (record.replicas, record.in_sync, record.wanted) == ((HOLDER,), (HOLDER,), 1)
    at = f"{folder}/partitions/orders@1/0"
    opened = {"disk": RealDisk(), "clock": CLOCK, "run_blocking": Gate()}
    data = await ReplicaLog.open(f"{at}/data", LogSettings(), **opened)  # type: ignore[arg-type]
    assert (data.log.start_offset, data.log.next_offset) == (0, 10)
    await data.close()
    state = await PartitionLog.open(f"{at}/state", settings=STATE_SETTINGS, **opened)  # type: ignore[arg-type]
    snapshots = await LoggedSnapshots.open(state, Gate())
    assert await snapshots.load(PRODUCERS) == producers
    await state.close()


@async_test
async def test_the_logs_and_what_was_in_files_beside_them_are_adopted(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "metadata.db"), CLOCK)
    producers = await stored_by_a_single_node(tmp_path, store)
    assert producers
    assert await adoption(tmp_path, store, RealDisk()).run() == 2
    await check_adopted(tmp_path, store, producers)
    assert await adoption(tmp_path, store, RealDisk()).run() == 0
    await store.close()


@async_test
async def test_an_adoption_that_a_crash_interrupts_is_finished_by_the_next(tmp_path: Path) -> None:
    steps, is_done = 0, False
    while not is_done:
        folder = tmp_path / str(steps)
        folder.mkdir()
        store = await SqliteStore.open(str(folder / "metadata.db"), CLOCK)
        producers = await stored_by_a_single_node(folder, store)
        try:
            await adoption(folder, store, DyingDisk(steps)).run()
            is_done = True
        except (Crash, LogFailed):
            await adoption(folder, store, RealDisk()).run()
        await check_adopted(folder, store, producers)
        await store.close()
        steps += 1
    assert steps > 5
