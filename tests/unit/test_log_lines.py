"""The page of log lines names every line that the code can write."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.paths import REPOSITORY

ROOT = REPOSITORY
PAGE = (ROOT / "docs" / "reference" / "logs.md").read_text()
LEVELS = {"debug", "info", "warning", "error"}


def texts(event: ast.expr) -> Iterator[str]:
    """What the first argument of a log call may be."""
    if isinstance(event, ast.Constant):
        yield event.value
    elif isinstance(event, ast.IfExp):
        yield from texts(event.body)
        yield from texts(event.orelse)
    elif isinstance(event, ast.JoinedStr):
        yield ast.unparse(event.values[0]).strip("'").strip()
    else:
        raise AssertionError(f"line {event.lineno}: what is logged is not to be seen")


def lines() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "src" / "quiver").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
                and node.func.attr in LEVELS
            ):
                for text in texts(node.args[0]):
                    yield f"{path.name}:{node.lineno}", text


def test_every_line_is_on_the_page() -> None:
    found = list(lines())
    assert len(found) > 40
    assert [(place, text) for place, text in found if f"`{text}" not in PAGE] == []
