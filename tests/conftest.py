"""Settings for all tests: a busy machine is no failure, so no example of Hypothesis has a deadline.

Modules marked ``long`` come first in each worker's share: a worker that is done takes from the end of
another's, and so the end of a run is many short tests and not one long one.

Tests that start processes are marked ``process``, those in some folders all of them. ``make check``
leaves them out, and there a test fails that starts one without being marked.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from tests.interrupts import restore_interrupts
from tests.memory import put_temporary_folders_in_memory

restore_interrupts()
put_temporary_folders_in_memory()
settings.register_profile("quiver", deadline=None)
settings.load_profile("quiver")


_PROCESS_FOLDERS = {
    Path(__file__).parent / folder
    for folder in ("acceptance", "browser", "chaos", "integration/cluster", "spark")
}
_STARTS = frozenset(("subprocess.Popen", "os.fork", "os.posix_spawn"))
_refused: list[str] = []
"""The test that runs now, once a run is one of tests that start no process."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if not _PROCESS_FOLDERS.isdisjoint(item.path.parents):
        item.add_marker(pytest.mark.process)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if "not process" in item.config.option.markexpr:
        if not _refused:
            sys.addaudithook(_refuse_processes)
        _refused[:] = [item.nodeid]


def _refuse_processes(event: str, _arguments: tuple[Any, ...]) -> None:
    if event in _STARTS:
        raise RuntimeError(f"mark {_refused[0]} with pytest.mark.process: it starts a process")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("long")]
    short = [item for item in items if not item.get_closest_marker("long")]
    modules = [list(module) for _, module in groupby(long, lambda item: item.path)]
    firsts = [
        [item for one in modules[worker::workers] for item in one] for worker in range(workers)
    ]
    rest = iter(short)
    ends = [len(items) * (worker + 1) // workers for worker in range(workers)]
    items.clear()
    for first, end in zip(firsts, ends, strict=True):
        items += first
        items += [item for _, item in zip(range(end - len(items)), rest, strict=False)]
    items += rest


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What stays until the end, ten thousand tests and what they import, is not looked through again."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(5_000)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Whoever sets up a node's log in the test's process does so for itself alone.

    Such a log keeps its loggers, so that later tests would not see what they say.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    if structlog.get_config()["cache_logger_on_first_use"]:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
