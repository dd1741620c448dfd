"""The delivery state of a mirrored partition: snapshots of the source take the place of what was there.

A snapshot counts only together with the messages that it speaks of, so it is taken in when these are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec.structs import replace
from pyroaring import BitMap64

from quiver.aio import finish
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.snapshot import DeliverySnapshot, decode_snapshot
from quiver.broker.partition.partition import Partition
from quiver.broker.subscription.catalog import SubscriptionCatalog
from quiver.broker.topics.catalog import TopicRecord
from quiver.errors import InvalidBatch, QuiverError
from quiver.model.ids import Offset

logger = structlog.get_logger()


class DeliveryCopy:
    def __init__(
        self, catalog: SubscriptionCatalog, record: TopicRecord, index: int, partition: Partition
    ) -> None:
        self._catalog = catalog
        self._record = record
        self._index = index
        self._partition = partition

    async def wait_for_data(self, offset: Offset, timeout_s: float) -> bool:
        """Wait until the messages before an offset are here; whether they are.

        ``LogFailed`` or ``NotLeader`` if they cannot come any more.
        """
        if self._partition.failure is not None:
            raise self._partition.failure
        if offset <= self._partition.committed.next_offset:
            return True
        return await self._partition.committed.wait_beyond(Offset(offset - 1), timeout_s)

    async def take_in(
        self, snapshots: Mapping[str, bytes], is_mirrored: Callable[[], bool]
    ) -> None:
        """Let subscriptions stand where they stand at the source. Durable on return.

        Subscriptions that are not copied here, or not yet, are left out. Nothing changes once the
        topic is mirrored no more.
        """
        machines = {}
        for one in self._catalog.on_topic(self._record.name):
            if one.mirror and one.name in snapshots:
                machine = DeliveryMachine(one.settings, Offset(0), one.name)
                machine.state.restore(_decoded(one.name, snapshots[one.name]))
                machines[one.number] = machine
        if not machines:
            return
        blank = {
            one.number: DeliveryMachine(
                one.settings, one.start(self._record, self._index), one.name
            )
            for one in self._catalog.on_topic(self._record.name)
        }
        state = await self._partition.open_state(blank)
        await finish(state.replace(machines, is_mirrored))  # memory and log must not differ

    def lacks(self, names: Iterable[str]) -> bool:
        """Whether one of these subscriptions of the source is not defined here yet."""
        return not all(self._catalog.has(name) for name in names)

    def copied(self) -> set[str]:
        """The subscriptions of this partition that are copied."""
        return {one.name for one in self._catalog.on_topic(self._record.name) if one.mirror}


def _decoded(name: str, data: bytes) -> DeliverySnapshot:
    """A snapshot without the transactions of the source: nobody here knows how they end.

    What waits for one is ready. A later snapshot has its outcome.
    """
    try:
        snapshot = decode_snapshot(data)
    except QuiverError:
        raise
    except Exception as error:
        raise InvalidBatch(f"the delivery state of {name!r} cannot be read") from error
    if snapshot is None:
        raise InvalidBatch(f"the delivery state of {name!r} is not intact")
    held = BitMap64.union(BitMap64(), *(one.offsets for one in snapshot.pending_acks))
    return replace(snapshot, pending_acks=[], ready=snapshot.ready | held) if held else snapshot
