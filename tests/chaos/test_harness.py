"""What chaos is made with, each tool alone: etcd members, a node's machine, disks and delay."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import quiver
from quiver.cluster.metadata.etcd.open import open_etcd
from quiver.cluster.metadata.store import Put
from quiver.config import Metadata
from quiver.errors import DiskFull, MetadataUnavailable, QuiverError
from quiver.model.clock import SystemClock
from tests.aio import run
from tests.chaos.cluster import Cluster, running
from tests.chaos.faults import FAULTS, Stage, stage
from tests.chaos.machine import Machine
from tests.chaos.network import OUTSIDE
from tests.chaos.proxy import DelayProxy
from tests.serving import eventually

_MIB = 1 << 20


async def committed(endpoints: str, key: str) -> int:
    """Commit, again and again while etcd is electing, within a bound; at which revision."""
    async with asyncio.timeout(50):
        while True:
            try:
                return await _committed(endpoints, key)
            except MetadataUnavailable:
                await asyncio.sleep(0.05)


async def _committed(endpoints: str, key: str) -> int:
    store = await open_etcd(Metadata(store="etcd", endpoints=endpoints), SystemClock())
    try:
        return await store.commit([], [Put(key, b"")])
    finally:
        await store.close()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, nodes=0)
    try:
        cluster.start_etcd()
        yield cluster
    finally:
        cluster.close()


def endpoints(cluster: Cluster) -> str:
    return ",".join(member.endpoint for member in cluster.etcd.values())


def test_etcd_goes_on_when_its_leader_is_killed_and_takes_it_back(etcd: Cluster) -> None:
    leader = etcd.etcd_leader()
    etcd.etcd[leader].stop()
    run(committed(endpoints(etcd), "a"))
    assert etcd.etcd_leader() != leader
    etcd.etcd[leader].start()
    run(committed(etcd.etcd[leader].endpoint, "b"))


def test_etcd_elects_another_when_its_leader_is_cut_off(etcd: Cluster) -> None:
    leader = etcd.etcd_leader()
    etcd.network.isolate(leader)
    others = [member for name, member in etcd.etcd.items() if name != leader]
    without = run(committed(",".join(member.endpoint for member in others), "a"))
    etcd.network.heal_all()
    assert run(committed(etcd.etcd[leader].endpoint, "b")) > without, "it has caught up"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node on a volume of its own, and one etcd."""
    folder = tmp_path_factory.mktemp("alone")
    with running(folder, nodes=1, etcd_members=1, disk_bytes=64 * _MIB) as cluster:
        yield cluster


@pytest.fixture
def node(alone: Cluster) -> Machine:
    (machine,) = alone.nodes.values()
    assert machine.is_running
    return machine


def stored(client: quiver.Client, topic: str) -> list[bytes]:
    return [message.payload for message in client.read(topic).messages()]


def test_a_node_is_killed_paused_and_started_again(alone: Cluster, node: Machine) -> None:
    with quiver.Client(alone.url) as client:
        client.create_topic("failing")
        client.publish("failing", b"1")
        node.kill()
        node.start()
        client.publish("failing", b"2")
        node.pause()
        resume = threading.Timer(0.2, node.resume)
        resume.start()
        client.publish("failing", b"3")
        resume.join()
        assert stored(client, "failing") == [b"1", b"2", b"3"]


def test_a_node_that_is_cut_off_is_reached_when_the_link_is_healed(alone: Cluster) -> None:
    with quiver.Client(alone.url) as client:
        client.create_topic("cut", exist_ok=True)
    with quiver.Client(alone.url, timeout="500ms") as client:
        alone.network.cut(OUTSIDE, "node-1")
        try:
            with pytest.raises(QuiverError):
                client.describe_topic("cut")
        finally:
            alone.network.heal_all()
    with quiver.Client(alone.url) as client:
        assert client.describe_topic("cut").name == "cut"


def test_what_was_confirmed_is_there_after_a_power_cut(alone: Cluster, node: Machine) -> None:
    with quiver.Client(alone.url) as client:
        client.create_topic("power")
        client.create_topic("careless", durability="os")
        for number in range(20):
            client.publish("power", str(number))
            client.publish("careless", str(number))
        node.cut_power()
        node.start()
        assert stored(client, "power") == [str(number).encode() for number in range(20)]
        assert stored(client, "careless") == [], "the cut took what was not synced"


def test_a_full_disk_refuses_and_takes_more_when_there_is_room(
    alone: Cluster, node: Machine
) -> None:
    def publishing_fails() -> bool:
        try:
            client.publish("full", bytes(_MIB // 4))
        except DiskFull:
            return True
        return False

    with quiver.Client(alone.url, timeout="3s") as client:
        client.create_topic("full")
        node.fill_disk()
        try:
            eventually(publishing_fails, "publishing is refused")
        finally:
            node.remove_ballast()
        eventually(lambda: not publishing_fails(), "publishing goes on")
        assert stored(client, "full")[-1] == bytes(_MIB // 4)


def test_bits_are_flipped_in_one_segment_and_nowhere_else(alone: Cluster, node: Machine) -> None:
    with quiver.Client(alone.url) as client:
        client.create_topic("flipped")
        client.publish("flipped", b"1")
    node.stop()
    before = {path: path.read_bytes() for path in node.data.rglob("*") if path.is_file()}
    try:
        hit = node.flip_bits(random.Random(7), 1)
        changed = [str(path) for path, old in before.items() if path.read_bytes() != old]
        assert changed == hit
        assert len(hit) == 1
    finally:
        for path in hit:
            Path(path).write_bytes(before[Path(path)])
        node.start()


class TestDelay:
    def test_bytes_arrive_in_order_and_late(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            proxy = DelayProxy("127.0.0.1", server.getsockname()[:2], delay_s=0.2)
            try:
                host, _, port = proxy.address.partition(":")
                with socket.create_connection((host, int(port)), timeout=60) as near:
                    far, _ = server.accept()
                    with far:
                        far.settimeout(60)
                        began = time.monotonic()
                        near.sendall(b"one")
                        near.sendall(b"two")
                        received = b""
                        while len(received) < 6:
                            received += far.recv(10)
                        assert received == b"onetwo"
                        assert time.monotonic() - began >= 0.2
            finally:
                proxy.close()

    def test_connections_are_broken_on_demand(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            proxy = DelayProxy("127.0.0.1", server.getsockname()[:2])
            try:
                host, _, port = proxy.address.partition(":")
                with socket.create_connection((host, int(port)), timeout=60) as near:
                    far, _ = server.accept()
                    with far:
                        proxy.drop_connections()
                        with contextlib.suppress(ConnectionResetError):
                            assert near.recv(10) == b"", "it is closed, or reset"
            finally:
                proxy.close()


def test_a_failure_names_its_seed_and_faults_and_ends_the_use_of_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(on_stage: Stage) -> None:
        raise AssertionError("nothing goes on")

    monkeypatch.setitem(FAULTS, "failing", failing)
    with running(tmp_path, etcd_members=1) as cluster:
        with (
            pytest.raises(AssertionError, match="nothing goes on") as raised,
            stage(cluster, 42) as on_stage,
        ):
            on_stage.make("failing")
        assert raised.value.__notes__ == ["QUIVER_CHAOS_SEED=42, faults: failing"]
        assert not cluster.is_usable
