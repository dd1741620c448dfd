"""Committed offset and lag follow from the delivery state and the log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quiver.broker.delivery.machine.view import Depth
from quiver.broker.delivery.progress import progress_of


def _progress(*, floor: int, observed_to: int, start: int, end: int, ready: int) -> Any:
    view: Any = SimpleNamespace(
        floor=floor, observed_to=observed_to, depth=Depth(ready, 0, 0, 0, 0)
    )
    log: Any = SimpleNamespace(start_offset=start, next_offset=end)
    return progress_of(view, log)


def test_known_messages_and_those_not_read_yet_are_the_lag() -> None:
    progress = _progress(floor=3, observed_to=6, start=0, end=10, ready=2)
    assert (progress.committed, progress.end, progress.lag) == (3, 10, 6)
    assert (progress.unseen, progress.first_unseen) == (4, 6)


def test_what_retention_removed_is_committed_and_no_lag() -> None:
    progress = _progress(floor=0, observed_to=0, start=8, end=10, ready=0)
    assert (progress.committed, progress.lag, progress.first_unseen) == (8, 2, 8)


def test_a_subscription_that_is_ahead_of_a_shorter_log_is_at_its_end() -> None:
    progress = _progress(floor=12, observed_to=12, start=0, end=10, ready=0)
    assert (progress.committed, progress.end, progress.lag) == (10, 10, 0)
