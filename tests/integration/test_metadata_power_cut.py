"""The metadata store against power cuts: a real file system loses what was not synced.

The second test lets SQLite sync less and must see a loss: it shows that the first one could.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.store import Listing
from quiver.model.clock import SystemClock
from tests.aio import run
from tests.integration.metadata_writer import SIDES, WRITERS, key_of, number_in
from tests.killable import ChildServer, Report
from tests.power import PowerCutVolume

pytestmark = pytest.mark.process

CUTS = 20
UNSYNCED_CUTS = 8
SEED = 20_240_609


@pytest.fixture
def writers() -> Iterator[ChildServer]:
    server = ChildServer("tests.integration.metadata_writer:main")
    try:
        yield server
    finally:
        server.close()


class Commits:
    """What was acknowledged, and what must therefore be in the store."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self._numbers = [0] * WRITERS
        self._revision = 0

    def add(self, reports: list[Report]) -> None:
        for report in reports:
            kind, *words = report.line.split()
            assert kind == "ack", f"a store that had its disk said: {report.line}"
            writer, number, revision = map(int, words)
            self.acknowledged += 1
            self._numbers[writer] = number
            self._revision = max(self._revision, revision)

    def check(self, path: str) -> None:
        listing = run(_read(path))
        assert listing.revision >= self._revision
        self._revision = listing.revision
        found = {entry.key: entry for entry in listing.entries}
        for writer, acknowledged in enumerate(self._numbers):
            entries = [found.get(key_of(side, writer)) for side in SIDES]
            numbers = {number_in(entry.value) if entry else 0 for entry in entries}
            revisions = {entry.revision if entry else 0 for entry in entries}
            assert len(numbers) == len(revisions) == 1, f"half a commit: {numbers} at {revisions}"
            (self._numbers[writer],) = numbers
            assert self._numbers[writer] >= acknowledged, f"writer {writer} has lost commits"


def test_every_acknowledged_commit_survives_power_cuts(
    power_cut_volume: PowerCutVolume, writers: ChildServer
) -> None:
    path = f"{power_cut_volume.path}/metadata.db"
    rng = random.Random(SEED)
    commits = Commits()
    for _ in range(CUTS):
        commits.add(_commit_until_power_cut(power_cut_volume, writers, rng, path))
        commits.check(path)
    assert commits.acknowledged > CUTS, "hardly anything was committed: this showed nothing"


def test_with_fewer_syncs_power_cuts_lose_acknowledged_commits(
    power_cut_volume: PowerCutVolume, writers: ChildServer
) -> None:
    path = f"{power_cut_volume.path}/metadata.db"
    rng = random.Random(SEED)
    losses = 0
    for _ in range(UNSYNCED_CUTS):
        commits = Commits()
        commits.add(_commit_until_power_cut(power_cut_volume, writers, rng, path, synced=False))
        try:
            commits.check(path)
        except AssertionError:
            losses += 1
    assert losses > 0, f"none of {UNSYNCED_CUTS} power cuts lost anything: the cuts are not real"


def _commit_until_power_cut(
    volume: PowerCutVolume,
    writers: ChildServer,
    rng: random.Random,
    path: str,
    synced: bool = True,
) -> list[Report]:
    child = writers.start(path=path, synced=synced)
    child.run_to_some_moment(rng, reports_max=60)
    cut_ns = volume.cut()
    reports = child.kill()
    volume.remount()
    return [report for report in reports if report.time_ns < cut_ns]


async def _read(path: str) -> Listing:
    store = await SqliteStore.open(path, SystemClock())
    try:
        return await store.list("")
    finally:
        await store.close()
