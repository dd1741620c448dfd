"""When a process that ended is started again."""

from __future__ import annotations

from quiver.cli.serve.restarts import LASTS_S, PAUSE_S_MAX, Restarts


def test_the_first_that_ends_is_started_again_at_once() -> None:
    restarts = Restarts()
    restarts.started(0, 100.0)
    assert restarts.pause_s(0, 100.1) == 0.0


def test_one_that_never_lasts_waits_ever_longer_up_to_a_bound() -> None:
    restarts, now, pauses = Restarts(), 0.0, []
    for _ in range(20):
        restarts.started(0, now)
        now += 0.1
        pauses.append(restarts.pause_s(0, now))
        now += pauses[-1]
    assert pauses[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_S_MAX


def test_one_that_lasted_begins_anew_and_each_number_counts_for_itself() -> None:
    restarts = Restarts()
    for number in (0, 1):
        for _ in range(4):
            restarts.started(number, 0.0)
            restarts.pause_s(number, 0.1)
    restarts.started(0, 10.0)
    assert restarts.pause_s(0, 10.0 + LASTS_S) == 0.0
    restarts.started(1, 10.0)
    assert restarts.pause_s(1, 10.1) > 0.0
