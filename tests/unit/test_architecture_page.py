"""The tree that docs/architecture.md shows is the real one."""

from __future__ import annotations

import re

from tests.paths import REPOSITORY

PAGE = (REPOSITORY / "docs/architecture.md").read_text()
SOURCE = REPOSITORY / "src/quiver"


def test_the_tree_names_every_package_and_no_other() -> None:
    tree = re.search(r"## The tree.*?```text\n(.*?)```", PAGE, re.S)
    assert tree is not None
    shown = [line.split("  ")[0].rstrip("/ ") for line in tree.group(1).splitlines()]
    packages = [str(one.parent.relative_to(SOURCE)) for one in SOURCE.rglob("__init__.py")]
    assert sorted(shown) == sorted(set(packages) - {"."})


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", PAGE)
    assert named
    assert [one for one in named if not (SOURCE / one).exists()] == []
