"""Two clusters go on taking turns: after a promote back the other one follows, is promoted, and is followed.

All that is about the first turns has been collected by then. Nobody consumes any more. What is published
before each turn is known, so that what each cluster has afterwards can be compared, entry by entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

from quiver import protocol
from quiver.broker.partition.leadership import DATA
from quiver.cluster.control.admin import place_of
from quiver.cluster.records import PartitionId
from quiver.errors import QuiverError, ReadOnlyTopic
from quiver.log.partition_log import PartitionLog
from quiver.testing.simulator.broker_simulation import _LATER
from quiver.testing.simulator.clients import Producer
from quiver.testing.simulator.history import History
from quiver.testing.simulator.mirrors.copying import CopyingCluster
from quiver.testing.simulator.mirrors.former_source import FormerSource
from quiver.testing.simulator.mirrors.history import Mark, Turn
from quiver.testing.simulator.mirrors.node import marks_of
from quiver.testing.simulator.mirrors.target import MIRROR, TargetCluster
from quiver.testing.simulator.simulation import TOPIC, entries_of

_PUBLISHERS_FROM = 5_000_000
_PUBLISH_SECONDS = 20.0
_TURN_SECONDS_MAX = 180.0
_STRIKES_MAX = 3


class Turns:
    """``run`` once; what came of it is in ``done``."""

    def __init__(
        self, first: FormerSource, second: TargetCluster, rng: Random, say: Callable[[str], None]
    ) -> None:
        self.done: list[Turn] = []
        self.trouble: list[str] = []
        self._first, self._second = first, second
        self._rng, self._say = rng, say
        self._ids = count(_PUBLISHERS_FROM)
        self._topics: list[str] = []

    async def run(self) -> None:
        records = await self._first.topic_records()
        self._topics = [
            topic
            for topic in (TOPIC, _LATER)
            if topic in self._first.story.promotions and records[topic].promoted_from is not None
        ]
        if not self._topics:
            return
        sweeping = self._first._loop.create_task(self._second._sweep())
        if await self._second_follows() and await self._first_follows():
            self._say("both have taken their turns")
        sweeping.cancel()

    async def _second_follows(self) -> bool:
        """The cluster that was promoted once becomes a copy again."""
        records = await self._second.topic_records()
        is_fenced = any(records[topic].moved_to for topic in self._topics)
        if not (is_fenced or await self._publish(self._second)):
            return False
        if not await self._publish(self._first):
            return False
        self._say("the other cluster is to follow again")
        before = await self._marks(self._second)
        await self._alter(failback=True)
        return await self._turned("the second cluster", self._second, self._first, before)

    async def _first_follows(self) -> bool:
        """It is promoted again, with or without its source, which then follows for the second time."""
        fences = self._rng.random() < 0.4
        if not fences:
            await self._alter(paused=True)
        if not await self._publish(self._first):
            return False
        before = await self._marks(self._first)
        self._say(f"the other cluster is promoted again, {'fenced' if fences else 'not fenced'}")
        await self._promote(fences=fences)
        await self._alter(paused=False)
        if not await self._publish(self._second):
            return False
        return await self._turned("the first cluster", self._first, self._second, before)

    # ------------------------------------------------------------------ operators and publishers

    async def _alter(self, **changes: Any) -> None:
        request = protocol.AlterMirror(name=MIRROR, changes=changes)
        await self._second._insist(self._second._client("operator"), request)

    async def _promote(self, *, fences: bool) -> None:
        client = self._second._client("operator")
        request = protocol.PromoteTopics(topics=self._topics, fence=fences, wait_ms=20_000)
        while any(one.origin is not None for one in await self._records(self._second)):
            try:
                await client.ask_any(request, 90.0)
            except QuiverError:
                await client.rest()

    async def _publish(self, cluster: CopyingCluster) -> bool:
        """Publish something to each partition; whether all of it was confirmed."""
        for place in sorted(await self._marks(cluster)):
            producer = Producer(
                cluster._client("turner"),
                place,
                self._ids,
                History(),
                pause_s=(0.0, 0.0),
                patience_s=_PUBLISH_SECONDS,
            )
            if not await producer.send_one():
                self.trouble.append(f"nothing can be published to {place} before a turn")
                return False
        return True

    async def _strike(self) -> None:
        """Hurt nodes of both clusters while they turn."""
        for _ in range(self._rng.randint(0, _STRIKES_MAX)):
            await asyncio.sleep(self._rng.uniform(0.1, 2.0))
            cluster = self._rng.choice((self._first, self._second))
            node = self._rng.choice(cluster._nodes)
            self._rng.choice((cluster.faults._pause_one, cluster.faults._crash_one))(node)
        await asyncio.sleep(self._rng.uniform(0.1, 2.0))
        self._first.faults.heal()
        self._second.faults.heal()

    # ------------------------------------------------------------------ what comes of it

    async def _turned(
        self,
        name: str,
        follower: CopyingCluster,
        leader: CopyingCluster,
        before: dict[PartitionId, list[Mark]],
    ) -> bool:
        await self._strike()
        deadline = follower._loop.time() + _TURN_SECONDS_MAX
        while what := await self._unfinished(follower, leader):
            if follower._loop.time() >= deadline:
                self.trouble.append(f"{name} does not follow: {what}")
                return False
            await asyncio.sleep(0.2)
        turn = Turn(follower=name, before=before)
        turn.here, turn.there = await self._marks(follower), await self._marks(leader)
        turn.own_here = await self._each(follower, _own_of)
        turn.own_there = await self._each(leader, _own_of)
        for record in await self._records(follower):
            if record.diverged_to:
                kept = await self._each(follower, marks_of, [record.diverged_to])
                for place, marks in kept.items():
                    turn.kept[PartitionId(f"{record.name}/{place.rpartition('/')[2]}")] = marks
        turn.taken = await self._taken(follower)
        self.done.append(turn)
        return True

    async def _records(self, cluster: CopyingCluster) -> list[Any]:
        records = await cluster.topic_records()
        return [records[topic] for topic in self._topics]

    async def _unfinished(self, follower: CopyingCluster, leader: CopyingCluster) -> str | None:
        for record in await self._records(follower):
            if record.origin is None:
                return f"{record.name} is no copy: {record.failback}"
        here, there = await self._marks(follower), await self._marks(leader)
        for place, marks in there.items():
            if len(here.get(place, ())) < len(marks):
                return f"{place} has {len(here.get(place, ()))} of {len(marks)} entries"
        return None if len(here) >= len(there) else "a partition is not led"

    async def _taken(self, follower: CopyingCluster) -> list[str]:
        """Which partitions of a copy take a publish."""
        client, taken = follower._client("intruder"), []
        for place in sorted(await self._marks(follower)):
            producer = next(self._ids)
            try:
                await client.publish(place, producer, 0, (f"{producer}.0",))
                taken.append(place)
            except ReadOnlyTopic:
                pass
            except QuiverError:
                await client.rest()
        return [str(place) for place in taken]

    async def _marks(self, cluster: CopyingCluster) -> dict[PartitionId, list[Mark]]:
        return await self._each(cluster, marks_of)

    async def _each(
        self,
        cluster: CopyingCluster,
        look: Callable[[PartitionLog], list[Any]],
        topics: list[str] | None = None,
    ) -> dict[PartitionId, list[Any]]:
        """What there is to see in the log of each leader."""
        found, nodes = {}, {node.name: node for node in cluster._nodes if node.cluster is not None}
        for partition, record in (await cluster._records()).items():
            topic, _, index = place_of(partition)
            node = nodes.get(record.leader)
            if topic not in (topics or self._topics) or node is None or node.cluster is None:
                continue
            replica = node.cluster.replica_manager.replica(partition)
            if replica is not None:
                found[PartitionId(f"{topic}/{index}")] = look(replica.logs[DATA].log)
        return found


def _own_of(log: PartitionLog) -> list[int]:
    return list(_own(log))


def _own(log: PartitionLog) -> Iterator[int]:
    for entry in entries_of(log):
        if not entry.hops:
            yield entry.base_offset
