"""Where the first token is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver.edge.auth.bootstrap_token import write_secret


@pytest.mark.parametrize("leads_somewhere", [True, False])
def test_a_secret_is_not_written_through_a_link(leads_somewhere: bool, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    if leads_somewhere:
        elsewhere.write_text("mine")
    for name in ("admin.token.new", "admin.token"):
        (tmp_path / name).symlink_to(elsewhere)
    path = tmp_path / "admin.token"
    write_secret(str(path), "secret")
    assert path.read_text() == "secret"
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    assert elsewhere.exists() is leads_somewhere
    assert not leads_somewhere or elsewhere.read_text() == "mine"


def test_what_a_killed_start_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "admin.token.new").write_text("a longer text of an earlier start")
    write_secret(str(tmp_path / "admin.token"), "secret")
    assert (tmp_path / "admin.token").read_text() == "secret"
    assert [path.name for path in tmp_path.iterdir()] == ["admin.token"]
