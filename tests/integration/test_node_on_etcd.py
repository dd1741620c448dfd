"""Nodes whose metadata is in etcd: they serve, come back, and know who is theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

import quiver
from quiver.config import Address, Metadata, NodeConfig
from quiver.edge.membership import ClusterMembership
from quiver.edge.node import Node
from quiver.errors import InvalidSetting
from tests.aio import async_test
from tests.etcd_server import EtcdServer
from tests.ports import free_port
from tests.serving import Served, eventually

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def config(etcd: EtcdServer, folder: Path, name: str, prefix: str) -> NodeConfig:
    return NodeConfig(
        name=name,
        data=str(folder / name),
        http=None,
        native=Address("127.0.0.1", 0),
        metadata=Metadata(store="etcd", endpoints=etcd.endpoint, prefix=prefix),
    )


@asynccontextmanager
async def serving(config: NodeConfig) -> AsyncIterator[quiver.AsyncClient]:
    node = await Node.start(config)
    try:
        async with quiver.AsyncClient(f"quiver://{node.native_address}") as client:
            yield client
    finally:
        await node.stop()


@async_test
async def test_topics_and_messages_are_there_after_a_restart(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    settings = config(etcd, tmp_path, "one", "restart/")
    async with serving(settings) as client:
        await client.create_topic("orders")
        await client.publish("orders", b"first")
    async with serving(settings) as client:
        await client.publish("orders", b"second")
        topics = await client.list_topics()
        assert [topic.name for topic in topics] == ["orders"]
        description = await client.describe_topic("orders")
        assert description.partitions[0].next_offset == 2


@async_test
async def test_nodes_under_one_prefix_are_a_cluster_and_those_under_another_are_not(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with serving(config(etcd, tmp_path, "one", "shared/")) as one:
        await one.create_topic("orders")
        async with serving(config(etcd, tmp_path, "two", "shared/")) as two:
            assert [topic.name for topic in await two.list_topics()] == ["orders"]
        async with serving(config(etcd, tmp_path, "three", "other/")) as other:
            assert await other.list_topics() == []


@async_test
async def test_another_node_of_the_same_name_does_not_start(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with serving(config(etcd, tmp_path / "here", "one", "shared/")):
        with pytest.raises(InvalidSetting, match="'one'"):
            async with serving(config(etcd, tmp_path / "there", "one", "shared/")):
                pass
        async with serving(config(etcd, tmp_path / "there", "one", "other/")) as other:
            assert await other.list_topics() == []


@async_test
async def test_a_node_is_not_ready_until_it_has_joined_its_cluster(
    etcd: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_join, joins, join = asyncio.Event(), asyncio.Event(), ClusterMembership.join

    async def join_later(membership: ClusterMembership, *addresses: Any) -> None:
        joins.set()
        await may_join.wait()
        await join(membership, *addresses)

    monkeypatch.setattr(ClusterMembership, "join", join_later)
    http = Address("127.0.0.1", free_port())
    settings = structs.replace(config(etcd, tmp_path, "one", "joining/"), http=http)
    starting = asyncio.create_task(Node.start(settings))
    async with httpx.AsyncClient(base_url=f"http://{http}") as asked:
        await joins.wait()
        early = await asked.get("/readyz")
        alive = await asked.get("/healthz")
        may_join.set()
        node = await starting
        try:
            ready = await asked.get("/readyz")
        finally:
            await node.stop()
    assert (early.status_code, early.json()["code"]) == (503, "unavailable")
    assert (alive.status_code, ready.status_code) == (200, 200)


def test_a_node_waits_for_an_etcd_that_comes_later(tmp_path: Path) -> None:
    etcd = EtcdServer(tmp_path / "etcd")
    settings = {"QUIVER_METADATA_STORE": "etcd", "QUIVER_METADATA_ENDPOINTS": etcd.endpoint}
    node = Served(tmp_path / "node", **settings)
    try:
        eventually(lambda: "is waited for" in node.log, "the node has found no etcd")
        etcd.start()
        node.wait_ready()
        assert node.stop() == 0
    finally:
        node.close()
        etcd.stop()


def test_a_node_that_is_stopped_while_etcd_is_lost_ends_well(tmp_path: Path) -> None:
    """Everything is on disk, and its lease ends by itself."""
    etcd = EtcdServer(tmp_path / "etcd")
    etcd.start()
    settings = {"QUIVER_METADATA_STORE": "etcd", "QUIVER_METADATA_ENDPOINTS": etcd.endpoint}
    node = Served(tmp_path / "node", **settings)
    try:
        node.wait_ready()
        with quiver.Client(node.url) as q:
            q.create_topic("orders", replicas=1)
            q.publish("orders", "kept")
        etcd.stop()
        assert node.stop() == 0
        assert "node has stopped" in node.log
    finally:
        node.close()
        etcd.stop()


def test_a_node_that_is_stopped_while_it_waits_for_etcd_ends_well(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    settings = {"QUIVER_METADATA_STORE": "etcd", "QUIVER_METADATA_ENDPOINTS": nowhere}
    node = Served(tmp_path, **settings)
    try:
        eventually(lambda: "is waited for" in node.log, "the node has found no etcd")
        assert node.stop() == 0
        assert "node has stopped" in node.log
        assert "error:" not in node.log
    finally:
        node.close()
