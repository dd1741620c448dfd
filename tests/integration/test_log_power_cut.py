"""The log against power cuts: a real file system loses what was not synced.

The second test turns the log's syncs off and must see a loss: it shows that the first one could.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from quiver.errors import LogError
from tests.integration.log_history import LogHistory
from tests.killable import ChildServer, Report
from tests.power import PowerCutVolume

pytestmark = pytest.mark.process

CUTS = 50
UNSYNCED_CUTS = 8
FLUSHES = 0.75
"""Before how many of the cuts the kernel writes back what it has, half-written entries included."""
SEED = 20_240_608


@pytest.fixture
def writers() -> Iterator[ChildServer]:
    server = ChildServer("tests.integration.log_writer:main")
    try:
        yield server
    finally:
        server.close()


def test_everything_acknowledged_survives_power_cuts(
    power_cut_volume: PowerCutVolume, writers: ChildServer
) -> None:
    folder = f"{power_cut_volume.path}/log"
    rng = random.Random(SEED)
    history = LogHistory()
    cuts = 0
    while cuts < CUTS or (not history.torn and cuts < 3 * CUTS):
        history.add(_write_until_power_cut(power_cut_volume, writers, rng, folder, cuts))
        cuts += 1
        # Now and then the next process meets what this one left, and may be cut as it recovers.
        if rng.random() < 0.7:
            history.check(folder)
    history.check(folder)
    assert history.acknowledged > CUTS, "hardly anything was appended: this showed nothing"
    assert history.dropped > 0, "retention dropped nothing: this showed nothing of it"
    assert history.torn > 0, "no write was torn: this showed nothing of that"


def test_without_syncs_power_cuts_lose_what_was_acknowledged(
    power_cut_volume: PowerCutVolume, writers: ChildServer
) -> None:
    rng = random.Random(SEED)
    losses = 0
    for run in range(UNSYNCED_CUTS):
        folder = f"{power_cut_volume.path}/log-{run}"
        history = LogHistory()
        history.add(
            _write_until_power_cut(power_cut_volume, writers, rng, folder, run, synced=False)
        )
        try:
            history.check(folder)
        except (AssertionError, LogError):
            losses += 1
    assert losses > 0, f"none of {UNSYNCED_CUTS} power cuts lost anything: the cuts are not real"


def _write_until_power_cut(
    volume: PowerCutVolume,
    writers: ChildServer,
    rng: random.Random,
    folder: str,
    run: int,
    synced: bool = True,
) -> list[Report]:
    child = writers.start(folder=folder, run=run, seed=rng.randrange(1 << 32), synced=synced)
    child.run_to_some_moment(rng, reports_max=60)
    if synced and rng.random() < FLUSHES:
        volume.flush()
    cut_ns = volume.cut()
    reports = child.kill()
    volume.remount()
    return [report for report in reports if report.time_ns < cut_ns]
