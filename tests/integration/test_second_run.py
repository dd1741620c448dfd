"""A test that fails beside others has one more chance, alone, and is named; nothing else has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

pytestmark = pytest.mark.process

_UNSTEADY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    seen = Path(__file__).with_name(f"seen-{{number}}")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
"""


def _run(folder: Path, text: str, where: str = "integration") -> subprocess.CompletedProcess[str]:
    file = folder / "tests" / where / "test_one.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, "-m", "tests.second_run", "-n", "2", f"--rootdir={folder}", str(file)],
        cwd=REPOSITORY,
        env={
            "PYTHONPATH": str(REPOSITORY),
            "PYTEST_ADDOPTS": f"-c {folder / 'pytest.ini'} -p xdist",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # each process would load them all
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_one_that_passes_alone_is_named_and_passes(tmp_path: Path) -> None:
    ended = _run(tmp_path, _UNSTEADY.format(tests=3))
    assert ended.returncode == 0, ended.stdout
    told = ended.stdout.partition("unsteady: failed beside others, passed alone")[2]
    assert [f"test_it[{number}]" in told for number in range(3)] == [True] * 3


def test_one_that_fails_twice_fails(tmp_path: Path) -> None:
    ended = _run(tmp_path, "def test_it():\n    assert False\n")
    assert ended.returncode == 1
    assert "unsteady" not in ended.stdout


def test_many_failures_have_no_second_run(tmp_path: Path) -> None:
    ended = _run(tmp_path, _UNSTEADY.format(tests=4))
    assert ended.returncode == 1
    assert "no second run for 4 failures, 3 at most" in ended.stdout


def test_what_is_deterministic_has_no_second_run(tmp_path: Path) -> None:
    ended = _run(tmp_path, _UNSTEADY.format(tests=1), where="unit")
    assert ended.returncode == 1
    assert "no second run for what is deterministic: tests/unit/test_one.py" in ended.stdout


def test_a_run_that_could_not_begin_has_no_second_run(tmp_path: Path) -> None:
    ended = _run(tmp_path, "import nothing_of_this_name\n")
    assert ended.returncode not in {0, 1}
    assert "unsteady" not in ended.stdout
