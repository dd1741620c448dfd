"""Three nodes and an etcd as child processes, of which any may be killed and started again.

Killing one is a real end of a real process; starting one costs next to nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

import quiver
from quiver.broker.delivery import state_log
from quiver.broker.partition import replicated_storage
from quiver.broker.partition.producers import snapshots
from quiver.config import Address, Limits, Metadata, NodeConfig
from quiver.edge.run import run_node
from quiver.errors import QuiverError
from tests.etcd_server import EtcdServer
from tests.forked import processes, write_output_to
from tests.ports import free_port

SECONDS_MAX = 60.0
_LEASE_S = 10
"""Long, so that a busy machine changes no leader by itself: a killed node is noticed at once."""
T = TypeVar("T")


def _serve(config: NodeConfig, ready: str, log: str) -> None:
    """What a node's process does. Snapshots are taken often, so that every test depends on some."""
    snapshots._SNAPSHOT_BYTES = 64 << 10
    state_log._SNAPSHOT_BYTES = 2 << 10
    state_log._HISTORY_BYTES_MAX = 4 << 10
    small = msgspec.structs.replace(state_log.STATE_SETTINGS, segment_bytes=4 << 10)
    replicated_storage.STATE_SETTINGS = small
    write_output_to(log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_node(config, lambda *_: Path(ready).touch()))


class Cluster:
    """Nodes keep their addresses when they are started again. ``close`` it."""

    def __init__(self, folder: Path, count: int = 3, **settings: Any) -> None:
        self._folder = folder
        self._settings = settings
        self.etcd = EtcdServer(folder / "etcd")
        self._ports = [(free_port(), free_port()) for _ in range(count)]
        self._nodes: dict[int, BaseProcess] = {}
        self._clients: dict[tuple[int, ...], quiver.Client] = {}

    def start(self) -> None:
        self.etcd.start()
        for index in range(len(self._ports)):
            self._start(index)
        for index in range(len(self._ports)):
            self._wait_ready(index)

    def wait_complete(self) -> None:
        """Wait until every node knows of all."""
        waited(lambda: all(map(self._sees_all, range(len(self._ports)))), "all know of all")

    def _sees_all(self, index: int) -> bool:
        nodes = self.client(index).describe_cluster().nodes
        return sum(one.role == "full" for one in nodes) == len(self._ports)

    def _start(self, index: int) -> None:
        native, http = self._ports[index]
        config = NodeConfig(
            name=f"node-{index}",
            zone=f"zone-{index}",
            data=str(self.data(index)),
            native=Address("127.0.0.1", native),
            http=Address("127.0.0.1", http),
            limits=Limits(free_bytes_min=0, retention_interval_s=0.2),
            metadata=Metadata(store="etcd", endpoints=self.etcd.endpoint, lease_s=_LEASE_S),
            **self._settings,
        )
        self._ready(index).unlink(missing_ok=True)
        arguments = config, str(self._ready(index)), str(self._log(index))
        self._nodes[index] = processes.Process(target=_serve, args=arguments, daemon=True)
        self._nodes[index].start()

    def _wait_ready(self, index: int) -> None:
        waited(
            lambda: self._ready(index).exists() or not self._nodes[index].is_alive(), "it is ready"
        )
        assert self._nodes[index].is_alive(), self.log(index)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        for node in self._nodes.values():
            node.kill()
            node.join(SECONDS_MAX)
        self.etcd.stop()

    # ------------------------------------------------------------------ where things are

    def data(self, index: int) -> Path:
        return self._folder / f"node-{index}"

    def address(self, index: int) -> str:
        return f"127.0.0.1:{self._ports[index][0]}"

    def http(self, index: int) -> str:
        return f"http://127.0.0.1:{self._ports[index][1]}"

    def _ready(self, index: int) -> Path:
        return self._folder / f"ready-{index}"

    def _log(self, index: int) -> Path:
        return self._folder / f"log-{index}"

    def log(self, index: int) -> str:
        return self._log(index).read_text()

    @property
    def url(self) -> str:
        """Every node."""
        return "quiver://" + ",".join(self.address(index) for index in range(len(self._ports)))

    def client(self, *indexes: int) -> quiver.Client:
        """A client that knows these nodes alone, or all of them."""
        if indexes not in self._clients:
            addresses = [self.address(index) for index in indexes]
            url = "quiver://" + ",".join(addresses) if indexes else self.url
            self._clients[indexes] = quiver.Client(url)
        return self._clients[indexes]

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition."""

        def led() -> int | None:
            info = self.client().describe_topic(topic).partitions[partition]
            found = [i for i in range(len(self._ports)) if self.address(i) == info.leader]
            return found[0] if found else None

        return waited(led, f"a leader of {topic}")

    def follower(self, topic: str, partition: int = 0) -> int:
        """A node that does not lead a partition."""
        leader = self.leader(topic, partition)
        return next(i for i in range(len(self._ports)) if i != leader)

    # ------------------------------------------------------------------ what befalls nodes

    def kill(self, index: int) -> None:
        self._nodes[index].kill()
        self._nodes[index].join(SECONDS_MAX)

    def stop(self, index: int) -> None:
        """Let a node end as an operator would."""
        self._nodes[index].terminate()
        self._nodes[index].join(SECONDS_MAX)

    def restart(self, index: int) -> None:
        """Start a node again, and wait until it answers."""
        self._start(index)
        self._wait_ready(index)

    def revive(self, index: int) -> None:
        """Start a node again, and wait until it is in sync everywhere."""
        self.restart(index)
        self.wait_in_sync()

    def heal(self) -> None:
        """Start again whatever does not run."""
        for index, node in list(self._nodes.items()):
            if not node.is_alive():
                self.revive(index)

    def wait_in_sync(self) -> None:
        waited(self._is_in_sync, "every replica is in sync")

    def _is_in_sync(self) -> bool:
        cluster = self.client().describe_cluster()
        nodes = [one for one in cluster.nodes if one.role == "full"]
        return len(nodes) == len(self._ports) and all(
            set(one.in_sync) == set(one.replicas) for one in cluster.partitions
        )


def _serve_forwarder(config: NodeConfig, ready: str, log: str, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    _serve(config, ready, log)


class ForwarderProcess:
    """A forwarder of a cluster in a process of its own. Use it with ``with``."""

    def __init__(self, folder: Path, upstream: str, name: str = "forwarder-0", **settings: Any):
        folder.mkdir(parents=True, exist_ok=True)
        self._ready, self._log = folder / f"ready-{name}", folder / f"log-{name}"
        self.config = NodeConfig(
            name=name,
            role="forwarder",
            upstream=upstream,
            native=Address("127.0.0.1", free_port()),
            http=Address("127.0.0.1", free_port()),
            **settings,
        )
        self.variables: dict[str, str] = {}
        """Of its environment."""
        self._process = self._new()

    def _new(self) -> BaseProcess:
        arguments = self.config, str(self._ready), str(self._log), self.variables
        return processes.Process(target=_serve_forwarder, args=arguments, daemon=True)

    @property
    def address(self) -> str:
        return str(self.config.native)

    @property
    def url(self) -> str:
        return f"quiver://{self.address}"

    @property
    def http(self) -> str:
        return f"http://{self.config.http}"

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        self._process = self._new()
        self._process.start()
        waited(lambda: self._ready.exists() or not self._process.is_alive(), "it is ready")
        assert self._process.is_alive(), self.log

    def kill(self) -> None:
        self._process.kill()
        self._process.join(SECONDS_MAX)

    def pause(self) -> None:
        """Let it hang, connected as it is."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def stop(self) -> int | None:
        """End it as an operator would; its exit code."""
        self._process.terminate()
        self._process.join(SECONDS_MAX)
        return self._process.exitcode

    def __enter__(self) -> ForwarderProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def waited(ask: Callable[[], T | None], what: str) -> T:
    """What the question is answered with at last; retryable errors are asked about again."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            answer = ask()
        except QuiverError as error:
            if not error.retryable:
                raise
            answer = None
        if answer is not None and answer is not False:
            return answer
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX:g} s: {what}"
        time.sleep(0.02)
