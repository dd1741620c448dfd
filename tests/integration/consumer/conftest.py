from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import quiver
from tests.integration.client_node import ProcessNode, ThreadNode
from tests.integration.consumer.workers import Work, Worker


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ThreadNode]:
    """A node in this process."""
    running = ThreadNode(tmp_path / "node")
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ProcessNode]:
    """A node in a process, which can be killed."""
    running = ProcessNode(tmp_path / "served")
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def q(request: pytest.FixtureRequest) -> Iterator[quiver.Client]:
    """A client of the node of this test."""
    is_served = {"served", "start_worker"} & set(request.fixturenames)
    name = "served" if is_served else "node"
    with quiver.Client(request.getfixturevalue(name).url) as client:
        yield client


StartWorker = Callable[..., Worker]


@pytest.fixture
def start_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartWorker]:
    """Start workers of the queue ``jobs``, which are gone at the end of the test."""
    workers: list[Worker] = []
    numbers = count()
    url = request.getfixturevalue("served").url

    def start(work: Work, queue: str = "jobs", **options: Any) -> Worker:
        log = str(tmp_path / f"worker-{next(numbers)}.log")
        workers.append(Worker(work, url, queue, log, **options))
        return workers[-1]

    try:
        yield start
    finally:
        for worker in workers:
            worker.close()
