"""``quiver cluster`` against a node that is on its own, and the mistakes that are told in a line."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from quiver.cli.support.exit_codes import ExitCode, run
from tests.serving import Commands, Served, app, eventually, served

pytestmark = pytest.mark.process

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node"), "--log-format", "json") as node:
        yield node


@pytest.fixture
def quiver(node: Served, capsys: Capture) -> Commands:
    commands = Commands(node.url, capsys)
    assert commands("topic", "create", "orders", "--partitions", "2", "--if-not-exists").code == 0
    return commands


def test_a_node_on_its_own_describes_itself(quiver: Commands) -> None:
    status = quiver("cluster", "status", "--json").json
    assert status["health"] == "ok"
    assert status["nodes"]["alive"] == 1
    (node,) = quiver("cluster", "nodes", "--json").json
    assert (node["id"], node["leads"], node["holds"]) == ("node-1", 2, 2)
    places = quiver("cluster", "partitions", "--json").json
    assert [(one["topic"], one["index"], one["leader"]) for one in places] == [
        ("orders", 0, "node-1"),
        ("orders", 1, "node-1"),
    ]
    assert quiver("cluster", "partitions", "nothing", "--json").json == []
    assert quiver("cluster", "leaders", "--json").json == {"node-1": ["orders/0", "orders/1"]}


def test_a_forwarder_is_listed_while_it_lives(
    quiver: Commands, node: Served, tmp_path: Path
) -> None:
    flags = ("--role", "forwarder", "--name", "edge-1", "--upstream", node.url)
    with served(tmp_path, *flags) as forwarder:
        through = f"quiver://{forwarder.ready['native']}"
        eventually(lambda: "edge-1" in quiver("cluster", "nodes", url=through).out, "it is listed")
        _, listed = quiver("cluster", "nodes", "--json").json
        assert (listed["role"], listed["address"]) == ("forwarder", forwarder.ready["native"])
        assert "1 alive; 1 forwarder" in quiver("cluster", "status").out
        assert set(quiver("cluster", "leaders", "--json").json) == {"node-1"}
        cluster = httpx.get(f"{forwarder.http}/cluster", trust_env=False).json()
        assert [one["role"] for one in cluster["nodes"]] == ["full", "forwarder"]
        forwarder.stop(signal.SIGKILL)
        eventually(lambda: len(quiver("cluster", "nodes", "--json").json) == 1, "it is gone")


@pytest.mark.parametrize("what", ["status", "nodes", "partitions", "leaders"])
def test_people_get_tables(quiver: Commands, what: str) -> None:
    told = quiver("cluster", what)
    assert (told.code, told.err) == (0, "")
    assert "node-1" in told.out


def test_a_partition_is_split(quiver: Commands) -> None:
    assert quiver("topic", "create", "wide").code == 0
    child = quiver("cluster", "split", "wide/0", "--json").json
    assert (child["index"], child["parent"], child["parent_offset"]) == (1, 0, 0)
    assert child["first_hash"] == 1 << 31
    told = quiver("cluster", "split", "wide", "1")
    assert told.code == 0
    assert told.err == "split wide/1: half of its keys now go to partition 2\n"
    places = quiver("cluster", "partitions", "wide", "--json").json
    assert [one["index"] for one in places] == [0, 1, 2]
    described = quiver("topic", "describe", "wide").out.splitlines()
    assert ["partitions", "3"] in [line.split() for line in described]
    told = quiver("cluster", "split", "wide/7")
    assert (told.code, told.out) == (ExitCode.FAILED, "")
    assert "has partitions 0 to 2, not 7" in told.err
    assert quiver("topic", "delete", "wide", "--yes").code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["move", "orders/0", "node-2"],
        ["leaders", "--transfer", "orders/0"],
        ["decommission", "node-1", "--yes"],
    ],
    ids=lambda command: command[0],
)
def test_what_only_a_cluster_can_do_is_refused(quiver: Commands, command: list[str]) -> None:
    told = quiver("cluster", *command)
    assert (told.code, told.out) == (ExitCode.FAILED, "")
    assert told.err.startswith("error: This node is not part of a cluster")


def test_changes_are_in_the_audit_log(quiver: Commands, node: Served) -> None:
    quiver("cluster", "decommission", "somebody", "--yes")
    lines = [line for line in node.log.splitlines() if '"act": "decommission"' in line]
    assert any('"resource": "somebody"' in line and '"failed"' in line for line in lines)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["move", "orders", "node-1"], "'orders' is not a partition; write it as orders/0"),
        (["split", "orders"], "'orders' is not a partition; write it as orders/0"),
        (["leaders", "--to", "node-1"], "--to needs --transfer"),
        (["decommission", "node-1", "--wait", "soon"], "not a duration"),
        (["up", "--nodes", "0"], "'--nodes'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_told_in_a_line(command: list[str], said: str, capsys: Capture) -> None:
    assert run(app, ["cluster", *command]) == ExitCode.USAGE
    told = capsys.readouterr()
    assert said in told.err.splitlines()[0]
    assert told.out == ""
