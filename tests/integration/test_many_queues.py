"""What one more queue costs does not depend on how many there are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from quiver import AsyncClient
from quiver.config import Address, Limits, NodeConfig
from quiver.config.observability import Alerts
from quiver.edge.auth.principal import INTERNAL
from quiver.edge.in_process import InProcessDialer
from quiver.edge.node import Node
from quiver.log.disk.disk import AppendFile, Bytes
from quiver.log.disk.real_disk import RealDisk
from tests.aio import async_test


class CountedFile(AppendFile):
    def __init__(self, file: AppendFile, counts: Counter[str]) -> None:
        self._file = file
        self._counts = counts
        self.overwrite = file.overwrite  # type: ignore[method-assign]
        self.size = file.size  # type: ignore[method-assign]
        self.truncate = file.truncate  # type: ignore[method-assign]
        self.close = file.close  # type: ignore[method-assign]

    def append(self, buffers: Sequence[Bytes]) -> None:
        self._counts["writes"] += 1
        self._file.append(buffers)

    def append_synced(self, buffers: Sequence[Bytes]) -> None:
        self._counts.update(writes=1, syncs=1)
        self._file.append_synced(buffers)

    def sync(self) -> None:
        self._counts["syncs"] += 1
        self._file.sync()


class CountingDisk(RealDisk):
    """Counts writes and syncs, of files and folders."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def open_append(self, path: str) -> AppendFile:
        return CountedFile(super().open_append(path), self.counts)

    def sync_folder(self, path: str) -> None:
        self.counts["syncs"] += 1
        super().sync_folder(path)


@asynccontextmanager
async def running(folder: Path, disk: CountingDisk) -> AsyncIterator[AsyncClient]:
    # Alerts look at all queues, and open them in doing so.
    config = NodeConfig(data=str(folder), alerts=Alerts(enabled=False))
    node = await Node.start(config, listen=False, disk=disk)
    try:
        async with AsyncClient(dialer=InProcessDialer(node.services, INTERNAL)) as client:
            yield client
    finally:
        await node.stop()


async def use(client: AsyncClient, name: str) -> None:
    await client.create_queue(name)
    await client.publish(name, b"one")
    await client.publish(name, b"two")
    (message,) = await client.receive(name, 1)
    await message.ack()


async def syncs_of_a_life(folder: Path, queues: int) -> tuple[int, int]:
    """How often a node syncs when it stops with so many used queues, and when it uses them again."""
    disk = CountingDisk()
    async with running(folder, disk) as client:
        for number in range(queues):
            await use(client, f"queue-{number}")
        disk.counts.clear()
    stopping = disk.counts["syncs"]
    disk.counts.clear()
    async with running(folder, disk) as client:
        for number in range(queues):
            messages = await client.receive(f"queue-{number}", 10, wait=0)
            assert [message.payload for message in messages] == [b"two"]
        opening = disk.counts["syncs"]
    return stopping, opening


@async_test
async def test_a_stop_syncs_as_often_with_many_used_queues_as_with_few(tmp_path: Path) -> None:
    few, _ = await syncs_of_a_life(tmp_path / "few", 3)
    many, opened = await syncs_of_a_life(tmp_path / "many", 30)
    assert many < few + 10, "what is under way at the moment may add some"
    # Each receive makes its lease durable, and no more: opening a log syncs nothing.
    assert opened <= 30 + 10


@async_test
async def test_a_first_publish_syncs_as_often_whatever_the_number_of_queues(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with running(tmp_path, disk) as client:
        costs = []
        for number in range(30):
            await client.create_queue(f"queue-{number}")
            disk.counts.clear()
            await client.publish(f"queue-{number}", b"one")
            costs.append(disk.counts["syncs"])
    assert min(costs[-5:]) <= min(costs[1:6])
    assert min(costs) <= 4


@async_test
async def test_each_start_finds_what_was_there_at_the_stop(tmp_path: Path) -> None:
    for life in range(3):
        async with running(tmp_path, CountingDisk()) as client:
            if life == 0:
                await client.create_queue("orders")
            await client.publish("orders", str(life).encode())
            messages = await client.receive("orders", 10, wait=0)
            assert [message.payload for message in messages] == [str(life).encode()]
            for message in messages:
                await message.ack()


@async_test
async def test_the_caches_of_many_topics_stay_within_one_budget(tmp_path: Path) -> None:
    limits = Limits(tail_bytes_total=1 << 20)
    config = NodeConfig(data=str(tmp_path), alerts=Alerts(enabled=False), limits=limits)
    node = await Node.start(config, listen=False)
    try:
        caches = node.services.broker.caches
        assert caches is not None
        async with AsyncClient(dialer=InProcessDialer(node.services, INTERNAL)) as client:
            for number in range(20):
                await client.create_queue(f"queue-{number}")
                for _ in range(4):
                    await client.publish(f"queue-{number}", bytes(50_000))
                    assert caches.total <= 1 << 20
            assert caches.total > 900_000, "the budget is used"
            for number in range(20):  # those that fell out are read from the disk
                assert len(await client.receive(f"queue-{number}", 10)) == 4
                assert caches.total <= 1 << 20
            for number in range(20):
                await client.delete_topic(f"queue-{number}")
        assert caches.total == 0
        assert node.services.inflight.taken == 0
    finally:
        await node.stop()


@async_test
async def test_requests_go_on_where_there_is_hardly_any_memory_for_them(tmp_path: Path) -> None:
    config = NodeConfig(
        data=str(tmp_path),
        native=Address("127.0.0.1", 0),
        http=None,
        limits=Limits(memory_bytes_max=2),
    )
    node = await Node.start(config)
    try:
        async with AsyncClient(f"quiver://{node.native_address}") as client:
            await client.create_queue("orders")
            await client.create_queue("idle")
            waiting = asyncio.create_task(client.receive("idle", wait=20))
            await asyncio.gather(*(client.publish("orders", b"%d" % n) for n in range(50)))
            assert len(await client.receive("orders", 100)) == 50
            await client.publish("idle", b"done")
            assert [one.payload for one in await waiting] == [b"done"]
    finally:
        await node.stop()
