"""``quiver serve`` as a child process: it says where it listens, and it ends when asked to."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quiver
from tests.serving import Served, eventually, served

pytestmark = pytest.mark.process


def connects(native: str) -> bool:
    host, port = native.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=30):
            return True
    except OSError:
        return False


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_listens_until_a_signal_and_then_ends_well(tmp_path: Path, how: signal.Signals) -> None:
    with served(tmp_path) as node:
        assert node.ready["pid"] == node.pid
        assert connects(node.ready["native"])
        assert node.stop(how) == 0
        assert not connects(node.ready["native"])
        assert not node.has_ready_file


def test_the_ready_file_does_not_outlive_the_node_even_if_it_is_killed(tmp_path: Path) -> None:
    with served(tmp_path) as node:
        node.stop(signal.SIGKILL)
        eventually(lambda: not node.has_ready_file, "the ready file is removed")
        assert not connects(node.ready["native"])


def test_a_ready_file_that_an_earlier_node_left_is_removed_before_the_next_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "ready.json").write_text('{"pid": 1, "native": "127.0.0.1:1"}')
    (tmp_path / "data").write_text("no folder")
    node = Served(tmp_path)
    try:
        assert node.wait() != 0
        assert not node.has_ready_file
    finally:
        node.close()


def test_what_a_node_stores_is_readable_for_nobody_else(tmp_path: Path) -> None:
    with umask(0), served(tmp_path) as node, quiver.Client(node.url) as q:
        q.create_queue("orders")
        q.publish("orders", b"secret")
        q.ack("orders", q.receive("orders"))
        stored = [node.data, *node.data.rglob("*")]
        assert len(stored) > 5
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in stored}
    assert {path for path, mode in modes.items() if mode & 0o077} == set()


def test_it_says_where_it_listens_and_what_to_try(tmp_path: Path) -> None:
    with served(tmp_path) as node:
        node.stop()
        first, *examples, http = node.output.splitlines()
        assert first.startswith(f"Quiver listens on {node.url} ")
        assert [line.split()[3:5] for line in examples] == [
            ["topic", "create"],
            ["publish", "orders"],
            ["tail", "orders"],
        ]
        assert http.startswith(f"HTTP is at {node.http},")
        assert all(node.url in line for line in examples)


def test_the_log_is_json_where_no_terminal_is(tmp_path: Path) -> None:
    with served(tmp_path, "--name", "first") as node:
        node.stop()
        lines = [json.loads(line) for line in node.log.splitlines()]
    assert [line["message"] for line in lines] == [
        "node is sized",
        "node is ready",
        "node is stopping",
        "node has stopped",
    ]
    assert {line["node"] for line in lines} == {"first"}
    assert all(list(line)[:3] == ["timestamp", "level", "message"] for line in lines)


def test_with_a_json_log_nothing_else_is_said(tmp_path: Path) -> None:
    with served(tmp_path, QUIVER_LOGGING_FORMAT="json") as node:
        node.stop()
        assert node.output == ""


def test_a_data_folder_serves_one_node_at_a_time(tmp_path: Path) -> None:
    with served(tmp_path) as node:
        second = Served(tmp_path / "second", "--data", str(node.data))
        try:
            assert second.wait() == 1
            error, hint = second.log.splitlines()
            assert error.startswith("error: ")
            assert hint == "hint: stop the other node, or choose another folder with --data"
        finally:
            second.close()
        assert node.stop() == 0


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with served(tmp_path / "first") as node:
        native = node.ready["native"]
        second = Served(tmp_path / "second", "--native", native)
        try:
            assert second.wait() == 1
            assert second.log == (
                f"error: cannot listen on {native}: the address is in use; "
                "choose another with --native\n"
            )
            assert not second.has_ready_file
        finally:
            second.close()


def test_a_data_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    node = Served(tmp_path / "node", "--data", str(tmp_path / "file" / "data"))
    try:
        assert node.wait() == 2
        assert node.log == f"error: data: {str(tmp_path / 'file')!r} is not a folder\n"
    finally:
        node.close()


def test_wrong_settings_open_nothing(tmp_path: Path) -> None:
    node = Served(tmp_path, "--set", "limits.requests_max=0", QUIVER_NATIVE="x")
    try:
        assert node.wait() == 2
        assert len(node.log.splitlines()) == 2
        assert not node.data.exists()
    finally:
        node.close()


LATE = {
    "aiohttp",
    "cryptography",
    "opentelemetry",
    "pandas",
    "pyarrow._compute",  # of pyarrow.compute, however that is loaded
    "pyarrow.dataset",
    "pyarrow.fs",
    "pyarrow.parquet",
    "pydantic",
    "pygments",
    "pyspark",
    "quiver.backup",
    "quiver.edge.webhooks.pushers",
    "quiver.testing",
    "rich.console",
}
"""Large, and of use to some nodes only, or to a node that has messages."""


def test_a_node_that_is_ready_has_loaded_nothing_that_it_may_never_need(tmp_path: Path) -> None:
    with served(tmp_path, PYTHONPROFILEIMPORTTIME="1") as node:
        loaded = set(re.findall(r"^import time: .*\| +(\S+)$", node.log, re.MULTILINE))
    assert "quiver.edge.node" in loaded
    assert loaded & LATE == set()
