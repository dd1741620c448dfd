"""The benchmarks run and report; how fast anything is, no test asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import set_names

pytestmark = [pytest.mark.process, pytest.mark.long]

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(set(set_names()) - {"spark"}))  # it is with Spark's tests
def test_a_quick_run_produces_rows_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--results", "results"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "results" / f"{name}.json").read_text())
    assert result["quick"] is True
    assert result["machine"]["cores"] > 0
    assert result["rows"]
    for row in result["rows"]:
        assert row["value"] >= 0
        assert row["unit"]
    assert os.listdir(tmp_path) == ["results"]
