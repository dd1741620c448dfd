"""The storage beneath a broker: placement, partition store and topic hooks."""

from __future__ import annotations

import msgspec

from quiver.broker.partition.partition_store import LocalPartitionStore, PartitionStore
from quiver.broker.partition.placement import LocalPlacement, Placement
from quiver.broker.topics.catalog import NoTopicHooks, TopicHooks
from quiver.log.disk.disk import Disk
from quiver.log.disk.disk_threads import RunBlocking
from quiver.log.log_context import LogContext
from quiver.model.clock import Clock


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    placement: Placement
    partitions: PartitionStore
    hooks: TopicHooks


def local_storage(
    folder: str,
    disk: Disk,
    clock: Clock,
    run_blocking: RunBlocking,
    context: LogContext | None = None,
) -> Storage:
    """For a single node, which keeps everything in folders of its own."""
    return Storage(
        placement=LocalPlacement(),
        partitions=LocalPartitionStore(folder, disk, clock, run_blocking, context),
        hooks=NoTopicHooks(),
    )
