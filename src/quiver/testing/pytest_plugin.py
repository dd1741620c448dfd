"""Pytest fixtures for programs that use Quiver; pytest finds them once the package is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quiver import Client


@pytest.fixture
def quiver_broker(tmp_path: Path) -> Iterator[Client]:
    """A client of a real broker inside this process, empty, and gone after the test."""
    import quiver  # noqa: PLC0415 - every test run loads this module, few need the broker

    with quiver.open(tmp_path / "quiver") as client:
        yield client
