"""The benchmarks run and report; how fast anything is, no test asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import set_names
from benchmarks.harness.kept import RESULTS

pytestmark = [pytest.mark.process, pytest.mark.long]

ROOT = Path(__file__).parent.parent.parent


def run_benchmarks(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(set(set_names()) - {"spark"}))  # it is with Spark's tests
def test_a_quick_run_produces_rows_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    done = run_benchmarks(tmp_path, name, "--quick", "--results", "results")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "results" / f"{name}.json").read_text())
    assert result["quick"] is True
    assert result["machine"]["cores"] > 0
    assert result["rows"]
    for row in result["rows"]:
        assert row["value"] >= 0
        assert row["unit"]
    assert os.listdir(tmp_path) == ["results"]
    page = (tmp_path / "results" / "README.md").read_text()
    assert f"## {name}\n\n{result['date']} UTC. " in page
    assert all(row["name"] in page for row in result["rows"])


def test_a_quick_run_is_not_kept_in_the_tree() -> None:
    kept = {path: path.read_bytes() for path in RESULTS.iterdir()}
    done = run_benchmarks(ROOT, "start", "--quick", "--results", str(RESULTS))
    assert done.returncode == 2
    assert "a quick run is not kept" in done.stderr
    assert {path: path.read_bytes() for path in RESULTS.iterdir()} == kept


def test_a_run_of_one_set_keeps_the_others_and_says_so(tmp_path: Path) -> None:
    kept = json.loads((RESULTS / "one.json").read_text())
    (tmp_path / "one.json").write_text(json.dumps(kept))
    before = (tmp_path / "one.json").read_bytes()
    done = run_benchmarks(tmp_path, "start", "--quick", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"Kept as they were measured before: one ({kept['date']})." in done.stdout
    assert (tmp_path / "one.json").read_bytes() == before
    page = (tmp_path / "README.md").read_text()
    assert f"## one\n\n{kept['date']} UTC. " in page
    assert "## start\n" in page
