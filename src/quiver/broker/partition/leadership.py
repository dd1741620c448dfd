"""What this node leads: who waits for a partition, or serves it, is told when that changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from quiver.aio import Signal
from quiver.broker.partition.listener import PartitionListener
from quiver.cluster.metadata.store import Delete, Entry
from quiver.cluster.records import PARTITIONS, NodeId, PartitionId, PartitionRecord, decode
from quiver.cluster.replica.leader_driver import LeaderDriver
from quiver.cluster.replica.replica import Replica
from quiver.log.group_commit import Committed
from quiver.model.clock import Clock

DATA, STATE = 0, 1
"""Which of a partition's logs is which."""

logger = structlog.get_logger()


class Leadership:
    """``on_lead`` is called when this node begins to lead a partition."""

    def __init__(self, node: NodeId, clock: Clock, on_lead: Callable[[PartitionId], None]) -> None:
        self.version = 0
        """Grows whenever this node may lead something else than before."""
        self._node = node
        self._on_lead = on_lead
        self._served: dict[PartitionId, PartitionListener] = {}
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
        listener = self._served.pop(partition, None)
        if listener is not None:
            listener.lost()

    def stored(self, partition: PartitionId, log: int, committed: Committed) -> None:
        """One commit of a log. What a follower copies was counted where it was published."""
        listener = self._served.get(partition)
        if listener is not None:
            (listener.stored if log == DATA else listener.state_stored)(committed)

    def serves(self, partition: PartitionId, listener: PartitionListener) -> None:
        """This node leads the partition; the listener is told for as long as it does."""
        self._served[partition] = listener

    async def wait(self, seconds: float) -> None:
        """Until this node begins to lead a partition, for ``seconds`` at most."""
        await self._begun.wait(seconds)
