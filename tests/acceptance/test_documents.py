"""Every code block in the README and the how-to pages runs as printed, against a real node."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import Served, environment, served, unused_address

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
NATIVE, HTTP = "127.0.0.1:7401", "127.0.0.1:7400"
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For Java, which Spark's page starts twice."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RUNNERS = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and the text of each block that can be run."""
    return [(kind, text) for kind, text in _BLOCK.findall(page.read_text()) if kind in _RUNNERS]


def as_run(text: str, node: Served, own: list[str]) -> str:
    """The block with free ports: of the node that is there, and of one that the page starts."""
    text = text.replace(f"quiver://{NATIVE}", node.url).replace(f"http://{HTTP}", node.http)
    return text.replace(NATIVE, own[0]).replace(HTTP, own[1])


def test_the_readme_has_blocks_to_run() -> None:
    assert {kind for kind, _ in blocks(PAGES[0])} == {"bash", "python"}


DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
]
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    links = _LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.fixture
def own(tmp_path: Path) -> Iterator[list[str]]:
    """Where a page's own node listens, if it starts one. It, or a cluster, is gone afterwards."""
    yield [unused_address(), unused_address()]
    ready, cluster = tmp_path / "ready.json", tmp_path / "cluster.pid"
    pids = [json.loads(ready.read_text())["pid"]] if ready.exists() else []
    for pid in [*pids, *(map(int, cluster.read_text().split()) if cluster.exists() else ())]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run_as_printed(page: Path, tmp_path: Path, own: list[str]) -> None:
    if "openssl" in page.read_text() and shutil.which("openssl") is None:
        pytest.skip("the page makes certificates with openssl, which is not there")
    with served(tmp_path / "node") as node:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        variables = environment(QUIVER_URL=node.url, PATH=path, JAVA_TOOL_OPTIONS=QUICK_START)
        for kind, text in blocks(page):
            done = subprocess.run(
                [*_RUNNERS[kind], as_run(text, node, own)],
                env=variables,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=500,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
