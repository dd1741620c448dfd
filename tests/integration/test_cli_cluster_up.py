"""``quiver cluster up`` as a process: it starts everything, tells of what ends, and leaves nothing.

One node, so that each test is quick; what several nodes do together is tested where clusters are.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import quiver
from tests.serving import command, environment, eventually

pytestmark = pytest.mark.process

_SECONDS_MAX = 60


class Up:
    """The command, running."""

    def __init__(self, folder: Path, *flags: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder / "cluster"
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                command("cluster", "up", "--nodes", "1", "--data", str(self.folder), *flags),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment(),
            )
        self._folder = folder
        self.ready: dict[str, Any] = {}

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.told
            return self.printed.endswith("\n")

        eventually(is_ready, "the cluster is ready")
        self.ready = json.loads(self.printed)

    @property
    def printed(self) -> str:
        return (self._folder / "out").read_text()

    @property
    def told(self) -> str:
        return (self._folder / "err").read_text()

    @property
    def pids(self) -> list[int]:
        return [*(node["pid"] for node in self.ready["nodes"]), *self.ready["etcd"]["pids"]]

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(_SECONDS_MAX)


@contextmanager
def up(folder: Path, *flags: str) -> Iterator[Up]:
    cluster = Up(folder, "--json", *flags)
    try:
        cluster.wait_ready()
        yield cluster
    finally:
        if cluster.process.poll() is None:
            cluster.end(signal.SIGKILL)
        for pid in filter(is_there, cluster.pids if cluster.ready else []):
            os.kill(pid, signal.SIGKILL)


def is_there(pid: int) -> bool:
    """Whether the process runs; one that ended and that nobody has asked about does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_it_stops_cleanly_and_comes_back_with_addresses_and_messages(tmp_path: Path) -> None:
    with up(tmp_path / "first") as cluster:
        first = cluster.ready
        with quiver.Client(f"quiver://{first['nodes'][0]['native']}") as client:
            client.create_topic("orders")
            client.publish("orders", b"1")
        assert cluster.end(signal.SIGTERM) == 0
        assert not any(map(is_there, cluster.pids))
        assert "ended" not in cluster.told
    (tmp_path / "first").rename(tmp_path / "second")
    with up(tmp_path / "second") as cluster:
        (before,), (after,) = first["nodes"], cluster.ready["nodes"]
        assert {**after, "pid": None} == {**before, "pid": None}
        with quiver.Client(f"quiver://{after['native']}") as client:

            def is_there_again() -> bool:
                return client.describe_topic("orders").partitions[0].next_offset == 1

            eventually(is_there_again, "its leader tells of the message")
        assert cluster.end(signal.SIGINT) == 0


def test_no_process_outlives_it_even_if_it_is_killed(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        assert all(map(is_there, cluster.pids))
        cluster.end(signal.SIGKILL)
        eventually(lambda: not any(map(is_there, cluster.pids)), "all processes are gone")


def test_a_node_that_ends_is_told_of_and_not_started_again(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        (node,) = cluster.ready["nodes"]
        os.kill(node["pid"], signal.SIGKILL)
        assert cluster.process.wait(_SECONDS_MAX) == 1, "no node is left to run for"
        assert "node-1 was killed by SIGKILL; its log is " in cluster.told
        assert "start it again with: quiver serve --name node-1 " in cluster.told
        assert not any(map(is_there, cluster.pids))


def test_it_goes_on_for_nodes_that_were_started_again(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "2") as cluster:
        first, second = cluster.ready["nodes"]
        (etcd,) = cluster.ready["etcd"]["pids"]
        os.kill(first["pid"], signal.SIGKILL)
        eventually(lambda: "start it again with: " in cluster.told, "it tells how")
        with started_again(cluster) as node:
            eventually(lambda: accepts(first["native"]), "the node is there again")
            os.kill(second["pid"], signal.SIGKILL)
            eventually(lambda: "node-1 started again: " in cluster.told, "it goes on")
            assert cluster.process.poll() is None
            assert is_there(etcd)
            node.kill()
            node.wait(_SECONDS_MAX)
        assert cluster.process.wait(_SECONDS_MAX) == 1, "no node is left to run for"
        assert not is_there(etcd)


@contextmanager
def started_again(cluster: Up) -> Iterator[subprocess.Popen[bytes]]:
    """A node, started with the command that was printed."""
    told = cluster.told.partition("start it again with: quiver ")[2]
    with Path(f"{cluster.folder}.again").open("wb") as log:
        node = subprocess.Popen(
            command(*shlex.split(told.splitlines()[0])),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(),
        )
    try:
        yield node
    finally:
        node.kill()
        node.wait(_SECONDS_MAX)


def accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


def test_a_node_that_hangs_is_killed_by_the_second_signal(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        (node,) = cluster.ready["nodes"]
        os.kill(node["pid"], signal.SIGSTOP)
        cluster.process.send_signal(signal.SIGTERM)
        eventually(lambda: cluster.told.startswith("stopping"), "it stops")
        asked = time.monotonic()
        assert cluster.end(signal.SIGTERM) == 0
        assert time.monotonic() - asked < 30, "it did not wait as long as a node may take"
        assert not any(map(is_there, cluster.pids))


def test_a_second_one_in_the_same_folder_does_not_start(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        done = subprocess.run(
            command("cluster", "up", "--data", str(cluster.folder)),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("error: another cluster already runs in ")
        assert all(map(is_there, cluster.pids))


def test_a_node_that_cannot_start_is_told_and_everything_stops(tmp_path: Path) -> None:
    cluster = Up(tmp_path, "--set", "limits.idle_timeout_s=never")
    assert cluster.process.wait(_SECONDS_MAX) == 1
    assert cluster.told.startswith("error: node-1 did not start: error: --set: ")
    assert cluster.printed == ""
