"""The log against SIGKILL: a real process dies at any moment, and nothing acknowledged is missing."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.log_history import LogHistory
from tests.killable import ChildServer

pytestmark = pytest.mark.process

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
    kills = 0
    while kills < KILLS or (not history.torn and kills < 3 * KILLS):
        child = writers.start(folder=folder, run=kills, seed=rng.randrange(1 << 32))
        child.run_to_some_moment(rng, reports_max=60)
        history.add(child.kill())
        assert child.status == -signal.SIGKILL
        kills += 1
        # Now and then the next process meets what this one left, and may be killed as it recovers.
        if rng.random() < 0.7:
            history.check(folder)
    history.check(folder)
    assert history.acknowledged > KILLS, "hardly anything was appended: this showed nothing"
    assert history.dropped > 0, "retention dropped nothing: this showed nothing of it"
    assert history.torn > 0, "no write was torn: this showed nothing of that"
