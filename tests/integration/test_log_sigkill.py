"""The log against SIGKILL: a real process dies at any moment, and nothing acknowledged is missing."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.log_history import LogHistory
from tests.killable import ChildServer

KILLS = 25
SEED = 20_240_607


@pytest.fixture
def writers() -> Iterator[ChildServer]:
    server = ChildServer("tests.integration.log_writer:main")
    try:
        yield server
    finally:
        server.close()


def test_everything_acknowledged_survives_sigkill(tmp_path: Path, writers: ChildServer) -> None:
    folder = str(tmp_path / "log")
    rng = random.Random(SEED)
    history = LogHistory()
    for run in range(KILLS):
        child = writers.start(folder=folder, run=run, seed=rng.randrange(1 << 32))
        child.run_for(rng.uniform(0, 0.15))
        history.add(child.kill())
        assert child.status == -signal.SIGKILL
        # Now and then the next process meets what this one left, and may be killed as it recovers.
        if rng.random() < 0.7 or run == KILLS - 1:
            history.check(folder)
    assert history.acknowledged > KILLS, "hardly anything was appended: this showed nothing"
    assert history.dropped > 0, "retention dropped nothing: this showed nothing of it"
