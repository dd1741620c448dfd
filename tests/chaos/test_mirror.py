"""Two clusters of three nodes and a mirror between them, with anything going wrong anywhere.

``make test`` makes a few faults. ``make chaos`` makes one or two at a time, for a minute for each of its
rounds: ten minutes by default. Then the copy is promoted under load, and queue and group go on there. A
failure names the seed and the faults; ``QUIVER_CHAOS_SEED`` begins with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.accounting import findings
from tests.chaos.mirror_faults import (
    FAULTS,
    PARTITIONS,
    SHORT,
    TOPIC,
    MirrorStage,
    mirror_stage,
    require_same,
)
from tests.chaos.test_scenarios import ROUNDS, SEED
from tests.chaos.workload import Seen
from tests.integration.mirror.nodes import entries

_SECONDS = 60 * ROUNDS

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.timeout(600 + 3 * _SECONDS)]


def chosen(stage: MirrorStage) -> Iterator[tuple[str, ...]]:
    """The faults to make, one or two at a time."""
    if not ROUNDS:
        yield from SHORT
        return
    ends = time.monotonic() + _SECONDS
    while time.monotonic() < ends:
        yield tuple(stage.rng.sample(sorted(FAULTS), stage.rng.choice((1, 1, 2))))


def test_a_copy_is_exact_whatever_breaks_and_consumers_go_on_after_a_promote_under_load(
    tmp_path: Path,
) -> None:
    with mirror_stage(tmp_path, SEED) as stage:
        for faults in chosen(stage):
            stage.make(*faults)
            stage.workload.goes_on()
            stage.catches_up()
        stage.promote()
        stage.workload.goes_on()
        seen = stage.workload.finish()
        for index in range(PARTITIONS):
            source = entries(stage.source.url, TOPIC, index)
            copy = entries(stage.target.url, TOPIC, index)
            require_same(copy[: len(source)], source, f"{TOPIC}/{index}")
            assert len(copy) > len(source), "messages were published after the promote"
        assert findings(seen) == []
        assert findings(Seen(seen.history, stage.workload.group_deliveries)) == []
