"""Settings for all tests: a busy machine is no failure, so no example of Hypothesis has a deadline.

Modules marked ``long`` come first in each worker's share: a worker that is done takes from the end of
another's, and so the end of a run is many short tests and not one long one.
"""

from __future__ import annotations

import os
from itertools import groupby

import pytest
from hypothesis import settings

from tests.interrupts import restore_interrupts

restore_interrupts()
settings.register_profile("quiver", deadline=None)
settings.load_profile("quiver")


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
