"""``quiver doctor --url`` against nodes that run, and against none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving import Commands, served, unused_address

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


def test_no_node_is_one_clear_failure(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"quiver://{unused_address()}"
    done = Commands(url, capsys)("doctor", "--url", url, "--json")
    assert done.code == 1
    (one,) = done.json
    assert (one["check"], one["verdict"]) == ("node", "failure")
