"""``quiver bench`` against a running node: it measures, keeps to its bounds and cleans up."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.serving import Commands, Served, eventually, served

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def quiver(node: Served, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(node.url, capsys)


def topics(quiver: Commands) -> list[str]:
    return [topic["name"] for topic in quiver("topic", "list", "--json").json]


@pytest.mark.parametrize("what", ["publish", "read", "latency"])
def test_a_run_measures_and_leaves_nothing_behind(quiver: Commands, what: str) -> None:
    told = quiver("bench", what, "--messages", "600", "--partitions", "2", "--size", "64", "--json")
    assert told.code == 0, told.err
    result = told.json
    assert (result["what"], result["complete"]) == (what, True)
    assert (result["messages"], result["partitions"], result["size_bytes"]) == (600, 2, 64)
    assert result["messages_per_s"] == pytest.approx(600 / result["seconds"])
    if what != "read":
        latencies = result["latencies_ms"]
        assert 0 < latencies["p50"] <= latencies["p99"] <= latencies["max"]
    assert topics(quiver) == []


def test_people_get_a_table(quiver: Commands) -> None:
    rows = quiver("bench", "publish", "--messages", "10").out.splitlines()
    names = [row.split()[0] for row in rows]
    assert names[:3] == ["BENCH", "topic", "partitions"]
    assert {"messages", "rate", "throughput", "p50", "p99", "max"} <= set(names)


def test_a_run_ends_when_its_time_is_up(quiver: Commands) -> None:
    started = time.monotonic()
    told = quiver(
        *("bench", "publish", "--messages", "1000000", "--rate", "100", "--seconds", "0.5"),
        "--json",
    )
    assert time.monotonic() - started < 20
    assert told.json["complete"] is False
    assert 0 < told.json["messages"] < 1000


def test_what_arrives_after_the_time_of_a_run_is_no_failure(quiver: Commands, node: Served) -> None:
    child = quiver.start(
        *("bench", "publish", "--messages", "1000", "--rate", "100", "--seconds", "0.5"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    eventually(lambda: topics(quiver) != [], "the run has made its topic")
    os.kill(node.pid, signal.SIGSTOP)
    try:
        time.sleep(1)
    finally:
        os.kill(node.pid, signal.SIGCONT)
    _, error = child.communicate(timeout=60)
    assert (child.returncode, error) == (0, b"")


def test_a_topic_that_is_named_is_kept(quiver: Commands) -> None:
    quiver("topic", "create", "mine")
    flags = ("--topic", "mine", "--messages", "100", "--json")
    assert quiver("bench", "publish", *flags).json["topic"] == "mine"
    assert quiver("bench", "latency", *flags).json["complete"]
    assert quiver("bench", "read", *flags).json["messages"] == 100
    assert topics(quiver) == ["mine"]
    quiver("topic", "delete", "mine", "--yes")


def test_an_interrupted_run_removes_its_topic(quiver: Commands) -> None:
    child = quiver.start(
        *("bench", "publish", "--rate", "10", "--messages", "1000"), stderr=subprocess.PIPE
    )
    eventually(lambda: topics(quiver) != [], "the run has made its topic")
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=30)
    assert (child.returncode, error) == (130, b"")
    assert topics(quiver) == []


def test_a_latency_message_needs_room_for_its_stamp(quiver: Commands) -> None:
    told = quiver("bench", "latency", "--size", "8")
    assert told == (2, "", "error: --size must be between 24 and 1,048,576, not 8\n")
