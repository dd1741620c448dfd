"""Makes replicas of what a single node has stored: the same files, where replicas are kept.

The node that adopts them is the only one that holds them, until the cluster moves some. A crash in
between does no harm: what is done is found, and the rest is done by the next start.
"""

from __future__ import annotations

from functools import partial

from quiver.broker.delivery.snapshots import FileSnapshots, LoggedSnapshots
from quiver.broker.delivery.state_log import SNAPSHOT, STATE, STATE_SETTINGS
from quiver.broker.partition.producers.snapshots import PRODUCERS
from quiver.broker.partition.producers.split_handover import HANDOVER, IMPORTED
from quiver.broker.partition.replicated_placement import partition_id
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.cluster.metadata.store import Expect, MetadataStore, Put
from quiver.cluster.records import PARTITIONS, NodeId, PartitionRecord, encode, partition_key
from quiver.log.disk.disk import Disk
from quiver.log.disk.disk_threads import RunBlocking
from quiver.log.partition_log import PartitionLog
from quiver.model.clock import Clock

_DATA = "data"
_RECORDS_AT_ONCE = 100


class Adoption:
    """``source`` is the single node's folder of topics, ``target`` the new holder's of partitions."""

    def __init__(
        self,
        store: MetadataStore,
        source: str,
        target: str,
        holder: NodeId,
        *,
        disk: Disk,
        clock: Clock,
        run_blocking: RunBlocking,
    ) -> None:
        self._store = store
        self._source = source
        self._target = target
        self._holder = holder
        self._disk = disk
        self._clock = clock
        self._run_blocking = run_blocking

    async def run(self) -> int:
        """Adopt every partition that nobody holds; how many there were."""
        catalog = TopicCatalog(self._store, self._clock)
        await catalog.load()
        held = {entry.key for entry in (await self._store.list(PARTITIONS)).entries}
        keys = []
        for record in catalog.topics():
            for index in range(len(record.first_hashes)):
                key = partition_key(partition_id(record, index))
                if key not in held:
                    await self._adopt(record, index)
                    keys.append(key)
        first = encode(
            PartitionRecord(
                replicas=(self._holder,), leader=self._holder, in_sync=(self._holder,), wanted=1
            )
        )
        for at in range(0, len(keys), _RECORDS_AT_ONCE):
            some = keys[at : at + _RECORDS_AT_ONCE]
            await self._store.commit(
                [Expect(key, 0) for key in some], [Put(key, first) for key in some]
            )
        for record in await catalog.deleted():
            await self._run_blocking(partial(self._remove, record.folder))
        return len(keys)

    async def _adopt(self, record: TopicRecord, index: int) -> None:
        source = f"{self._source}/{record.folder}/{index}"
        target = f"{self._target}/{partition_id(record, index)}"
        if self._disk.exists(source):
            await self._log_snapshots(source)
        await self._run_blocking(lambda: self._move(source, target))

    async def _log_snapshots(self, folder: str) -> None:
        """What a single node keeps in files, replicas keep in the state log."""
        files = FileSnapshots(folder, self._disk, self._run_blocking)
        names = [one for one in self._disk.list_folder(folder) if one.startswith(HANDOVER)]
        found = {
            name: data
            for name in (PRODUCERS, IMPORTED, *names, f"{STATE}/{SNAPSHOT}")
            if (data := await files.load(name))
        }
        if not found:
            return
        log = await PartitionLog.open(
            f"{folder}/{STATE}",
            disk=self._disk,
            clock=self._clock,
            settings=STATE_SETTINGS,
            run_blocking=self._run_blocking,
        )
        try:
            logged = LoggedSnapshots(log, self._run_blocking)
            for name, data in found.items():
                await logged.save(name, partial(bytes, data))
        finally:
            await log.close()

    def _move(self, source: str, target: str) -> None:
        data, state = f"{target}/{_DATA}", f"{target}/{STATE}"
        if self._disk.exists(source):
            self._disk.make_folder(target)
            self._disk.rename(source, data)
            self._disk.sync_folder(source.rpartition("/")[0])
            self._disk.sync_folder(target)
        if self._disk.exists(f"{data}/{STATE}"):
            self._disk.rename(f"{data}/{STATE}", state)
            self._disk.sync_folder(data)
            self._disk.sync_folder(target)

    def _remove(self, folder: str) -> None:
        """What is left of a deleted topic."""
        path = f"{self._source}/{folder}"
        if self._disk.exists(path):
            self._disk.remove_folder(path)
            self._disk.sync_folder(self._source)
