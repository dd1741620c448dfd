"""The cluster that was copied, once its copy was promoted without it: it becomes a copy itself, by failback.

It may be promoted again later. Its users from then on are others, with a history of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

from msgspec.structs import replace

from quiver import protocol
from quiver.broker.partition.leadership import DATA
from quiver.cluster.control.admin import place_of
from quiver.cluster.records import NodeId, PartitionId, PartitionRecord
from quiver.model.mirror.settings import MirrorSettings
from quiver.testing.simulator.broker_simulation import _TOPICS, BrokerSimulation, _logical
from quiver.testing.simulator.history import Delivery
from quiver.testing.simulator.mirrors.copying import CopyingCluster
from quiver.testing.simulator.mirrors.deals import visible
from quiver.testing.simulator.mirrors.failback_watch import FailbackWatch
from quiver.testing.simulator.mirrors.history import (
    ASIDE,
    DEALS,
    LOOSE,
    LedLog,
    MirrorHistory,
    Visible,
)
from quiver.testing.simulator.mirrors.node import marks_of
from quiver.testing.simulator.mirrors.target import TargetCluster, queues_of
from quiver.testing.simulator.simulation import TOPIC

BACK = "us"
"""The mirror by which it copies what was its copy."""
_PUBLISHERS_FROM = 4_000_000
_NEVER = 1e9
_EMPTIED = "delete the topic"
"""What a failback says of a log that retention has emptied: it is for an operator."""


class FormerSource(CopyingCluster):
    _where = "back"

    def __init__(
        self,
        source: BrokerSimulation,
        target: TargetCluster,
        rng: Random,
        on_step: Callable[[], None],
    ) -> None:
        whole = source.history
        assert isinstance(whole, MirrorHistory)
        self._whole = whole
        self._target = target
        self._rng, self._settings, self._loop = rng, source._settings, source._loop
        self._network, self._store, self._outage = source._network, source._store, source._outage
        self._nodes, self._logs = source._nodes, source._logs  # type: ignore[assignment]
        self._partitions, self._consumers, self._producers, self._leases = [], [], [], []
        self._ids = count(_PUBLISHERS_FROM)
        self.faults = source.faults
        # While it lasts, the logs are those of all the time.
        self.story = MirrorHistory(logs=whole.copied, copied=whole.logs)
        self.history = self.story.target
        self.history.queues = queues_of(whole.queues)
        watch = FailbackWatch(self._store, self._nodes, whole, self._loop, on_step)
        self._loop.create_task(watch.run())

    async def fail_back(self) -> None:
        """Let it be a copy, and return when it is one."""
        addresses = ",".join(node.name for node in self._target._nodes)
        # By its name, a topic is refused that is still a copy there, as an operator is told.
        deals = DEALS if DEALS in await self._promoted_there() else f"{DEALS}*"
        settings = MirrorSettings(
            source=f"quiver://{addresses}",
            topics=[f"{TOPIC}*", deals],
            with_subscriptions=True,
            failback=True,
        )
        await self._insist(
            self._client("operator-back"), protocol.CreateMirror(name=BACK, settings=settings)
        )
        self._loop.create_task(self._sample())

    async def unfinished(self) -> str | None:
        """A topic that is no copy yet, and can become one."""
        records = await self.topic_records()
        for name in await self._promoted_there():
            record = records.get(name)
            if record is None or record.origin is not None or self._is_refused(name):
                continue
            if record.promoted_from is None:
                what = record.failback or "its failback has not begun"
                return f"{name} is no copy yet: {what} {self._errors()}"
        return None

    async def _promoted_there(self) -> list[str]:
        """The topics that were promoted in the other cluster, and may have their source follow."""
        here, there = await self.topic_records(), await self._target.topic_records()
        return [
            name
            for name, copy in sorted(there.items())
            if copy.promoted_from is not None
            and name in here
            and here[name].splits == copy.splits[: len(here[name].splits)]
        ]

    def _is_refused(self, topic: str) -> bool:
        """Whether retention has emptied it."""
        return any(_EMPTIED in errors.get(topic, "") for errors in self._errors())

    def _errors(self) -> list[dict[str, str]]:
        """Why topics do not get on, by the word of each node."""
        return [
            running._failback.errors
            for node in self._nodes
            if node.cluster
            for running in node.mirrors.running
        ]

    async def visible_deals(self) -> list[Visible]:
        """What readers see of transactions here, there, and of what is kept aside."""
        known = self._whole.failbacks.get(DEALS)
        found = [await self._visible_in(cluster, DEALS) for cluster in (self, self._target)]
        if known is not None and any(one.cut < one.end for one in known.parts.values()):
            starts = {
                int(place.rpartition("/")[2]): part.cut for place, part in known.parts.items()
            }
            found.append(await self._visible_in(self, known.aside, starts))
        return found

    async def _visible_in(
        self, cluster: CopyingCluster, topic: str, starts: dict[int, int] | None = None
    ) -> Visible:
        client = cluster._client("reader")
        found: Visible = {}
        for partition in await cluster._records():
            name, _, index = place_of(partition)
            if name == topic:
                end = cluster._replicas(partition)[0].logs[DATA].log.next_offset
                start = (starts or {}).get(index, 0)
                place = PartitionId(f"{DEALS}/{index}")
                found[place] = await visible(client, _logical(partition), end, start)
        return found

    def _copied_topics(self) -> tuple[str, ...]:
        return tuple(topic for topic in (*_TOPICS, DEALS) if self._is_copy(topic))

    @property
    def is_copy_of_any(self) -> bool:
        return bool(self._copied_topics())

    def _is_copy(self, topic: str) -> bool:
        known = self._whole.failbacks.get(topic)
        return known is not None and known.finished < _NEVER

    # ------------------------------------------------------------------ the end

    async def _records(self) -> dict[PartitionId, PartitionRecord]:
        records = await super()._records()
        return {one: record for one, record in records.items() if place_of(one)[0] != LOOSE}

    async def _collect(self) -> None:
        """Besides what it has: what was kept aside, and where the other cluster's logs begin."""
        await super()._collect()
        returned = self._copied_topics()
        asides = [self._whole.failbacks[topic].aside for topic in returned]
        for partition in await self._records():
            if place_of(partition)[0] in asides:
                self._note_kept(partition)
        for copies in (self.history.copies, self.history.states):
            for place in [one for one in copies if one.split("/")[0] not in returned]:
                del copies[place]
        self.story.source_starts = await self._target.starts()

    def _note_kept(self, partition: PartitionId) -> None:
        log = self._replicas(partition)[0].logs[DATA].log
        known = LedLog(node=NodeId(""), epoch=0, at=self._loop.time(), found=0, marks=marks_of(log))
        logical = _logical(partition)
        self._whole.kept[logical] = known
        self._whole.kept_values[logical] = tuple(
            (offset, value) for offset, _, value in self._values_of(log, DATA)
        )

    def _read_letters(self, partition: PartitionId) -> None:
        """Those of messages that came after their topic was a copy."""
        for offset, letter in self._letters_in(partition):
            known = self._whole.failbacks.get(_topic(letter.partition))
            if known is not None and offset >= known.letters.get(partition, 0):
                self.history.letters.append(letter)

    def end_eras(self) -> None:
        """What was seen of a topic before it was a copy is not compared with what is seen after.

        The last that is done: everything else has been collected.
        """
        whole, back = self._whole, self.story
        returned = self._copied_topics()
        back.logs = {
            place: logs for place, logs in whole.copied.items() if _topic(place) in returned
        }
        back.copied, back.gaps = {}, whole.gaps
        for topic in returned:
            self._end_era(topic)
        users, there = self.history, whole.target
        catalog = self._target._nodes[0].broker.leaders.catalog
        whole.followed = [name for name in whole.queues if catalog.has(name)]
        users.deliveries = [
            one
            for one in users.deliveries
            if _topic(one.partition) in returned and one.queue in whole.followed
        ]
        whole.deliveries = [
            one
            for one in whole.deliveries
            if ASIDE not in one.partition and not self._came_after_the_cut(one)
        ]
        known = set(users.letters)
        whole.letters = [one for one in whole.letters if one not in known]
        back.queues, back.sends = there.queues, there.sends
        back.settlements, back.letters = there.settlements, there.letters
        back.finished_before = [
            (one.queue, one.partition, offset)
            for one in whole.settlements
            if one.kind == "ack"
            for offset in one.offsets
            if offset < self._cut(one.partition)
        ]
        back.finished_before += [
            (one.queue, one.partition, one.offset)
            for one in whole.letters
            if one.offset < self._cut(one.partition)
        ]
        users.elsewhere = [
            (one.queue, one.partition, one.offset) for one in (*whole.deliveries, *there.deliveries)
        ]
        whole.back = back

    def _end_era(self, topic: str) -> None:
        whole, known = self._whole, self._whole.failbacks[topic]
        for place, part in known.parts.items():
            # What retention removed before it was copied is here alone.
            begin = min(log.marks[0][0] if log.marks else log.found for log in whole.copied[place])
            self.story.copied[place] = [
                replace(
                    log,
                    marks=[mark for mark in log.marks if mark[0] >= begin],
                    own=[one for one in log.own if one >= part.cut],
                )
                for log in whole.logs[place]
                if log.epoch >= part.epoch
            ]
        whole.reads = [
            read
            for read in whole.reads
            if _topic(read.partition) != topic or read.ended < known.began
        ]
        for place in [one for one in whole.copies if _topic(one) == topic]:
            del whole.copies[place]

    def _came_after_the_cut(self, one: Delivery) -> bool:
        """Of a subscription that the other cluster does not have: it delivers what follows the cut."""
        known = self._whole.failbacks.get(_topic(one.partition))
        return (
            known is not None
            and one.ended >= known.finished
            and one.offset >= self._cut(one.partition)
        )

    def _cut(self, partition: PartitionId) -> int:
        known = self._whole.failbacks.get(_topic(partition))
        part = known.parts.get(partition) if known is not None else None
        return part.cut if part is not None else 0


def _topic(partition: PartitionId) -> str:
    return partition.rpartition("/")[0]
