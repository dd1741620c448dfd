"""Where the partitions of a node are kept: in folders of its own, or in replicas."""

from __future__ import annotations

from typing import Protocol

from quiver.broker.delivery.state_log import STATE
from quiver.broker.partition.listener import PartitionListener
from quiver.broker.partition.partition import Partition
from quiver.broker.topics.catalog import TopicRecord
from quiver.log.disk.disk import Disk
from quiver.log.disk.disk_threads import RunBlocking
from quiver.log.log_context import LogContext
from quiver.log.partition_log import PartitionLog
from quiver.log.settings import LogSettings
from quiver.model.clock import Clock
from quiver.model.ids import Offset


class PartitionStore(Protocol):
    @property
    def mends_itself(self) -> bool:
        """Whether partitions whose disk failed are opened again without being asked to."""

    async def load(self) -> None:
        """Learn what is there. Called once, before anything is opened."""

    def is_unused(self, record: TopicRecord) -> bool:
        """Whether no partition of a topic was ever opened: nothing is kept of it yet."""

    async def open(
        self, record: TopicRecord, index: int, settings: LogSettings, listener: PartitionListener
    ) -> Partition:
        """``NotLeader`` if another node serves it."""

    async def cut(self, record: TopicRecord, index: int, settings: LogSettings) -> None:
        """Drop what a failback has kept aside. The partition is closed, or is by what this does.

        Returns when no replica can bring it back.
        """

    def reconfigure(self, record: TopicRecord) -> None:
        """Apply a topic's settings to what is held here and not open."""

    async def remove(self, record: TopicRecord) -> None:
        """Remove what this node has of a deleted topic; its partitions are closed."""


class LocalPartitionStore:
    """A folder for each topic of a single node."""

    mends_itself = False

    def __init__(
        self,
        folder: str,
        disk: Disk,
        clock: Clock,
        run_blocking: RunBlocking,
        context: LogContext | None = None,
    ) -> None:
        self._folder = folder
        self._context = context or LogContext()
        self._disk = disk
        self._clock = clock
        self._run_blocking = run_blocking
        self._used: set[str] | None = None
        """The folders of topics that were opened once; ``None`` while that is not known."""

    async def load(self) -> None:
        def folders() -> list[str]:
            return self._disk.list_folder(self._folder) if self._disk.exists(self._folder) else []

        # A folder that was there at the last stop and is lost now is damage, which opening it shows.
        ended = self._context.ends.names_in(self._folder)
        self._used = ended.union(await self._run_blocking(folders))

    def is_unused(self, record: TopicRecord) -> bool:
        return self._used is not None and record.folder not in self._used

    async def open(
        self, record: TopicRecord, index: int, settings: LogSettings, listener: PartitionListener
    ) -> Partition:
        if self._used is not None:
            self._used.add(record.folder)
        return await Partition.open(
            f"{self._folder}/{record.folder}/{index}",
            settings,
            disk=self._disk,
            clock=self._clock,
            run_blocking=self._run_blocking,
            dedup_window_us=record.settings.dedup_window_us,
            first_offset=record.first_offset(index),
            listener=listener,
            context=self._context,
        )

    async def cut(self, record: TopicRecord, index: int, settings: LogSettings) -> None:
        log = await PartitionLog.open(
            f"{self._folder}/{record.folder}/{index}",
            settings=settings,
            disk=self._disk,
            clock=self._clock,
            run_blocking=self._run_blocking,
            first_offset=record.first_offset(index),
            context=self._context,
        )
        try:
            cut = record.cut_of(index)
            if cut is not None and cut.applies_to(log.next_offset):
                await log.truncate(Offset(cut.begin))
        finally:
            await log.close()

    def reconfigure(self, _record: TopicRecord) -> None:
        """Partitions that are not open read the settings when they are opened."""

    async def remove(self, record: TopicRecord) -> None:
        folder = f"{self._folder}/{record.folder}"
        for index in range(len(record.first_hashes)):
            for log in (f"{folder}/{index}", f"{folder}/{index}/{STATE}"):
                self._context.ends.take(log)

        def remove() -> None:
            if self._disk.exists(folder):
                self._disk.remove_folder(folder)
                self._disk.sync_folder(self._folder)

        await self._run_blocking(remove)
        if self._used is not None:
            self._used.discard(record.folder)
