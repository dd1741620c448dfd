"""Whole clusters on virtual time: whatever goes wrong, nothing confirmed is lost."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from quiver.testing.simulator.search import shortest, told
from quiver.testing.simulator.simulation import simulate

SEEDS = 200
CHUNK = 5


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_finds_anything(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        if outcome.findings:
            story = "\n".join(told(shortest(outcome)))
            pytest.fail(f"quiver sim --seed {seed}\n{story}")


def test_the_clusters_of_the_seeds_are_in_real_trouble_and_still_of_use() -> None:
    outcomes = [simulate(seed) for seed in range(10)]
    sends = [send for outcome in outcomes for send in outcome.history.sends]
    confirmed = sum(send.outcome == "done" for send in sends)
    assert confirmed > 500
    assert len(sends) - confirmed > 10, "some publishes had no answer in time"
    assert sum(len(outcome.history.led) for outcome in outcomes) > 40, "leaders changed"
    assert sum(len(outcome.history.reads) for outcome in outcomes) > 500


def test_a_seed_is_the_same_byte_for_byte_in_every_process() -> None:
    program = (
        "import hashlib; from quiver.testing.simulator.simulation import simulate\n"
        "print(hashlib.sha256(simulate(7).history.encode()).hexdigest())"
    )
    here = hashlib.sha256(simulate(7).history.encode()).hexdigest()
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        assert there.stdout.strip() == here


def test_another_seed_is_another_story() -> None:
    assert simulate(7).history.encode() != simulate(8).history.encode()
