"""Every code block in the README and the how-to pages runs as printed, against a real node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import environment, served

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
DEFAULT_URL = "quiver://127.0.0.1:7401"
HTTP = "http://127.0.0.1:7400"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RUNNERS = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and the text of each block that can be run."""
    return [(kind, text) for kind, text in _BLOCK.findall(page.read_text()) if kind in _RUNNERS]


def test_the_readme_has_blocks_to_run() -> None:
    assert {kind for kind, _ in blocks(PAGES[0])} == {"bash", "python"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run_as_printed(page: Path, tmp_path: Path) -> None:
    with served(tmp_path / "node") as node:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        variables = environment(QUIVER_URL=node.url, PATH=path)
        for kind, text in blocks(page):
            done = subprocess.run(
                [*_RUNNERS[kind], text.replace(DEFAULT_URL, node.url).replace(HTTP, node.http)],
                env=variables,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
