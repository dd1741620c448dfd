"""A cluster that copies another: those who use it, an operator who promotes, and how it comes to its end."""

from __future__ import annotations

import asyncio

from msgspec import msgpack
from msgspec.structs import replace

from quiver import protocol
from quiver.broker.partition.leadership import DATA, STATE
from quiver.broker.topics.catalog import TopicRecord
from quiver.cluster.control.admin import place_of
from quiver.cluster.records import PartitionId
from quiver.errors import QuiverError, TopicNotFound
from quiver.model.subscription import SubscriptionSettings
from quiver.testing.simulator.broker_simulation import (
    _TOPICS,
    _TRIMMED,
    BrokerSimulation,
    _logical,
)
from quiver.testing.simulator.clients import Producer
from quiver.testing.simulator.consumers import Consumer
from quiver.testing.simulator.loop import Process
from quiver.testing.simulator.mirrors.history import (
    DEAD_LETTERS,
    DEALS,
    LOOSE,
    MirrorHistory,
    Promotion,
    last_of,
)
from quiver.testing.simulator.mirrors.node import MirrorNode
from quiver.testing.simulator.simulation import TOPIC

_COPIED_SECONDS_MAX = 150.0
"""A broken copy asks again after half a minute, and calls to the source wait that long too."""
_DRAIN_SECONDS_MAX = 60.0
_SETTLE_SECONDS_MAX = 30.0
_SAMPLE_SECONDS = 0.1
_PROMOTE_SECONDS = 40.0


class CopyingCluster(BrokerSimulation):
    """``story`` is the history of what it copies, and ``history`` what its own clients saw."""

    story: MirrorHistory
    _nodes: list[MirrorNode]  # type: ignore[assignment]
    has_deals = False
    """Whether there is a topic with transactions."""
    _where = "there"
    """What its clients are called by."""

    def _copied_topics(self) -> tuple[str, ...]:
        """Those that it is to copy, promoted or not."""
        return (*_TOPICS, LOOSE, DEALS) if self.has_deals else (*_TOPICS, LOOSE)

    def start_users(self, queues: dict[str, SubscriptionSettings]) -> None:
        for queue, settings in queues.items():
            client = self._client(f"{queue}-{self._where}")
            consumer = Consumer(client, queue, settings, self._leases, self.history)
            self._consumers.append(consumer)
            self._loop.start(Process(client.name), consumer.run())
        if TOPIC in self._copied_topics():
            self._start_publisher()

    def _start_publisher(self) -> None:
        """One that is refused as long as the topic is a copy."""
        producer = Producer(
            self._client(f"publisher-{self._where}"),
            PartitionId(f"{TOPIC}/0"),
            self._ids,
            self.history,
            pause_s=(0.1, 0.8),
            patience_s=1.0,
        )
        self._producers.append(producer)
        self._loop.start(Process(f"publisher-{self._where}"), producer.run())

    # ------------------------------------------------------------------ an operator

    async def _sample(self) -> None:
        """Write down what the mirror is said to have copied of acknowledgements."""
        while not self.story.promotions:
            now = self._loop.time()
            for node in self._nodes:
                shown = node.broker.mirrors.progress.values() if node.cluster is not None else ()
                for one in shown:
                    lag_s, place = (
                        one.described().state_lag_s,
                        PartitionId(f"{one.topic}/{one.index}"),
                    )
                    if lag_s is not None:
                        known = self.story.counted.get(place, 0.0)
                        self.story.counted[place] = max(known, now - lag_s)
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def promote(self, *, fence: bool, wait_s: float) -> None:
        """Promote all that is copied, until it is answered."""
        client, promotions = self._client("operator"), self.story.promotions
        request = protocol.PromoteTopics(
            topics=[f"{TOPIC}*", DEALS], fence=fence, wait_ms=round(wait_s * 1000)
        )
        while True:
            for topic in self._copied_topics():
                if topic != LOOSE:
                    promotions.setdefault(topic, Promotion(invoked=self._loop.time()))
            try:
                answer = await client.ask_any(request, _PROMOTE_SECONDS)
            except TopicNotFound:
                if self._promoted():
                    return  # an answer was lost
                await client.rest()
            except QuiverError:
                await client.rest()
            else:
                assert isinstance(answer.reply, protocol.TopicsPromoted)
                for done in answer.reply.topics:
                    known = promotions.get(done.name)
                    if known is None:
                        continue  # it was no copy
                    known.ended = self._loop.time()
                    known.is_fenced, known.is_complete = done.is_fenced, done.is_complete
                return

    def _promoted(self) -> list[str]:
        """The topics that some node knows to be promoted."""
        return sorted(
            {
                one.name
                for node in self._nodes
                if node.cluster is not None
                for one in node.broker._topic_catalog.topics()
                if one.promoted_from is not None
            }
        )

    async def topic_records(self) -> dict[str, TopicRecord]:
        entries = (await self._store.list("topics/")).entries
        return {
            (one := msgpack.decode(entry.value, type=TopicRecord)).name: one for entry in entries
        }

    # ------------------------------------------------------------------ the end

    async def settle_copy(self, *, drains: bool = True) -> None:
        """Wait until everything is copied, and what was promoted is finished by its consumers."""
        await self._wait_until_none(self._starting, _SETTLE_SECONDS_MAX)
        promoted = [topic for topic in self._promoted() if topic in self.story.promotions]
        for topic in set(self.story.promotions) - set(promoted):
            del self.story.promotions[topic]
        await self._wait_until_none(self._uncopied, _COPIED_SECONDS_MAX)
        self._note_broken()
        if promoted and drains:
            await self._drain(promoted)
        for consumer in self._consumers:
            consumer.stop()
        for producer in self._producers:
            producer.stopping = True
        await self._wait_until_none(self._unsettled, _SETTLE_SECONDS_MAX)
        await self._collect()
        clocks = [node.clock.extremes_us for node in self._nodes]
        self.history.clocks_s = (
            min(least for least, _ in clocks) / 1e6,
            max(most for _, most in clocks) / 1e6,
        )

    async def _drain(self, promoted: list[str]) -> None:
        catalog = self._nodes[0].broker.leaders.catalog
        self.story.queues_copied = [name for name in self.story.queues if catalog.has(name)]
        for name in self.story.queues_copied:
            queue = self.story.queues[name]
            topics = tuple(topic for topic in queue.topics if topic in promoted)
            self.history.queues[name] = replace(queue, topics=topics)
        self._partitions = [PartitionId(f"{topic}/0") for topic in promoted]
        await self._publish_last()
        for consumer in self._consumers:
            consumer.is_hasty = True
        await self._wait_until_none(self._pending, _DRAIN_SECONDS_MAX)

    async def _starting(self) -> str | None:
        starting = [node.name for node in self._nodes if node.cluster is None]
        return f"{starting} do not start" if starting else None

    async def _uncopied(self) -> str | None:
        """What of the source is not in the copy yet, nor known to have diverged."""
        promotions = self.story.promotions
        broken = self._broken()
        for partition, logs in self.story.logs.items():
            topic, source = partition.rpartition("/")[0], last_of(logs)
            if topic not in self._copied_topics() or topic in promotions:
                continue
            copied = self.story.copied.get(partition)
            if copied is None:
                return f"{partition} is not copied at all"
            copy = last_of(copied)
            if partition in broken:
                if topic != LOOSE or copy.marks == source.marks[: len(copy.marks)]:
                    return f"{partition} is no different, and {broken[partition]}"
            elif topic == LOOSE and copy.marks != source.marks[: len(copy.marks)]:
                return f"{partition} has diverged, and nobody says so"
            elif copy.end != source.end:
                return f"{partition} is copied to {copy.end} of {source.end}"
        return None

    def _broken(self) -> dict[PartitionId, str]:
        return {
            PartitionId(f"{one.topic}/{one.index}"): one.error
            for node in self._nodes
            if node.cluster is not None
            for one in node.broker.mirrors.progress.values()
            if one.is_broken
        }

    def _note_broken(self) -> None:
        self.story.diverged = self._broken()

    async def collect_again(self) -> None:
        """What was on its way when it was collected first may have come since."""
        self.history.letters.clear()
        await self._collect()

    async def _collect(self) -> None:
        for partition in await self._records():
            logical, topic = _logical(partition), place_of(partition)[0]
            data, state = self._copies(partition, DATA), self._copies(partition, STATE)
            if topic in _TOPICS and topic != _TRIMMED:
                self.history.copies[logical] = data
            else:
                self.history.states[PartitionId(f"{logical}/{DATA}")] = data
            if topic.endswith(DEAD_LETTERS):
                self._read_letters(partition)
            self.history.states[logical] = state
