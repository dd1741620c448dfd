"""What this node leads: who waits for a partition, or serves it, is told when that changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from quiver.aio import Signal
from quiver.cluster.metadata.store import Delete, Entry
from quiver.cluster.records import PARTITIONS, NodeId, PartitionId, PartitionRecord, decode
from quiver.cluster.replica.leader_driver import LeaderDriver
from quiver.cluster.replica.replica import Replica
from quiver.model.clock import Clock

logger = structlog.get_logger()


class Leadership:
    """``on_lead`` is called when this node begins to lead a partition."""

    def __init__(self, node: NodeId, clock: Clock, on_lead: Callable[[PartitionId], None]) -> None:
        self.version = 0
        """Grows whenever this node may lead something else than before."""
        self._node = node
        self._on_lead = on_lead
        self._on_lost: dict[PartitionId, Callable[[], None]] = {}
        self._begun = Signal(clock)

    def learn(self, changes: Sequence[Entry | Delete]) -> None:
        """What one commit has changed in the metadata store: perhaps this node was elected."""
        for change in changes:
            if isinstance(change, Entry) and change.key.startswith(PARTITIONS):
                record = decode(change.value, PartitionRecord)
                self.version += record.leader == self._node

    def began(self, replica: Replica, leading: LeaderDriver) -> None:
        partition = replica.partition
        self.version += 1
        logger.info("this node leads a partition", partition=partition, epoch=leading.machine.epoch)
        self._begun.wake()
        self._on_lead(partition)

    def ended(self, partition: PartitionId) -> None:
        self.version += 1
        logger.info("this node leads a partition no more", partition=partition)
        on_lost = self._on_lost.pop(partition, None)
        if on_lost is not None:
            on_lost()

    def serves(self, partition: PartitionId, on_lost: Callable[[], None]) -> None:
        """``on_lost`` is called when this node, which leads the partition now, leads it no more."""
        self._on_lost[partition] = on_lost

    async def wait(self, seconds: float) -> None:
        """Until this node begins to lead a partition, for ``seconds`` at most."""
        await self._begun.wait(seconds)
