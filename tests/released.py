"""The last released version of Quiver, taken out of the repository's history to be run beside this one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

COMMIT = (REPOSITORY / "tests" / "released_commit.txt").read_text().split("\n")[-2]
VERSION = "0.0.9"
"""What the released tree calls itself here, so that the two versions can be told apart."""


def released_source(folder: Path) -> Path:
    """The ``src`` of the released commit, in ``folder``. Where the history lacks it, the test is skipped."""
    archive = folder / "released.tar"
    try:
        subprocess.run(
            ["git", "archive", "--output", str(archive), COMMIT, "src"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"").decode(errors="replace").strip() or str(error)
        pytest.skip(f"the released commit {COMMIT[:12]} is not in the history: {reason}")
    subprocess.run(["tar", "--extract", "--file", str(archive)], cwd=folder, check=True)
    (folder / "src" / "quiver" / "version.py").write_text(f'__version__ = "{VERSION}"\n')
    return folder / "src"
