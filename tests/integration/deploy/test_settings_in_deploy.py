"""Whatever ``deploy/`` sets about a node is a setting that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages.command_line import commands

from tests.integration.deploy.variables import KNOWN
from tests.paths import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
FOLDERS = ("container", "helm", "systemd")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (DEPLOY / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)
FLAGS = {
    option
    for command in commands()
    if command.path == "quiver serve"
    for param in command.command.params
    for option in param.opts
}
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)


def each_file(function: object) -> object:
    ids = [str(path.relative_to(DEPLOY)) for path in FILES]
    return pytest.mark.parametrize("path", FILES, ids=ids)(function)  # type: ignore[type-var]


@each_file
def test_every_variable_is_one_of_a_setting(path: Path) -> None:
    text = _COMMENT.sub("", path.read_text())
    named = set(re.findall(r"\bQUIVER_[A-Z0-9_]+(?=\b)(?!\{)", text))
    assert {name for name in named if not name.endswith("_")} <= KNOWN


@each_file
def test_every_flag_of_serve_is_one(path: Path) -> None:
    for line in re.findall(r"quiver serve( [^\n]*)?$", path.read_text(), re.MULTILINE):
        assert set(re.findall(r"--[a-z-]+", line)) <= FLAGS


def test_the_files_and_the_flags_were_found() -> None:
    assert {path.relative_to(DEPLOY).parts[0] for path in FILES} <= set(FOLDERS)
    assert {"--data", "--config"} <= FLAGS
    assert "QUIVER_DATA" in KNOWN
