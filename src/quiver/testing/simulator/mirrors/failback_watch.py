"""Writes down the failbacks of a simulated cluster, as the records of its topics tell of them.

When a topic becomes a copy, all its replicas in sync are looked at: none may have what was kept aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import msgpack

from quiver.broker.partition.leadership import DATA
from quiver.broker.partition.replicated_placement import partition_id
from quiver.broker.topics.catalog import TopicRecord
from quiver.cluster.metadata.store import Entry
from quiver.cluster.records import PartitionId, PartitionRecord, decode, partition_key
from quiver.errors import CorruptLog
from quiver.testing.memory_store import MemoryStore
from quiver.testing.simulator.loop import VirtualLoop
from quiver.testing.simulator.mirrors.history import (
    Failback,
    FailbackPart,
    MirrorHistory,
    last_of,
)
from quiver.testing.simulator.mirrors.node import MirrorNode, marks_of

_TOPICS = "topics/"


class FailbackWatch:
    def __init__(
        self,
        store: MemoryStore,
        nodes: Sequence[MirrorNode],
        history: MirrorHistory,
        loop: VirtualLoop,
        on_step: Callable[[], None],
    ) -> None:
        """``on_step`` is called whenever a failback is further."""
        self._store = store
        self._nodes = nodes
        self._history = history
        self._loop = loop
        self._on_step = on_step
        self._before: dict[str, TopicRecord] = {}

    async def run(self) -> None:
        position = 0
        while True:
            await self._store.wait_beyond(position)
            batches, position = self._store.changes_after(_TOPICS, position)
            for change in (change for batch in batches for change in batch.changes):
                if isinstance(change, Entry):
                    record = msgpack.decode(change.value, type=TopicRecord)
                    await self._note(self._before.get(record.name), record)
                    self._before[record.name] = record

    async def _note(self, before: TopicRecord | None, record: TopicRecord) -> None:
        failbacks, now = self._history.failbacks, self._loop.time()
        if record.failback is not None:
            self._on_step()
            known = failbacks.get(record.name)
            if known is None:
                known = Failback(number=record.number, aside=record.failback.aside, began=now)
                failbacks[record.name] = known
            self._note_parts(known, record)
        elif before is not None and before.failback is not None and record.origin is not None:
            failbacks[record.name].finished = now
            failbacks[record.name].letters = self._letters()
            await self._note_finish(failbacks[record.name], record)

    def _note_parts(self, known: Failback, record: TopicRecord) -> None:
        """What each partition has from its cut on, as soon as that is said to be kept."""
        assert record.failback is not None
        for index, part in enumerate(record.failback.partitions):
            place = PartitionId(f"{record.name}/{index}")
            if part is None or not part.is_kept:
                known.parts.pop(place, None)
            elif place not in known.parts:
                logs = self._history.logs.get(place, [])
                tail = last_of(logs).between(part.cut, part.end)
                begin = tail[0][0] if tail else part.end
                older = {mark for log in logs for mark in log.between(part.cut, begin)}
                known.parts[place] = FailbackPart(
                    cut=part.cut, end=part.end, tail=tail, older=sorted(older)
                )

    async def _note_finish(self, known: Failback, record: TopicRecord) -> None:
        for place, part in sorted(known.parts.items()):
            partition = partition_id(record, int(place.rpartition("/")[2]))
            entry = await self._store.get(partition_key(partition))
            assert entry is not None
            led = decode(entry.value, PartitionRecord)
            part.epoch = led.epoch
            known.left += self._left(partition, led.in_sync, part)

    def _letters(self) -> dict[PartitionId, int]:
        """Where the topics of dead letters end."""
        ends: dict[PartitionId, int] = {}
        for node in self._nodes:
            for replica in node.cluster.replica_manager.replicas if node.cluster else ():
                end = replica.logs[DATA].log.next_offset
                ends[replica.partition] = max(ends.get(replica.partition, 0), end)
        return ends

    def _left(
        self, partition: PartitionId, in_sync: Iterable[str], part: FailbackPart
    ) -> list[str]:
        """The replicas in sync that have something of the tail."""
        found = []
        for node in self._nodes:
            replica = node.cluster.replica_manager.replica(partition) if node.cluster else None
            if replica is None or node.name not in in_sync:
                continue
            try:
                held = set(marks_of(replica.logs[DATA].log))
            except CorruptLog:
                continue  # it has not been found yet
            if left := held.intersection(part.tail):
                found.append(
                    f"{node.name} has {len(left)} entries of {partition} from {part.cut} on"
                )
        return found
