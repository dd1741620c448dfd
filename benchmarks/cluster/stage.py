"""A cluster to measure: one etcd and some nodes, each of which can be killed and started again."""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.harness.child import Child, running, served
from quiver import Client
from quiver.cli.cluster.layout import Layout, NodePlace, layout_in
from quiver.cli.cluster.programs import etcd_command, etcd_program
from quiver.protocol import ClusterInfo

_SECONDS_MAX = 120.0


class Stage:
    """``start`` nodes; they and etcd are gone when the stage is left."""

    def __init__(self, folder: str, layout: Layout) -> None:
        self.nodes: dict[str, Child] = {}
        self._places: dict[str, NodePlace] = {place.id: place for place in layout.nodes}
        self._endpoints = layout.endpoints
        self._folder = folder
        self._ends: dict[str, ExitStack] = {}

    @property
    def url(self) -> str:
        return "quiver://" + ",".join(place.native for place in self._places.values())

    def start(self, name: str) -> None:
        folder, place, stack = f"{self._folder}/{name}", self._places[name], ExitStack()
        os.makedirs(folder, exist_ok=True)
        settings = ("metadata.store=etcd", f"metadata.endpoints={self._endpoints}")
        flags = [part for setting in settings for part in ("--set", setting)]
        self.nodes[name] = stack.enter_context(
            served(folder, "--name", name, "--native", place.native, "--http", place.http, *flags)
        )
        self._ends[name] = stack

    def send(self, name: str, how: signal.Signals) -> None:
        os.kill(self.nodes[name].pid, how)

    def end(self, name: str) -> None:
        """Kill it if it still runs, and forget it."""
        del self.nodes[name]
        self._ends.pop(name).close()

    def described(self) -> ClusterInfo:
        with Client(self.url) as client:
            return client.describe_cluster()

    def leader(self, topic: str) -> str:
        """The node that leads the topic's first partition."""
        (found,) = [
            one.leader
            for one in self.described().partitions
            if (one.topic, one.index) == (topic, 0) and one.leader is not None
        ]
        return found

    def wait_whole(self) -> None:
        """Until every partition is led and each of its replicas is in sync."""
        wait(lambda: is_whole(self.described()), "every replica is in sync")

    def close(self) -> None:
        for name in list(self.nodes):
            self.end(name)


def is_whole(cluster: ClusterInfo) -> bool:
    return all(
        one.leader is not None and set(one.in_sync) == set(one.replicas)
        for one in cluster.partitions
    )


def wait(condition: Callable[[], bool], what: str) -> float:
    """Until it is so; the seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < _SECONDS_MAX, f"not within {_SECONDS_MAX:g} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - began


@contextmanager
def cluster_of(folder: str, nodes: int) -> Iterator[Stage]:
    layout = layout_in(folder, nodes=nodes, etcd_members=1, base_port=None)
    (member,) = layout.etcd
    with running(etcd_command(etcd_program(), folder, member, layout), f"{folder}/etcd.log"):
        wait(lambda: _answers(member.client), "etcd answers")
        stage = Stage(folder, layout)
        try:
            for place in layout.nodes:
                stage.start(place.id)
            yield stage
        finally:
            stage.close()


def _answers(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=1)
    try:
        connection.request("GET", "/health")
        return b'"true"' in connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
