"""A data folder that several processes serve: locked for all of them, and made so if it was not.

What a single node has stored becomes the first process's. The cluster then moves some of it to the
others, as it does when nodes are added.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from quiver.broker.partition.adoption import Adoption
from quiver.cluster.metadata.open import open_store
from quiver.cluster.metadata.store import MetadataStore
from quiver.cluster.records import PARTITIONS, NodeId, PartitionRecord, decode
from quiver.config import NodeConfig
from quiver.config.processes import FOLDER, process_name
from quiver.edge.data_folder import take_folder
from quiver.errors import InvalidSetting
from quiver.formats import METADATA_TABLES
from quiver.log.disk.disk_threads import DiskThreads
from quiver.log.disk.real_disk import RealDisk
from quiver.model.clock import SystemClock

logger = structlog.get_logger()


@contextmanager
def locked_folder(config: NodeConfig) -> Iterator[None]:
    """The data folder for this process and its children; ``FolderInUse`` names who else has it."""
    lock = take_folder(RealDisk(), config.data, [METADATA_TABLES])
    try:
        yield
    finally:
        lock.release()


async def prepare_folder(config: NodeConfig, count: int) -> None:
    """Make the data folder one that ``count`` processes can serve.

    ``InvalidSetting`` if others hold some of its partitions than would run.
    """
    disk, clock, threads = RealDisk(), SystemClock(), DiskThreads(1)
    store = await open_store(config.metadata, config.data, clock, shared=True)
    try:
        await _require_holders(config, store, count)
        first = os.path.join(config.data, FOLDER, "0")
        disk.make_folder(first)
        adoption = Adoption(
            store,
            os.path.join(config.data, "topics"),
            os.path.join(first, "partitions"),
            NodeId(process_name(config, 0)),
            disk=disk,
            clock=clock,
            run_blocking=threads,
        )
        adopted = await adoption.run()
        if adopted:
            logger.info("the partitions of a single node were adopted", partitions=adopted)
    finally:
        await store.close()
        threads.close()


async def _require_holders(config: NodeConfig, store: MetadataStore, count: int) -> None:
    """Every partition is held by processes that will run."""
    entries = (await store.list(PARTITIONS)).entries
    records = [decode(entry.value, PartitionRecord) for entry in entries]
    holders = {node for record in records for node in record.replicas}
    missing = sorted(holders - {process_name(config, number) for number in range(count)})
    if missing:
        raise InvalidSetting(
            f"processes: {', '.join(missing)} hold partitions of {config.data} and would not run; "
            "use the name and at least as many processes as before (--processes auto), or empty "
            f"them first with: quiver cluster decommission {missing[0]}"
        )
