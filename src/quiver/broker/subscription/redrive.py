"""Redrive: sends dead letters back to their topic, or to another one.

The dead letters of a subscription are a queue. Each step leases some of them, stores them in their
target topic, and acknowledges them. A letter that returns to its topic is delivered only to the
subscription that failed with it. It keeps its first identity. It carries a dedup id made of its place
among the dead letters, so a crash in between does not store it twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from quiver.aio import TaskSet
from quiver.broker.delivery.partition_delivery import PartitionDelivery, Portion
from quiver.broker.remote.partition_router import PartitionRouter
from quiver.broker.subscription.subscription import Subscription
from quiver.broker.topics.catalog import TopicCatalog
from quiver.errors import InvalidRequest, RequestTimeout
from quiver.model.filter import Filter
from quiver.model.ids import Microseconds, Offset, PartitionIndex
from quiver.model.key_hash import KeyRouter
from quiver.model.message import time_us_of
from quiver.model.message_id import MessageId

STEP_MAX = 10_000
_STEP_BYTES_MAX = 16 << 20
_VISIBILITY_US = 60_000_000
_CONSUMER = "redrive"
_KEPT = ("key", "payload", "headers", "event_time", "priority")
_READY = ("ready",)


class Redriven(msgspec.Struct, frozen=True):
    """What a step did, or what a dry run found."""

    count: int
    by_topic: dict[str, int]


class Redrive:
    """``to``: the topic to send to, instead of each letter's own, which must be one that ``may_return``.

    ``moves`` holds what is under way: letters that are being sent are also acknowledged, whatever
    becomes of the caller.
    """

    def __init__(
        self,
        topics: TopicCatalog,
        router: PartitionRouter,
        may_return: Callable[[str], bool],
        moves: TaskSet,
    ) -> None:
        self._topics = topics
        self._router = router
        self._may_return = may_return
        self._moves = moves

    async def count(
        self, letters: Subscription, condition: Filter | None, to: str | None
    ) -> Redriven:
        """What a redrive would do if nothing else happened."""
        found: Counter[str] = Counter()
        for delivery in letters.deliveries.values():
            await delivery.state.catch_up_to(delivery.machine, delivery.state.data.next_offset)
            left = await delivery.matching(condition, _READY)
            while left:
                entries, read, left = await delivery.fetch(left, _STEP_BYTES_MAX)
                if not read:
                    break
                for entry in entries:
                    found.update(self._topics_of(entry.record_batch(), to))
        return Redriven(found.total(), dict(found))

    async def step(
        self, letters: Subscription, condition: Filter | None, to: str | None, limit: int
    ) -> Redriven:
        """Send up to ``limit`` dead letters, durably; none if none is left."""
        if not 1 <= limit <= STEP_MAX:
            raise InvalidRequest(f"a redrive step takes 1 to {STEP_MAX:,} messages, not {limit:,}")
        sent: Counter[str] = Counter()
        for delivery in letters.deliveries.values():
            await delivery.state.catch_up_to(delivery.machine, delivery.state.data.next_offset)
            chosen = await delivery.matching(condition, _READY, limit - sent.total())
            if not chosen:
                continue
            portion = await delivery.take(
                len(chosen), _STEP_BYTES_MAX, _CONSUMER, _VISIBILITY_US, chosen
            )
            if portion is None:
                continue
            sent.update(await asyncio.shield(self._moves.start(self._move(delivery, portion, to))))
            if sent.total() >= limit:
                break
        return Redriven(sent.total(), dict(sent))

    async def _move(
        self, delivery: PartitionDelivery, portion: Portion, to: str | None
    ) -> Counter[str]:
        """Store the letters, then acknowledge them; how many in each topic."""
        try:
            async with asyncio.timeout(_VISIBILITY_US / 1e6):
                sent = await self._send(portion, to)
        except BaseException as error:
            delivery.requeue(portion.taken.lease_id, portion.taken.offsets)
            if isinstance(error, TimeoutError):
                raise RequestTimeout("the dead letters could not be stored in time") from None
            raise
        _, stored = delivery.ack(portion.taken.lease_id, portion.taken.offsets)
        if stored is not None:
            await asyncio.shield(stored)
        return sent

    async def _send(self, portion: Portion, to: str | None) -> Counter[str]:
        """Store the letters where they shall go; how many in each topic."""
        letters = pa.concat_tables(
            [pa.Table.from_batches([entry.record_batch()]) for entry in portion.entries],
            promote_options="default",
        ).combine_chunks()
        rows = letters.to_batches()[0]
        place = f"{portion.topic_number}/{portion.partition}"
        again = _again(rows, [f"redrive/{place}/{one}" for one in portion.taken.offsets], to)
        targets = self._targets(rows, to)
        waiting = []
        for (topic, index), chosen in targets.items():
            part = again.take(pa.array(chosen))
            waiting.append(self._router.store(self._topics.get(topic), index, part))
        await asyncio.gather(*waiting)
        return Counter(self._topics_of(rows, to))

    def _targets(self, rows: pa.RecordBatch, to: str | None) -> dict[tuple[str, int], list[int]]:
        """Which rows go to which partition: by key, else to the one of the same number."""
        keys = rows.column("key").to_pylist() if "key" in rows.schema.names else [None] * len(rows)
        origins = [0] * len(rows)
        if "origin_partition" in rows.schema.names:
            origins = rows.column("origin_partition").fill_null(0).to_pylist()
        places: dict[tuple[str, int], list[int]] = defaultdict(list)
        routers: dict[str, KeyRouter] = {}
        for row, (topic, key, origin) in enumerate(
            zip(self._topics_of(rows, to), keys, origins, strict=True)
        ):
            starts = self._topics.get(topic).first_hashes
            if topic not in routers:
                routers[topic] = KeyRouter.of(starts)
            index = origin % len(starts) if key is None else routers[topic].partition(key)
            places[topic, index].append(row)
        return places

    def _topics_of(self, rows: pa.RecordBatch, to: str | None) -> list[str]:
        """The topic that each dead letter goes to."""
        if to is not None:
            return [to] * len(rows)
        if "origin_topic" not in rows.schema.names or rows.column("origin_topic").null_count:
            raise InvalidRequest(
                "some of these messages are not dead letters: name the topic to send them to"
            )
        topics: list[str] = rows.column("origin_topic").to_pylist()
        for topic in set(topics):
            if not self._may_return(topic):
                raise InvalidRequest(
                    f"some of these messages come from {topic[:200]!r}, which their subscription "
                    "does not read: name the topic to send them to"
                )
        return topics


def _again(rows: pa.RecordBatch, ids: list[str], to: str | None) -> pa.RecordBatch:
    """The letters as the messages they were; on the way back only for who failed with them."""
    columns = {name: rows.column(name) for name in _KEPT if name in rows.schema.names}
    columns["dedup_id"] = pa.array(ids, pa.string())
    columns["origin_identity"] = _identities(rows)
    if to is None:
        columns["origin_subscription"] = rows.column("origin_subscription")
    return pa.RecordBatch.from_pydict(columns)


def _identities(rows: pa.RecordBatch) -> pa.Array:
    """What identified each message first; of a letter that does not say so, the id that it had."""
    if "origin_identity" in rows.schema.names and not rows.column("origin_identity").null_count:
        return rows.column("origin_identity")
    return pa.array(
        [row.get("origin_identity") or _first_id(row) for row in rows.to_pylist()], pa.string()
    )


def _first_id(row: dict[str, Any]) -> str | None:
    """Letters from before the column say where a message was; their dedup id has its topic's number."""
    if row.get("origin_time") is None or not (row.get("dedup_id") or "").startswith("dead/"):
        return None
    number, partition, offset = map(int, row["dedup_id"].rsplit("/", 3)[1:])
    return str(
        MessageId(
            append_time=Microseconds(time_us_of(row["origin_time"])),
            topic=number,
            partition=PartitionIndex(partition),
            offset=Offset(offset),
        )
    )
