"""A backup of a cluster, restored into a cluster: splits, offsets that do not begin at 0, a new leader."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import quiver
from quiver.backup.create import BackupWriter
from quiver.backup.manifest import Manifest, TopicBackup
from quiver.backup.nodes import Nodes
from quiver.backup.pace import Pace
from quiver.backup.place import BackupPlace, open_place
from quiver.backup.restore import Restored, Restorer
from quiver.model.clock import SystemClock
from tests.integration.cluster.nodes import Cluster, waited

T = TypeVar("T")
CLOCK = SystemClock()


async def taken(url: str, place: BackupPlace) -> Manifest:
    async with quiver.AsyncClient(url) as client:
        nodes = Nodes(client.cluster, CLOCK)
        created = await BackupWriter(nodes, place, Pace(CLOCK)).create()
    return created.manifest


async def restored(url: str, place: BackupPlace, manifest: Manifest, topic: str) -> Restored:
    async with quiver.AsyncClient(url) as client:
        restorer = Restorer(Nodes(client.cluster, CLOCK), place, Pace(CLOCK))
        return await restorer.restore(manifest, topics=[topic], with_tokens=False)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 120))


def without_first_chunks(topic: TopicBackup) -> TopicBackup:
    """As if retention had removed the oldest messages before the backup."""
    parts = [
        msgspec.structs.replace(
            part, chunks=part.chunks[1:], start_offset=part.chunks[1].base_offset
        )
        if len(part.chunks) > 1
        else part
        for part in topic.partitions
    ]
    return msgspec.structs.replace(topic, partitions=parts)


def test_a_topic_comes_back_with_its_splits_and_offsets(three: Cluster, tmp_path: Path) -> None:
    place = open_place(str(tmp_path / "backups"))
    name = "backed-up"
    with quiver.Client(three.url) as client:
        client.create_topic(name, partitions=2)
        client.create_subscription("backed-up-reader", [name], start="earliest")
        for number in range(30):
            client.publish(name, b"%d" % number * 50, key=f"key-{number % 7}")
        run(taken(three.url, place))
        client.split_partition(name, 0)
        for number in range(30, 60):
            client.publish(name, b"%d" % number * 50, key=f"key-{number % 7}")
        for message in client.receive("backed-up-reader", max_messages=10):
            message.ack()
        pending = _pending(client)
        manifest = run(taken(three.url, place))
        before = {(one.partition, one.offset): one.payload for one in _messages(client, name)}
        client.delete_topic(name)
        client.delete_subscription("backed-up-reader")
        topics = [without_first_chunks(one) for one in manifest.topics if one.info.name == name]
        cut = msgspec.structs.replace(manifest, topics=topics)
        starts = [part.start_offset for part in topics[0].partitions]
        assert max(starts) > 0
        done = run(restored(three.url, place, cut, name))
        assert (done.topics, done.subscriptions) == ([name], ["backed-up-reader"])
        assert done.renumbered == [name], "the number of a deleted topic is never used again"
        described = client.describe_topic(name)
        assert [one.start_offset for one in described.partitions] == starts
        assert described.partitions[2].parent == 0
        after = {(one.partition, one.offset): one.payload for one in _messages(client, name)}
        assert after == {
            place: payload for place, payload in before.items() if place[1] >= starts[place[0]]
        }
        waited(lambda: _pending(client) <= pending, "it is described")
        leader = three.leader(name, 0)
    three.kill(leader)
    with quiver.Client(three.url) as client:
        again = {(one.partition, one.offset): one.payload for one in _messages(client, name)}
        assert again == after, "the other replicas have it too"


def _pending(client: quiver.Client) -> int:
    info = client.describe_subscription("backed-up-reader")
    return (info.ready or 0) + (info.leased or 0) + (info.unseen or 0) + (info.delayed or 0)


def _messages(client: quiver.Client, topic: str) -> list[quiver.Message]:
    return list(client.read(topic, start="earliest", end="latest").messages())
