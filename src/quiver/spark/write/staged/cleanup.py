"""The topics of sinks of earlier versions: staging topics of batches, and one of decisions each.

A query that is started again finishes its last batch, and removes them. Of a query that nobody starts
again they stay, until ``remove_sinks``.
"""

from __future__ import annotations

import contextlib
import time

import msgspec

from quiver.client import Client
from quiver.errors import TopicNotFound
from quiver.protocol import TopicInfo

SINKS = "spark-sink."
"""What the topics of all sinks begin with."""
STAGING_PARTITIONS = 4


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """The topics of one query or job."""

    name: str
    topics: list[str]
    idle_s: float
    """How long ago it last made a topic or decided anything."""


def staging_topic(sink: str, batch: int) -> str:
    return f"{sink}.{batch}"


def batch_of(sink: str, topic: str) -> int | None:
    """The batch that a staging topic of this sink is of; ``None`` if it is another's."""
    owner, _, batch = topic.rpartition(".")
    return int(batch) if owner == sink and batch.isdigit() else None


def remove_staging(client: Client, sink: str, below: int) -> None:
    """Remove the staging topics of batches before this one: they are decided and published."""
    for info in client.list_topics():
        batch = batch_of(sink, info.name) if _is_staging(info) else None
        if batch is not None and batch < below:
            remove_topic(client, info.name)


def sinks(client: Client) -> list[Sink]:
    """Every sink that there are topics of."""
    grouped: dict[str, list[TopicInfo]] = {}
    for info in client.list_topics():
        if info.name.startswith(SINKS):
            name = info.name.rpartition(".")[0] if _is_staging(info) else info.name
            grouped.setdefault(name, []).append(info)
    now_us = time.time_ns() // 1000
    return [
        Sink(
            name=name,
            topics=[info.name for info in infos],
            idle_s=max(0, now_us - max(_last_used_us(client, info) for info in infos)) / 1e6,
        )
        for name, infos in sorted(grouped.items())
    ]


def remove_sinks(client: Client, *, idle_s: float) -> list[Sink]:
    """Remove all of every sink that has been idle for so long: its query cannot go on after that."""
    removed = [sink for sink in sinks(client) if sink.idle_s >= idle_s]
    for sink in removed:
        for topic in sink.topics:
            remove_topic(client, topic)
    return removed


def remove_topic(client: Client, topic: str) -> None:
    with contextlib.suppress(TopicNotFound):
        client.delete_topic(topic)


def _is_staging(info: TopicInfo) -> bool:
    return info.name.startswith(SINKS) and len(info.partitions) == STAGING_PARTITIONS


def _last_used_us(client: Client, info: TopicInfo) -> int:
    """When it was made; of decisions, when the last was made."""
    if _is_staging(info):
        return info.created_us
    (partition,) = client.describe_topic(info.name).partitions
    start, end = partition.start_offset or 0, partition.next_offset or 0
    if start == end:
        return info.created_us
    with client.read(info.name, start=end - 1, end=end) as reader:
        return max((one.timestamp_us for one in reader.messages()), default=info.created_us)
