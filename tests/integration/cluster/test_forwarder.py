"""A forwarder in front of three nodes: its clients reach nothing else, and miss nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

import quiver
from quiver import AsyncClient
from quiver.client.transport.access import Access
from quiver.client.transport.addresses import addresses_in
from tests.integration.cluster.nodes import Cluster, ForwarderProcess, waited
from tests.integration.forwarding import RecordingDialer
from tests.killable import ChildServer

_numbers = count()


@pytest.fixture
def topic() -> str:
    return f"forwarded-{next(_numbers)}"


@pytest.fixture
def forwarder(three: Cluster, tmp_path: Path) -> Iterator[ForwarderProcess]:
    # One node is enough to begin with: it names the others.
    with ForwarderProcess(tmp_path, f"quiver://{three.address(0)}") as forwarder:
        yield forwarder


class Outside:
    """A client that can reach forwarders alone, and knows what it connected to."""

    def __init__(self, *forwarders: ForwarderProcess) -> None:
        url = "quiver://" + ",".join(one.address for one in forwarders)
        self._dialer = RecordingDialer(Access(), addresses_in(url))
        self.client = AsyncClient(url, dialer=self._dialer)

    @property
    def dialed(self) -> set[str]:
        return {address for address, _ in self._dialer.dialed}

    @property
    def nodes(self) -> set[str]:
        """The nodes that it asked forwarders for."""
        return {node for _, node in self._dialer.dialed if node}


def test_a_client_does_everything_and_reaches_no_node(
    three: Cluster, forwarder: ForwarderProcess, topic: str
) -> None:
    async def work() -> None:
        outside = Outside(forwarder)
        async with outside.client as client:
            await client.create_topic(topic, partitions=6)
            await client.create_subscription(f"{topic}-all", topics=[topic], start="earliest")
            group = f"{topic}-group"
            await client.create_subscription(
                group, topics=[topic], start="earliest", ordering="partition"
            )
            await client.publish(topic, b"one")
            await client.publish_many(topic, [f"{number}" for number in range(200)])
            await client.publish_table(topic, pa.table({"payload": [b"row"] * 60}))
            for _ in range(2):  # a sequence is stored once, whoever sends it again
                async with client.producer(topic, name=f"{topic}-till") as producer:
                    for number in range(20):
                        await producer.send(b"named", sequence=number)
            assert (await client.read(topic).table()).num_rows == 281
            for name in (f"{topic}-all", group):
                assert await _consumed(client, name, 281) == 281
            described = await client.describe_cluster()
            assert len([one for one in described.nodes if one.role == "full"]) == 3
            await client.split_partition(topic, 0)
            assert len((await client.describe_topic(topic)).partitions) == 7
        assert outside.dialed == {forwarder.address}
        assert outside.nodes == {three.address(index) for index in range(3)}

    asyncio.run(work())


async def _consumed(client: AsyncClient, name: str, messages: int) -> int:
    got = 0
    async with asyncio.timeout(60), client.consumer(name) as consumer:
        async for message in consumer:
            await message.ack()
            got += 1
            if got == messages:
                break
    return got


def test_a_killed_leader_behind_a_forwarder_loses_nothing(
    three: Cluster, forwarder: ForwarderProcess, topic: str
) -> None:
    async def work() -> None:
        outside = Outside(forwarder)
        async with outside.client as client:
            await client.create_queue(topic, partitions=3)
            consumed: Counter[str] = Counter()
            consuming = asyncio.create_task(_consume(client, topic, consumed))
            sent = []
            for number in range(150):
                if number == 50:
                    await asyncio.to_thread(three.kill, three.leader(topic))
                await client.publish(topic, str(number))
                sent.append(str(number))
            await _until(lambda: set(consumed) == set(sent))
            consuming.cancel()
            await asyncio.wait([consuming])
            described = await client.describe_subscription(topic)
            assert (described.ready, described.dead) == (0, 0)
        assert outside.dialed == {forwarder.address}

    asyncio.run(work())


def test_when_a_forwarder_is_killed_clients_go_on_through_another(
    three: Cluster, forwarder: ForwarderProcess, topic: str, tmp_path: Path
) -> None:
    async def work(other: ForwarderProcess) -> None:
        outside = Outside(forwarder, other)
        async with outside.client as client:
            await client.create_queue(topic, partitions=3)
            consumed: Counter[str] = Counter()
            consuming = asyncio.create_task(_consume(client, topic, consumed))
            for number in range(150):
                if number == 50:
                    await asyncio.to_thread(forwarder.kill)
                await client.publish(topic, str(number))
            await _until(lambda: len(consumed) == 150)
            consuming.cancel()
            await asyncio.wait([consuming])
            # A publish that is sent again because its answer was lost is stored once.
            assert (await client.read(topic).table()).num_rows == 150
        assert outside.dialed == {forwarder.address, other.address}

    with ForwarderProcess(tmp_path / "other", three.url, "forwarder-1") as other:
        asyncio.run(work(other))


def test_a_consumer_that_is_killed_frees_its_messages_at_once(
    three: Cluster, forwarder: ForwarderProcess, topic: str
) -> None:
    with quiver.Client(forwarder.url) as client:
        client.create_queue(topic, partitions=3, visibility="10m")
        client.publish_many(topic, [str(number) for number in range(30)])
        with closing(ChildServer("tests.integration.queue_consumer:hold")) as server:
            child = server.start(url=forwarder.url, queue=topic, count=10)
            child.run_until(1)
            waited(lambda: client.describe_subscription(topic).leased == 10, "it holds them")
            child.kill()
        waited(lambda: client.describe_subscription(topic).ready == 30, "they are free")
        assert len(client.receive(topic, 30, wait="10s")) > 0


def test_a_forwarder_that_is_stopped_ends_in_order(
    three: Cluster, forwarder: ForwarderProcess, topic: str
) -> None:
    with quiver.Client(forwarder.url) as client:
        client.create_queue(topic)
        client.publish(topic, "1")
        assert forwarder.stop() == 0
        forwarder.start()
        client.publish(topic, "2")
        assert len(client.receive(topic, 2, wait="10s")) >= 1


def test_a_forwarder_is_listed_by_every_node_while_it_lives(
    three: Cluster, forwarder: ForwarderProcess
) -> None:
    for index in range(3):
        [listed] = waited(lambda: _listed(three, index), "it is listed")  # noqa: B023 - called now
        assert (listed.id, listed.address) == ("forwarder-0", forwarder.address)
        metrics = httpx.get(f"{three.http(index)}/metrics", trust_env=False).text
        assert "\nquiver_forwarders 1" in metrics
    forwarder.kill()
    for index in range(3):
        waited(lambda: not _listed(three, index), "it is gone")  # noqa: B023 - called now


def test_a_node_that_comes_back_lists_the_forwarders_again(
    three: Cluster, forwarder: ForwarderProcess
) -> None:
    waited(lambda: _listed(three, 1), "it is listed")
    three.kill(1)
    three.restart(1)
    waited(lambda: _listed(three, 1), "it is listed again")
    forwarder.stop()
    waited(lambda: not _listed(three, 1), "it is gone")


def test_a_forwarder_that_hangs_is_listed_no_more(
    three: Cluster, forwarder: ForwarderProcess
) -> None:
    waited(lambda: _listed(three, 0), "it is listed")
    forwarder.pause()
    waited(lambda: not _listed(three, 0), "it is gone")


def test_a_forwarder_serves_its_own_metrics(forwarder: ForwarderProcess, topic: str) -> None:
    with quiver.Client(forwarder.url) as client:
        client.create_queue(topic)
        client.publish(topic, b"x" * 100_000)
        metrics = _metrics(httpx.get(f"{forwarder.http}/metrics", trust_env=False).text)
    assert metrics['quiver_forwarded_bytes_total{direction="to_nodes"}'] > 0
    assert metrics["quiver_connections"] >= 1
    assert metrics['quiver_requests_total{call="read_metrics"}'] == 1
    assert any('node="forwarder-0"' in name for name in metrics)


def _listed(three: Cluster, index: int) -> list[quiver.NodeInfo] | None:
    nodes = three.client(index).describe_cluster().nodes
    return [one for one in nodes if one.role == "forwarder"] or None


def _metrics(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def _consume(client: AsyncClient, name: str, consumed: Counter[str]) -> None:
    async with client.consumer(name) as messages:
        async for message in messages:
            consumed[message.text()] += 1
            await message.ack()


async def _until(reached: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not reached():  # noqa: ASYNC110 - there is nothing to wait for
            await asyncio.sleep(0.02)
