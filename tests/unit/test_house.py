"""Limits on the size of things in ``src``, so that each stays small enough to read at once.

A class has at most 25 public methods; the clients are exempt, because their surface is the product. A
constructor has at most 8 parameters; settings and other plain data are exempt. A folder has at most 20
modules, and the median module at most 120 lines.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.paths import REPOSITORY

METHODS_MAX = 25
PARAMETERS_MAX = 8
MODULES_MAX = 20
MEDIAN_LINES_MAX = 120

SOURCE = REPOSITORY / "src"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
CLIENT = SOURCE / "quiver" / "client"


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield path, node


def functions(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def public_methods(node: ast.ClassDef) -> set[str]:
    """Methods and properties; a property and its setter are one."""
    return {one.name for one in functions(node) if not one.name.startswith("_")}


def parameter_count(node: ast.ClassDef) -> int:
    """How many parameters its constructor has, ``self`` aside."""
    for one in functions(node):
        if one.name == "__init__":
            given = one.args
            named = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
            return named + (given.vararg is not None) + (given.kwarg is not None) - 1
    return 0


def test_no_class_has_too_many_public_methods() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {node.name}": len(public_methods(node))
        for path, node in classes()
        if not path.is_relative_to(CLIENT)
    }
    assert {name: count for name, count in found.items() if count > METHODS_MAX} == {}


def test_no_constructor_has_too_many_parameters() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {node.name}": parameter_count(node)
        for path, node in classes()
    }
    assert {name: count for name, count in found.items() if count > PARAMETERS_MAX} == {}


def test_no_folder_has_too_many_modules() -> None:
    counts = Counter(str(path.parent.relative_to(SOURCE)) for path in MODULES)
    assert {folder: count for folder, count in counts.items() if count > MODULES_MAX} == {}


def test_the_median_module_is_short() -> None:
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES]
    assert median(lines) <= MEDIAN_LINES_MAX
