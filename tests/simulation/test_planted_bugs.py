"""The checker would notice: every rule that is taken away is missed within a bounded number of seeds."""

from __future__ import annotations

import pytest

from quiver.testing.simulator.mirrors.planted import MIRROR_BUGS
from quiver.testing.simulator.planted import BROKER_BUGS, BUGS, planted
from quiver.testing.simulator.receives.planted import RECEIVE_BUGS
from quiver.testing.simulator.sessions.planted import SESSION_BUGS
from quiver.testing.simulator.simulation import SimulationSettings, simulate
from quiver.testing.simulator.transactions.planted import TRANSACTION_BUGS

pytestmark = pytest.mark.long

SEEDS_MAX = 80
FIRST_SEEDS = {
    "begin before the replicas in sync do": 24,
    "count the leader before it has synced": 1,
    "forget the epoch check": 1,
    "hand out a message before its start is answered": 1,
    "wait with a receive at each leader and drop what the others bring": 3,
    "change the in-sync set without comparing": 15,
    "confirm what was under way when deposed": 15,
    "count on a lost disk": 87,
    "elect an eligible one that missed a commit": 13,
    "elect outside the in-sync set": 2,
    "ignore who may already be in sync": 100,
    "join before catching up in the epoch": 87,
    "keep the epoch over a restart": 2,
    "leave the eligible out of elections": 9,
    "serve reads past the watermark": 9,
    "stay eligible with a lost disk": 93,
    "truncate by watermark": 1,
    "acknowledge an ack before it is committed": 5,
    "drop the state log on failover": 2,
    "forget snapshots in the state log": 1,
    "honour a stale receipt": 10,
    "keep the delivery state over a lost lead": 7,
    "lose the broker's dedup state": 4,
    "refuse a layout before looking for repeats": 180,
    "hand nothing down": 134,
    "deliver a child before its parent": 4,
    "delete what nobody has finished": 2,
    "count what was only pushed": 1,
    "never keep a lease alive": 4,
    "return what a consumer works on when it moves": 31,
    "answer a decision before it is durable": 13,
    "let a zombie commit": 1,
    "tell partitions of a decision before it is durable": 6,
    "commit a number again": 32,
    "commit although a message was refused": 55,
    "commit before the messages are stored": 63,
    "commit parts that nobody named": 32,
    "give nothing of an aborted transaction back": 80,
    "cut a log where a transaction is open": 57,
    "cut a log without keeping its end": 3,
    "cut nothing of a log that diverged": 3,
    "deliver from a topic that failed back": 3,
    "go on with delivery state that was not stored": 62,
    "compare no mark when the source has another leader": 5,
    "promote before the last snapshot counts": 12,
    "keep what diverged again under the first name": 117,
    "forget the promotes on the way to a source": 8,
    "leave the first fence in place": 8,
    "take what is copied for the cluster's own": 8,
}
"""Where to begin, so that the test is quick today."""


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug: str) -> None:
    assert is_found(bug, SimulationSettings(brokers=False))


@pytest.mark.parametrize("bug", sorted(BROKER_BUGS))
def test_a_bug_planted_in_brokers_is_found(bug: str) -> None:
    assert is_found(bug, SimulationSettings(brokers=True))


@pytest.mark.parametrize("bug", sorted(SESSION_BUGS))
def test_a_bug_planted_in_sessions_is_found(bug: str) -> None:
    assert is_found(bug, SimulationSettings(brokers=True, sessions=True))


@pytest.mark.parametrize("bug", sorted(RECEIVE_BUGS))
def test_a_bug_planted_in_receives_is_found(bug: str) -> None:
    assert is_found(bug, SimulationSettings(brokers=True, receives=True))


@pytest.mark.parametrize("bug", sorted(TRANSACTION_BUGS))
def test_a_bug_planted_in_transactions_is_found(bug: str) -> None:
    assert is_found(bug, SimulationSettings(brokers=True, transactions=True))


@pytest.mark.parametrize("bug", sorted(MIRROR_BUGS))
def test_a_bug_planted_in_mirrors_is_found(bug: str) -> None:
    assert is_found(bug, SimulationSettings(mirrors=True))


def is_found(bug: str, settings: SimulationSettings) -> bool:
    """Whether one of a bounded number of seeds shows it."""
    first = FIRST_SEEDS.get(bug, 0)
    with planted(bug):
        return any(_shows(seed, settings) for seed in range(first, first + SEEDS_MAX))


def _shows(seed: int, settings: SimulationSettings) -> bool:
    try:
        return bool(simulate(seed, settings).findings)
    except AssertionError:
        return True  # an invariant of the machines broke before the checker saw it


def test_a_planted_bug_is_gone_afterwards() -> None:
    with planted("elect outside the in-sync set"):
        pass
    assert simulate(1).findings == []


def test_there_are_at_least_twelve() -> None:
    assert len(BUGS | BROKER_BUGS) >= 12
