"""Three nodes of one cluster on this machine, each of which can be killed, stopped and started again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import quiver
from tests.etcd_server import EtcdServer
from tests.serving import Served, eventually, unused_address

NAMES = ("node-1", "node-2", "node-3")


class ThreeNodes:
    """``start`` each node, and ``close`` it whatever happens."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.etcd = EtcdServer(folder / "etcd")
        self.token: str | None = None
        """What the nodes are asked with, where they ask for a token."""
        self._folder = folder
        self._flags = flags
        self._addresses = {name: unused_address() for name in NAMES}
        self._nodes: dict[str, Served] = {}

    @property
    def url(self) -> str:
        return "quiver://" + ",".join(self._addresses.values())

    def start(self, *names: str, **variables: str) -> None:
        """Start these nodes, with ``variables`` in their environment."""
        for name in names:
            self._nodes[name] = Served(
                self._folder / name,
                *("--name", name, "--native", self._addresses[name], *self._flags),
                QUIVER_METADATA_STORE="etcd",
                QUIVER_METADATA_ENDPOINTS=self.etcd.endpoint,
                **variables,
            )
        for name in names:
            self._nodes[name].wait_ready()

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._nodes.pop(name).close()

    def stop(self, name: str) -> int:
        """SIGTERM; the exit code."""
        node = self._nodes.pop(name)
        try:
            return node.stop()
        finally:
            node.close()

    def leader(self, topic: str, partition: int = 0) -> str:
        with quiver.Client(self.url, token=self.token) as client:
            placed = client.describe_cluster().partitions
        (leader,) = [one.leader for one in placed if (one.topic, one.index) == (topic, partition)]
        assert leader is not None, f"nobody leads {topic}/{partition}"
        return leader

    def address(self, name: str) -> str:
        return self._addresses[name]

    def data(self, name: str) -> Path:
        return self._nodes[name].data

    def wait_whole(self) -> None:
        """Wait until every replica of every partition is in sync."""

        def is_whole() -> bool:
            with quiver.Client(self.url, token=self.token) as client:
                placed = client.describe_cluster().partitions
            return all(set(one.in_sync) == set(one.replicas) for one in placed)

        eventually(is_whole, "every replica is in sync")

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
        self.etcd.stop()


@contextmanager
def three_nodes(folder: Path, *flags: str, **variables: str) -> Iterator[ThreeNodes]:
    """A cluster in which all is well."""
    nodes = ThreeNodes(folder, *flags)
    try:
        nodes.etcd.start()
        nodes.start(*NAMES, **variables)
        yield nodes
    finally:
        nodes.close()
