"""Every rule about clusters that go on taking turns finds what it is for, and nothing in what is sound."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver.cluster.records import PartitionId
from quiver.testing.simulator.checker import check
from quiver.testing.simulator.mirrors.history import Mark, MirrorHistory, Turn
from quiver.testing.simulator.mirrors.turn_rules import TURN_RULES

P = PartitionId("t/0")
COMMON: Mark = (0, 1, 10, 111)
TAIL: Mark = (1, 1, 20, 222)
THERE: Mark = (1, 1, 25, 333)


def sound() -> MirrorHistory:
    """Of two messages one was copied. The other is kept aside, and the source's own comes in its place."""
    turn = Turn(
        follower="the first cluster",
        before={P: [COMMON, TAIL]},
        kept={P: [(*TAIL[:3], 999)]},
        here={P: [COMMON, THERE]},
        there={P: [COMMON, THERE]},
        own_here={P: [0]},
        own_there={P: [1]},
    )
    return MirrorHistory(turns=[turn])


def found(history: MirrorHistory) -> list[str]:
    return [rule.__name__ for rule in TURN_RULES if list(rule(history))]


def follow_otherwise(turn: Turn) -> None:
    turn.here[P] = [COMMON, TAIL]


def keep_nothing(turn: Turn) -> None:
    turn.kept.clear()


def own_twice(turn: Turn) -> None:
    turn.own_here[P] = [0, 1]


def own_nowhere(turn: Turn) -> None:
    turn.own_there[P] = []


def take(turn: Turn) -> None:
    turn.taken.append(P)


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (follow_otherwise, "followed_otherwise"),
        (keep_nothing, "turned_and_lost"),
        (own_twice, "own_of_both_or_none"),
        (own_nowhere, "own_of_both_or_none"),
        (take, "taken_while_following"),
    ],
)
def test_a_spoiled_history_is_found_by_its_rule(spoil: Callable[[Turn], None], rule: str) -> None:
    history = sound()
    spoil(history.turns[0])
    assert found(history) == [rule]


def test_a_sound_history_has_no_findings() -> None:
    assert found(sound()) == []
    assert check(sound()) == []


def test_there_is_a_spoiled_history_for_every_rule() -> None:
    marks = test_a_spoiled_history_is_found_by_its_rule.pytestmark  # type: ignore[attr-defined]
    assert {rule for _, rule in marks[0].args[1]} == {rule.__name__ for rule in TURN_RULES}
