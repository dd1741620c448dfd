"""Where the partitions of a node are kept: in folders of its own, or with other nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quiver.broker.partition.follower_log import FollowerLog
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.replication_lag import ReplicationLag
from quiver.broker.topics.catalog import TopicRecord
from quiver.cluster.metadata.store import Delete, Expect, Put
from quiver.log.disk import Disk
from quiver.log.partition_log import RunBlocking
from quiver.log.settings import LogSettings
from quiver.model.clock import Clock
from quiver.protocol import ReplicaInfo


class Storage(Protocol):
    @property
    def version(self) -> int:
        """Grows whenever this node begins or ceases to lead something."""

    @property
    def mends_itself(self) -> bool:
        """Whether partitions whose disk failed are opened again without being asked to."""

    @property
    def replication(self) -> ReplicationLag | None:
        """How well replicas keep up, where there are any."""

    def may_lack(self, record: TopicRecord) -> bool:
        """Whether a partition may end before an offset that was committed once."""

    def leads(self, record: TopicRecord, index: int) -> bool:
        """Whether this node serves the partition."""

    def leader(self, record: TopicRecord, index: int) -> str | None:
        """Where the partition is served, if that is another node's address that is known."""

    def in_sync(self, record: TopicRecord, index: int) -> list[ReplicaInfo]:
        """The nodes where a partition's committed messages are, where there are several."""

    def follower(self, record: TopicRecord, index: int) -> FollowerLog | None:
        """The partition as this node has it if it is in sync and does not lead."""

    def begin(self, record: TopicRecord) -> Sequence[Put]:
        """What is to be written together with a new topic."""

    async def change(
        self, old: TopicRecord, new: TopicRecord
    ) -> Sequence[tuple[Expect, Put | None]]:
        """What is to be written together with other settings of a topic."""

    def term(self, record: TopicRecord, index: int) -> int:
        """Under which epoch this node leads a partition; ``NotLeader`` if it does not."""

    async def split(
        self, new: TopicRecord, index: int, term: int
    ) -> Sequence[tuple[Expect, Put | None]]:
        """What is to be written together with the newest split of a topic, if this node leads the
        partition under the same epoch still."""

    def altered(self, record: TopicRecord) -> None:
        """A topic has other settings from now on, also where others lead it."""

    def end(self, record: TopicRecord) -> Sequence[Put | Delete]:
        """What is to be written together with the deletion of a topic."""

    async def open(
        self, record: TopicRecord, index: int, settings: LogSettings, on_lost: Callable[[], None]
    ) -> Partition:
        """``NotLeader`` if another serves it. ``on_lost`` is called when this node ceases to."""

    async def remove(self, record: TopicRecord) -> None:
        """Remove what this node has of a deleted topic; its partitions are closed."""


class LocalStorage:
    """A folder for each topic, of one node that keeps everything alone."""

    version = 0
    mends_itself = False
    replication = None

    def __init__(self, folder: str, disk: Disk, clock: Clock, run_blocking: RunBlocking) -> None:
        self._folder = folder
        self._disk = disk
        self._clock = clock
        self._run_blocking = run_blocking

    def may_lack(self, _record: TopicRecord) -> bool:
        """After a loss of power, where not every message is synced."""
        return True

    def leads(self, _record: TopicRecord, _index: int) -> bool:
        return True

    def leader(self, _record: TopicRecord, _index: int) -> str | None:
        return None

    def in_sync(self, _record: TopicRecord, _index: int) -> list[ReplicaInfo]:
        return []

    def follower(self, _record: TopicRecord, _index: int) -> FollowerLog | None:
        return None

    def begin(self, _record: TopicRecord) -> Sequence[Put]:
        return ()

    async def change(
        self, _old: TopicRecord, _new: TopicRecord
    ) -> Sequence[tuple[Expect, Put | None]]:
        return ()

    def term(self, _record: TopicRecord, _index: int) -> int:
        return 0

    async def split(
        self, _new: TopicRecord, _index: int, _term: int
    ) -> Sequence[tuple[Expect, Put | None]]:
        return ()

    def altered(self, _record: TopicRecord) -> None:
        """Whoever has a partition open gives its log the settings."""

    def end(self, _record: TopicRecord) -> Sequence[Put | Delete]:
        return ()

    async def open(
        self, record: TopicRecord, index: int, settings: LogSettings, _on_lost: Callable[[], None]
    ) -> Partition:
        return await Partition.open(
            f"{self._folder}/{record.folder}/{index}",
            settings,
            disk=self._disk,
            clock=self._clock,
            run_blocking=self._run_blocking,
            dedup_window_us=record.settings.dedup_window_us,
        )

    async def remove(self, record: TopicRecord) -> None:
        folder = f"{self._folder}/{record.folder}"

        def remove() -> None:
            if self._disk.exists(folder):
                self._disk.remove_folder(folder)
                self._disk.sync_folder(self._folder)

        await self._run_blocking(remove)
