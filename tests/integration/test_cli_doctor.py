"""``quiver doctor --url`` against nodes that run, and against none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quiver.cli.support.exit_codes import run
from quiver.folder_version import FolderVersion, encode_version
from tests.serving import Commands, Served, app, served, unused_address

pytestmark = pytest.mark.process


def _verdicts(commands: Commands, url: str) -> dict[str, tuple[str, str]]:
    found = commands("doctor", "--url", url, "--json").json
    return {one["check"]: (one["verdict"], one["message"]) for one in found}


def test_a_node_that_runs_is_looked_at_and_its_ports_are_not_called_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path) as node:
        commands = Commands(node.url, capsys)
        commands("queue", "create", "emails")
        found = _verdicts(commands, node.url)
        assert found["node"][0] == "ok"
        assert found["version"][0] == "ok"
        assert found["clock"] == ("ok", "the node's clock agrees with this machine's")
        assert found["authentication"][0] == "warning"
        assert "free on the disk" in found["disk space"][1]
        assert found["readiness"][0] == "ok"
        assert found["alerts"][0] == "ok"
        assert not [check for check in found if "port" in check]
        assert commands("doctor", "--url", node.url).code == 0
        mixed = commands("doctor", "--url", node.url, "--data", "x")
        assert mixed.code == 2


def test_a_node_that_requires_tokens_is_found_to_do_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, "--authentication") as node:
        token = next(tmp_path.rglob("admin.token")).read_text()
        monkeypatch.setenv("QUIVER_TOKEN", token)
        assert _verdicts(Commands(node.url, capsys), node.url)["authentication"][0] == "ok"


def test_a_node_whose_disk_is_full_is_not_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path, "--set", "limits.free_bytes_min=1000TiB") as node:
        done = Commands(node.url, capsys)("doctor", "--json")
        assert done.code == 1
        (found,) = [one for one in done.json if one["check"] == "cluster"]
        assert (found["verdict"], found["message"]) == ("failure", "disks are full: node-1")


def test_the_address_before_the_commands_name_is_that_of_the_node_to_look_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"quiver://{unused_address()}"
    commands = Commands(url, capsys)
    done = commands("doctor", "--json")
    assert [(one["check"], one["verdict"]) for one in done.json] == [("node", "failure")]
    assert commands("doctor", "--data", "x").code == 2


def test_the_variable_with_an_address_does_not_turn_the_look_away_from_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIVER_URL", f"quiver://{unused_address()}")
    run(app, ["doctor", "--data", str(tmp_path), "--json"])
    checks = {one["check"] for one in json.loads(capsys.readouterr().out)}
    assert "data folder" in checks
    assert "node" not in checks


def test_no_node_is_one_clear_failure(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"quiver://{unused_address()}"
    done = Commands(url, capsys)("doctor", "--url", url, "--json")
    assert done.code == 1
    (one,) = done.json
    assert (one["check"], one["verdict"]) == ("node", "failure")


def test_a_node_does_not_start_on_the_folder_of_a_newer_version_and_doctor_says_so_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    newer = FolderVersion(quiver="9.1.0", needs="9.0.0", formats={"entries": 99})
    (data / "version.json").write_bytes(encode_version(newer))
    told = Commands("", capsys)("doctor", "--data", str(data), "--json")
    assert told.code == 1
    (found,) = [one for one in told.json if one["check"] == "data folder"]
    assert found["verdict"] == "failure"
    node = Served(tmp_path)
    try:
        assert node.wait() == 1
        (line,) = [one for one in node.log.splitlines() if one.startswith("error: ")]
        assert "entries 99 (this Quiver reads" in line
        assert "use Quiver 9.0.0 or later" in line
    finally:
        node.close()
    assert sorted(path.name for path in data.iterdir()) == ["lock", "version.json"]
