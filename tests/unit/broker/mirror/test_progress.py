"""What metrics say of a copy: only what is known."""

from __future__ import annotations

from quiver.broker.mirror.progress import PartitionProgress, mirror_samples
from quiver.testing.clock import ManualClock


def test_a_lag_counts_when_all_partitions_are_known_and_not_before() -> None:
    first, second = (PartitionProgress("eu", "orders", index, ManualClock()) for index in (0, 1))
    first.watched(end=2, source_end=5)
    (sample,) = mirror_samples([first, second], 0)
    assert (sample.lag_messages, sample.lag_bytes) == (None, None)
    second.watched(end=7, source_end=7)
    (sample,) = mirror_samples([first, second], 0)
    assert (sample.lag_messages, sample.lag_bytes) == (3, None)
    first.watched(end=5, source_end=5)
    (sample,) = mirror_samples([first, second], 0)
    assert (sample.lag_messages, sample.lag_bytes) == (0, 0)
