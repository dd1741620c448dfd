"""Nodes of two clusters in threads of this process, and what both sides have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import quiver
from quiver.model.batch import Bytes, StoredBatch
from quiver.model.envelope import entries_in
from quiver.protocol import FetchLog, LogFetched
from tests.aio import run
from tests.integration.client_node import ThreadNode
from tests.serving import eventually

Entry = tuple[int, int, int, bytes, bytes]


@contextmanager
def node(folder: Path) -> Iterator[ThreadNode]:
    running = ThreadNode(folder)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def _whole(body: Bytes) -> bytes:
    return bytes(body)


def _digest(body: Bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()


async def _entries(
    url: str, topic: str, partition: int, start: int, shown: Callable[[Bytes], bytes]
) -> list[Entry]:
    async with quiver.AsyncClient(url) as client:
        cluster = client.cluster
        found: list[Entry] = []
        offset = start
        while True:
            request = FetchLog(topic=topic, partition=partition, offset=offset, bytes_max=8 << 20)
            layout = await cluster.layout(topic)
            _, (reply, body) = await cluster.call(
                request,
                repeatable=True,
                about=topic,
                find_address=lambda layout=layout: (  # type: ignore[misc]
                    cluster.known_layout(topic) or layout
                ).address(partition),
            )
            assert isinstance(reply, LogFetched)
            entries = entries_in(body)
            if not entries:
                return found
            found += [_entry(one, shown(one.body)) for one in entries]
            offset = entries[-1].next_offset


def _entry(one: StoredBatch, body: bytes) -> Entry:
    return one.base_offset, one.count, one.append_time, bytes(one.head[48:]), body


def entries(url: str, topic: str, partition: int = 0) -> list[Entry]:
    """Everything stored of a partition: place, time, and the producer's bytes."""
    return run(_entries(url, topic, partition, 0, _whole))


def digests(url: str, topic: str, partition: int = 0, start: int = 0) -> list[Entry]:
    """The same from an offset on, with a digest for each body: what there is may be much."""
    return run(_entries(url, topic, partition, start, _digest), timeout_seconds=300)


def messages(client: quiver.Client, topic: str) -> list[tuple[str, bytes]]:
    """What readers see: ids and payloads."""
    reading = client.read(topic, start="earliest", end="latest")
    return [(one.id, one.payload) for one in reading.messages()]


def copied(client: quiver.Client, mirror: str, topic: str) -> Callable[[], bool]:
    """Whether the copy had everything when the source last answered."""

    def is_copied() -> bool:
        info = client.describe_mirror(mirror)
        found = [one for one in info.topics if one.name == topic]
        return bool(found and found[0].partitions) and all(
            part.lag_messages == 0 and part.source_offset is not None
            for part in found[0].partitions
        )

    return is_copied


def wait_same(source: str, target: str, topic: str, partitions: int = 1) -> None:
    """Wait until both clusters have the same entries in every partition."""

    def is_same() -> bool:
        with quiver.Client(target) as client:
            if topic not in {one.name for one in client.list_topics()}:
                return False
        return all(
            entries(source, topic, index) == entries(target, topic, index)
            for index in range(partitions)
        )

    eventually(is_same, f"{topic} is the same on both sides")


def gaps(client: quiver.Client) -> list[tuple[int, int]]:
    """The gaps in the first partitions of the mirror ``eu``."""
    return [
        (begin, end)
        for topic in client.describe_mirror("eu").topics
        for part in topic.partitions[:1]
        for begin, end in part.gaps
    ]


def is_gap_alerted(client: quiver.Client) -> bool:
    """Whether the node that is asked says that ``orders`` has a gap."""
    return ("mirror-gap", "orders") in {(one.rule, one.subject) for one in client.alerts().firing}
