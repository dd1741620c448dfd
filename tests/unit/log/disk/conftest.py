"""Tests of the disk itself are on a disk, wherever other temporary folders are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)
