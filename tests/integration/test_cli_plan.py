"""``quiver bench --save`` against a running node, and ``quiver plan`` with what it saved."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import Commands, Served, command, environment, served

pytestmark = pytest.mark.process

PLAN = ("plan", "--rate", "1e9/d", "--size", "1KB", "--retention", "7d", "--replicas", "3")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def quiver(
    node: Served,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Commands:
    monkeypatch.chdir(tmp_path)
    return Commands(node.url, capsys)


@pytest.fixture(scope="module")
def measurement(node: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved by ``quiver bench``, once for all tests."""
    path = tmp_path_factory.mktemp("measurement") / "saved.json"
    flags = ("--url", node.url, "bench", "--save", str(path), "--seconds", "0.2")
    done = subprocess.run(
        command(*flags), env=environment(), capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def measured(quiver: Commands, measurement: Path, tmp_path: Path) -> Commands:
    shutil.copy(measurement, tmp_path / "quiver-bench.json")
    return quiver


def test_a_measurement_leads_to_a_plan(measured: Commands) -> None:
    told = measured(*PLAN, "--json")
    assert told.code == 0, told.err
    plan = told.json["plan"]
    assert plan["messages_kept"] == pytest.approx(7e9)
    assert 7e12 < plan["kept_bytes"] < 7.5e12
    assert plan["disk_bytes"] > 3 * plan["kept_bytes"]
    assert plan["nodes"] >= 3
    assert told.json["breaks_first"]["resource"] in {need["resource"] for need in plan["needs"]}
    assert measured("topic", "list", "--json").json == []


def test_people_get_figures_with_their_arithmetic(measured: Commands) -> None:
    said = measured(*PLAN).out
    for word in (
        "nodes",
        "partitions",
        "memory",
        "latency",
        "arithmetic",
        "cost drivers",
        "breaks first",
    ):
        assert f"\n{word}" in said
    assert "1,000,000,000 a day x 7 days = 7,000,000,000 messages" in said


def test_compression_is_measured_on_a_sample(measured: Commands, tmp_path: Path) -> None:
    lines = (f'{{"order": {n}, "state": "paid", "by": "card"}}\n' for n in range(3000))
    (tmp_path / "orders.jsonl").write_text("".join(lines))
    plain, packed = (
        measured(*PLAN, *flags, "--json").json for flags in ((), ("--sample", "orders.jsonl"))
    )
    ratio = packed["sample"]["stored_bytes"]["zstd"] / packed["sample"]["payload_bytes"]
    assert packed["plan"]["kept_bytes"] == pytest.approx(7e12 * ratio)
    assert packed["plan"]["disk_bytes"] < plain["plan"]["disk_bytes"] / 2


def test_the_size_may_come_from_the_sample(measured: Commands, tmp_path: Path) -> None:
    (tmp_path / "sample").write_text("x" * 200 + "\n")
    told = measured("plan", "--rate", "10", "--sample", "sample", "--json")
    assert told.json["workload"]["size_bytes"] == 200


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((*PLAN,), "the measurement quiver-bench.json does not exist"),
        (("bench", "--save", "x", "publish"), "--save and --disk work only without"),
        (("bench", "--json", "publish"), "--url after publish, read or latency"),
        (("bench", "--json"), "choose what to measure"),
    ],
)
def test_mistakes_are_told_in_a_line(quiver: Commands, flags: tuple[str, ...], told: str) -> None:
    ended = quiver(*flags)
    assert ended.code == 2
    assert told in ended.err
    assert ended.err.count("\n") == 1


def test_a_plan_needs_the_size_of_a_message(measured: Commands) -> None:
    ended = measured("plan", "--rate", "10")
    assert ended.code == 2
    assert ended.err.startswith("error: the message size is missing: give --size")
