"""Three etcd members and three nodes, each on a host of its own, for tests that break them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.machine import Machine
from tests.chaos.network import Network
from tests.etcd_server import EtcdServer
from tests.serving import eventually

_CLIENT_PORT, _PEER_PORT = 2379, 2380


class Cluster:
    """``start`` it, and ``close`` it whatever happens."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        etcd_members: int = 3,
        disk_bytes: int | None = None,
        settings: Sequence[str] = (),
        synced: bool = True,
        name: str = "",
        network: Network | None = None,
    ) -> None:
        """``network`` is one that has the hosts of this cluster and others, and is closed by its owner."""
        hosts = hosts_of(name, nodes, etcd_members)
        members, names = hosts[:etcd_members], hosts[etcd_members:]
        self.etcd: dict[str, EtcdServer] = {}
        self.nodes: dict[str, Machine] = {}
        self._owns_network = network is None
        self.network = network or Network(hosts)
        self.is_usable = True
        """Until a test has failed on it: nobody knows what state that left it in."""
        try:
            peers = [(one, f"{self.network.address(one)}:{_PEER_PORT}") for one in members]
            for one in members:
                self.etcd[one] = EtcdServer(
                    folder / one,
                    name=one,
                    host=self.network.address(one),
                    ports=(_CLIENT_PORT, _PEER_PORT),
                    members=peers,
                    launcher=self.network.on(one),
                )
            endpoints = ",".join(member.endpoint for member in self.etcd.values())
            for one in names:
                self.nodes[one] = Machine(
                    one,
                    folder,
                    self.network,
                    endpoints,
                    settings=settings,
                    disk_bytes=disk_bytes,
                    synced=synced,
                )
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return "quiver://" + ",".join(node.native for node in self.nodes.values())

    def start(self) -> None:
        self.start_etcd()
        for node in self.nodes.values():
            node.start(wait=False)
        for node in self.nodes.values():
            node.wait_ready()

    def start_etcd(self) -> None:
        for member in self.etcd.values():
            member.start(wait=False)
        for member in self.etcd.values():
            member.wait_ready()

    def etcd_leader(self) -> str:
        """The member that leads the others, once they agree on one."""
        found: set[str] = set()

        def agreed() -> bool:
            running = {name: one for name, one in self.etcd.items() if one.is_running}
            told = {name: seen for name, one in running.items() if (seen := status(one))}
            ids = {seen["header"]["member_id"]: name for name, seen in told.items()}
            found.clear()
            found.update(ids.get(seen["leader"], "") for seen in told.values())
            return len(found) == 1 and "" not in found

        eventually(agreed, "etcd has a leader")
        return found.pop()

    def cut_power(self) -> None:
        """Of every node at once."""
        for node in self.nodes.values():
            node.kill()
        for node in self.nodes.values():
            node.cut_power()

    def close(self) -> None:
        try:
            for node in self.nodes.values():
                node.close()
            for member in self.etcd.values():
                member.stop()
        finally:
            if self._owns_network:
                self.network.close()


def hosts_of(name: str = "", nodes: int = 3, etcd_members: int = 3) -> list[str]:
    """The hosts of a cluster: the members of its etcd, and its nodes."""
    prefix = f"{name}-" if name else ""
    return [
        *(f"{prefix}etcd-{number + 1}" for number in range(etcd_members)),
        *(f"{prefix}node-{number + 1}" for number in range(nodes)),
    ]


def status(member: EtcdServer) -> dict[str, Any] | None:
    """What a member says of itself; ``None`` if it does not answer."""
    try:
        url = f"{member.endpoint}/v3/maintenance/status"
        with urllib.request.urlopen(url, b"{}", timeout=5) as reply:
            told: dict[str, Any] = json.loads(reply.read())
    except (urllib.error.URLError, OSError):
        return None
    return told if "leader" in told else None


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Cluster]:
    cluster = Cluster(folder, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
