"""A node to copy from, and one to copy to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.client_node import ThreadNode
from tests.integration.mirror.nodes import node


@pytest.fixture
def source(tmp_path: Path) -> Iterator[ThreadNode]:
    with node(tmp_path / "source") as running:
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ThreadNode]:
    with node(tmp_path / "target") as running:
        yield running
