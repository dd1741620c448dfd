"""``quiver token``, the first token, and what ``quiver serve`` refuses, as an operator meets them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from quiver.cli.support.exit_codes import ExitCode, run
from tests.serving import Commands, app, served

pytestmark = pytest.mark.process

Capture = pytest.CaptureFixture[str]


def test_the_first_token_is_in_a_private_file_and_makes_others(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, "--authentication", "--log-format", "json") as node:
        quiver = Commands(node.url, capsys)
        refused = quiver("topic", "list")
        assert (refused.code, refused.out) == (ExitCode.FAILED, "")
        assert "requires a token" in refused.err
        file = node.data / "admin.token"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        monkeypatch.setenv("QUIVER_TOKEN", file.read_text().strip())
        assert quiver("topic", "create", "orders").code == 0

        made = quiver("token", "create", "shop", "--grant", "publish:orders", "--expires", "30d")
        assert made.code == 0
        token = made.out.strip()
        listed = {one["name"]: one for one in quiver("token", "list", "--json").json}
        assert listed["shop"]["grants"] == ["publish:orders"]
        assert listed["shop"]["expires_us"] > listed["shop"]["created_us"]
        assert token not in quiver("token", "list").out

        with monkeypatch.context() as as_shop:
            as_shop.setenv("QUIVER_TOKEN", token)
            assert quiver("publish", "orders", "1").code == 0
            denied = quiver("token", "list")
            assert denied.code == ExitCode.FAILED
            assert "shop has no grant" in denied.err
        assert quiver("token", "revoke", listed["shop"]["id"]).code == 0
        with monkeypatch.context() as as_shop:
            as_shop.setenv("QUIVER_TOKEN", token)
            assert "revoked" in quiver("publish", "orders", "2").err
        assert token.rpartition("_")[2] not in node.log
        assert file.read_text().strip() not in node.log + node.output
        audit = [line for line in node.log.splitlines() if '"message": "audit"' in line]
        assert any('"act": "create_token"' in line and '"done"' in line for line in audit)
        assert any('"act": "list_tokens"' in line and '"refused"' in line for line in audit)
        assert quiver("token", "list", "--data", str(node.data)).code == ExitCode.FAILED


def test_tokens_of_a_node_that_is_down_are_made_in_its_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "node" / "data"
    data.parent.mkdir()
    folder = ["--data", str(data)]
    assert run(app, ["token", "create", "ops", "--grant", "admin:*", *folder]) == 0
    token = capsys.readouterr().out.strip()
    with served(tmp_path / "node", "--authentication") as node:
        assert not (node.data / "admin.token").exists(), "there was a token already"
        monkeypatch.setenv("QUIVER_TOKEN", token)
        assert Commands(node.url, capsys)("topic", "create", "orders").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "x"], "at least one --grant"),
        (["create", "x", "--grant", "write:a"], "not a grant"),
        (["create", "x y", "--grant", "publish:a"], "is not a token name"),
        (["create", "x", "--grant", "publish:a", "--expires", "soon"], "not a duration"),
        (["create", "x", "--grant", "publish:a", "--expires", "0s"], "1 s to 100 years"),
        (["revoke", "0123456789abcdef"], "there is no token"),
    ],
)
def test_mistakes_are_told_in_a_line(
    tmp_path: Path, capsys: Capture, arguments: list[str], said: str
) -> None:
    assert run(app, ["token", *arguments, "--data", str(tmp_path)]) != 0
    assert said in capsys.readouterr().err


def test_a_node_does_not_listen_to_other_machines_without_authentication(
    tmp_path: Path, capsys: Capture
) -> None:
    arguments = ["serve", "--data", str(tmp_path / "data"), "--native", "0.0.0.0:0"]
    assert run(app, arguments) == ExitCode.USAGE
    assert "--insecure" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
