"""Whole clusters on virtual time: whatever goes wrong, nothing confirmed is lost."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quiver.broker.delivery.snapshots import LoggedSnapshots
from quiver.client.transport.connection import Connection
from quiver.testing.simulator.mirrors.history import MirrorHistory
from quiver.testing.simulator.search import shortest, story_lines
from quiver.testing.simulator.simulation import DEFAULTS, SimulationSettings, simulate

SEEDS = 96
"""One in four of them with brokers, and one in sixteen each with consumer sessions, receives and
transactions."""
QUICK_SEEDS = 16
"""Those that ``make check`` tries too."""
CHUNK = 2
SEED, BROKER_SEED, SESSION_SEED, RECEIVE_SEED = 6, 7, 5, 13
TRANSACTION_SEED, CLIENT_TRANSACTION_SEED, SINK_SEED, SESSION_TRANSACTION_SEED = 9, 25, 41, 89
FAILBACK_SEED = 3
LIGHT, BROKERS = SimulationSettings(brokers=False), SimulationSettings(brokers=True)
SESSIONS = SimulationSettings(brokers=True, sessions=True)
RECEIVES = SimulationSettings(brokers=True, receives=True)
TRANSACTIONS = SimulationSettings(brokers=True, transactions=True)
MIRRORS = SimulationSettings(mirrors=True)
MIRROR_SEEDS = 16
QUICK_MIRROR_SEEDS = 2


@pytest.mark.parametrize("first", range(0, QUICK_SEEDS, CHUNK))
def test_no_quick_seed_finds_anything(first: int) -> None:
    assert story_of_findings(first) is None


@pytest.mark.long
@pytest.mark.parametrize("first", range(QUICK_SEEDS, SEEDS, CHUNK))
def test_no_seed_finds_anything(first: int) -> None:
    assert story_of_findings(first) is None


@pytest.mark.parametrize("seed", range(QUICK_MIRROR_SEEDS))
def test_no_quick_seed_with_a_mirror_finds_anything(seed: int) -> None:
    assert story_of_findings(seed, 1, MIRRORS) is None


@pytest.mark.long
@pytest.mark.parametrize("first", range(QUICK_MIRROR_SEEDS, MIRROR_SEEDS, CHUNK))
def test_no_seed_with_a_mirror_finds_anything(first: int) -> None:
    assert story_of_findings(first, CHUNK, MIRRORS) is None


def story_of_findings(
    first: int, count: int = CHUNK, settings: SimulationSettings = DEFAULTS
) -> str | None:
    """The story of the first of some seeds that finds something; ``None`` if none does."""
    for seed in range(first, first + count):
        outcome = simulate(seed, settings)
        if outcome.findings:
            story = "\n".join(story_lines(shortest(outcome, settings)))
            switch = "--mirrors " if settings.mirrors else ""
            return f"quiver sim {switch}--seed {seed}\n{story}"
    return None


@pytest.mark.long
def test_the_clusters_of_the_seeds_are_in_real_trouble_and_still_of_use() -> None:
    outcomes = [simulate(seed, LIGHT) for seed in range(10)]
    sends = [send for outcome in outcomes for send in outcome.history.sends]
    confirmed = sum(send.outcome == "done" for send in sends)
    assert confirmed > 500
    assert len(sends) - confirmed > 10, "some publishes had no answer in time"
    assert sum(len(outcome.history.led) for outcome in outcomes) > 40, "leaders changed"
    assert sum(len(outcome.history.reads) for outcome in outcomes) > 500


@pytest.mark.long
def test_the_brokers_of_the_seeds_are_in_real_trouble_and_still_of_use() -> None:
    snapshots: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoggedSnapshots, "_submit", noted(LoggedSnapshots._submit, snapshots))
        histories = [simulate(seed, BROKERS).history for seed in range(4)]
    settlements = [one for history in histories for one in history.settlements]
    assert sum(one.outcome == "done" for one in settlements) > 100
    assert sum(one.outcome == "unknown" for one in settlements) > 3, "some got no answer in time"
    assert sum(bool(one.stale) for one in settlements) > 3, "some leases had ended"
    assert sum(len(history.deliveries) for history in histories) > 500
    assert sum(one.attempt > 1 for history in histories for one in history.deliveries) > 50
    assert sum(len(history.letters) for history in histories) > 20
    assert len(snapshots) > 20
    starts = [
        copy.values[0][0]
        for history in histories
        for copies in history.states.values()
        for copy in copies
        if copy.values
    ]
    assert max(starts) > 0, "what is before a snapshot is dropped"


@pytest.mark.long
def test_the_sessions_of_the_seeds_are_in_real_trouble_and_still_of_use() -> None:
    histories = [simulate(seed, SESSIONS).history for seed in range(4, 8)]
    lives = [life.how for history in histories for life in history.lives]
    assert {"closed", "killed", "lost"} <= set(lives)
    assert sum(len(history.deliveries) for history in histories) > 500
    assert sum(len(history.touches) for history in histories) > 50, "heartbeats"
    settlements = [one for history in histories for one in history.settlements]
    assert sum(one.outcome == "done" for one in settlements) > 100
    assert sum(bool(one.stale) for one in settlements) > 3, "some leases had ended"
    assert sum(one.attempt > 1 for history in histories for one in history.deliveries) > 50
    assert sum(len(history.letters) for history in histories) > 10


@pytest.mark.long
def test_the_receives_of_the_seeds_wait_and_are_given_up() -> None:
    returned: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_tell_leaving", told(Connection._tell_leaving, returned))
        histories = [simulate(seed, RECEIVES).history for seed in (0, 1, 16)]
    assert [history.is_calm for history in histories] == [True, True, False]
    assert sum(len(history.deliveries) for history in histories) > 500
    assert returned.count("Abandon") > 100
    assert returned.count("Return") > 5, "some answers came when nobody waited for them any more"


@pytest.mark.long
def test_the_transactions_of_the_seeds_end_in_every_way() -> None:
    histories = [simulate(seed, TRANSACTIONS).history for seed in (0, 1, 7, 9, 16, 17, 18, 19)]
    ends = [(one.asked, one.told, one.outcome) for each in histories for one in each.transactions]
    assert ends.count(("commit", "committed", "committed")) > 100
    assert ends.count(("abort", "aborted", "aborted")) > 5
    assert ends.count(("commit", "aborted", "aborted")) > 3, "too late, or fenced"
    assert ends.count(("", "", "aborted")) > 5, "forgotten"
    fenced = [one for each in histories for one in each.transactions if one.fenced < one.ended]
    assert len(fenced) > 3
    assert sum(len(read.values) for each in histories for read in each.seen) > 500
    assert sum(len(each.led) for each in histories) > 100, "leaders and coordinators changed"


@pytest.mark.long
def test_the_sinks_of_the_seeds_run_batches_and_tasks_again() -> None:
    histories = [simulate(seed, TRANSACTIONS).history for seed in (32, 34, 225, 226)]
    commits = [one for each in histories for one in each.sink_commits]
    assert sum(one.told_at < 1e9 for one in commits) > 20
    assert len(commits) > sum(len({one.number for one in each.sink_commits}) for each in histories)
    named = {part for one in commits for part in one.parts}
    assert sum(one.transaction not in named for each in histories for one in each.sink_parts) > 20
    assert sum(len(values) for each in histories for values in each.sink_results.values()) > 100
    assert sum(len(each.sink_seen) for each in histories) > 50


@pytest.mark.long
def test_sessions_take_the_input_of_transactions() -> None:
    histories = [simulate(seed, TRANSACTIONS).history for seed in (80, 81, 112, 113)]
    ends = [one.outcome for each in histories for one in each.transactions]
    assert ends.count("committed") > 50
    assert ends.count("aborted") > 10


@pytest.mark.long
def test_the_failbacks_of_the_seeds_cut_what_diverged() -> None:
    histories = [simulate(seed, MIRRORS).history for seed in (7, 8, 9, 13, 37)]
    mirrored = [history for history in histories if isinstance(history, MirrorHistory)]
    failbacks = [one for each in mirrored for one in each.failbacks.values()]
    assert sum(one.finished < 1e9 for one in failbacks) > 8
    parts = [part for one in failbacks for part in one.parts.values()]
    assert sum(part.cut < part.end for part in parts) > 8, "something was kept aside"
    assert sum(0 < part.cut < part.end for part in parts) > 2, "and something was in common"
    assert any(part.cut == part.end > 0 for part in parts), "some had nothing of their own"
    ways_back = [each.back for each in mirrored if each.back is not None]
    assert any(back.promotions for back in ways_back), "some are promoted again"
    assert any(not back.promotions for back in ways_back)
    assert sum(len(back.target.deliveries) for back in ways_back) > 20
    turns = [turn for each in mirrored for turn in each.turns]
    followers = [turn.follower for turn in turns]
    assert {"the first cluster", "the second cluster"} == set(followers), "they go on taking turns"
    assert any(any(turn.kept.values()) for turn in turns), "and keep aside what diverged again"


@pytest.mark.long
def test_the_mirrors_of_the_seeds_are_in_real_trouble_and_still_of_use() -> None:
    outcomes = [simulate(seed, MIRRORS) for seed in (*range(1, 8), 37)]
    assert not any(one.findings for one in outcomes)
    histories = [one.history for one in outcomes]
    assert all(isinstance(history, MirrorHistory) for history in histories)
    mirrored = [history for history in histories if isinstance(history, MirrorHistory)]
    ends = [max(one.end for one in logs) for each in mirrored for logs in each.copied.values()]
    assert sum(ends) > 300, "messages are copied"
    assert sum(len(logs) for each in mirrored for logs in each.copied.values()) > 40, "leaders"
    promoted = [one for each in mirrored for one in each.promotions.values()]
    assert any(one.is_complete for one in promoted)
    assert any(not one.is_fenced for one in promoted)
    assert any(not each.promotions for each in mirrored), "some stay copies"
    assert sum(len(each.target.deliveries) for each in mirrored) > 100
    assert any(each.diverged for each in mirrored), "a source took messages back"
    assert any(each.counted for each in mirrored), "delivery state is copied"


def told(tell: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    def telling(self: Connection, request: Any) -> Any:
        names.append(type(request).__name__)
        return tell(self, request)

    return telling


def noted(submit: Callable[..., Awaitable[None]], names: list[str]) -> Callable[..., Any]:
    async def noting(self: LoggedSnapshots, name: str, data: bytes) -> None:
        names.append(name)
        await submit(self, name, data)

    return noting


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(
    "seed",
    [
        SEED,
        BROKER_SEED,
        SESSION_SEED,
        RECEIVE_SEED,
        TRANSACTION_SEED,
        CLIENT_TRANSACTION_SEED,
        SINK_SEED,
        SESSION_TRANSACTION_SEED,
    ],
)
def test_a_seed_is_the_same_byte_for_byte_in_every_process(seed: int) -> None:
    require_same_in_every_process(seed, DEFAULTS)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("seed", [SEED, FAILBACK_SEED])
def test_a_seed_with_a_mirror_is_the_same_byte_for_byte_in_every_process(seed: int) -> None:
    require_same_in_every_process(seed, MIRRORS)


def require_same_in_every_process(seed: int, settings: SimulationSettings) -> None:
    program = (
        "import hashlib\n"
        "from quiver.testing.simulator.simulation import SimulationSettings, simulate\n"
        f"history = simulate({seed}, SimulationSettings(mirrors={settings.mirrors})).history\n"
        "print(hashlib.sha256(history.encode()).hexdigest())"
    )
    here = hashlib.sha256(simulate(seed, settings).history.encode()).hexdigest()
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=250,
        )
        assert there.stdout.strip() == here


@pytest.mark.long
def test_another_seed_is_another_story() -> None:
    assert simulate(SEED).history.encode() != simulate(SEED + 1).history.encode()


@pytest.mark.long
@pytest.mark.parametrize("seed", [109, 110])
def test_what_was_found_once_is_not_found_again(seed: int) -> None:
    """A subscription that never got its partition back; a lease that ended as its group changed."""
    assert simulate(seed, BROKERS).findings == []


@pytest.mark.long
@pytest.mark.parametrize("seed", [98, 106, 117, 225, 390])
def test_what_was_found_once_with_mirrors_is_not_found_again(seed: int) -> None:
    """The only replica was damaged and may lose data; a commit ended while the lease of a lone leader was
    in doubt; a copy was promoted again while somebody waited; a failback named what was still a copy, or
    took an entry for missing that was not confirmed yet."""
    assert simulate(seed, MIRRORS).findings == []


@pytest.mark.long
def test_damage_that_is_found_while_a_session_begins_is_told() -> None:
    assert simulate(1522, LIGHT).findings == []
