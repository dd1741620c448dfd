"""Every rule about a sink's batches finds what it is for, and nothing in a history that is sound."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver.cluster.records import PartitionId
from quiver.testing.simulator.history import History, Read, SinkCommit, SinkPart
from quiver.testing.simulator.transactions.sink_rules import SINK_RULES

A, B = PartitionId("sink/0"), PartitionId("sink/1")


def read(value: str, *, at: float) -> Read:
    return Read(
        reader=0,
        partition=A,
        invoked=at,
        ended=at,
        asked=0,
        epoch=1,
        watermark=None,
        values=((2, value),),
    )


def sound() -> History:
    """The first attempt of the second task was run again: the commit names attempts 7 and 9."""
    return History(
        sink_rows={0: ["0.0.0", "0.1.0"], 1: ["1.0.0"]},
        sink_parts=[SinkPart(number=0, transaction=one) for one in (7, 8, 9)],
        sink_commits=[SinkCommit(number=0, parts=[7, 9], asked_at=3.0, told_at=4.0)],
        sink_seen=[read("0.0.0@7", at=3.5)],
        sink_results={A: ((2, "0.0.0@7"),), B: ((4, "0.1.0@9"),)},
    )


def found(history: History) -> list[str]:
    return [rule.__name__ for rule in SINK_RULES if list(rule(history))]


def show_another_attempt(history: History) -> None:
    history.sink_results[B] = ((3, "0.1.0@8"),)


def show_too_early(history: History) -> None:
    history.sink_seen.append(read("0.0.0@7", at=2.0))


def take_back(history: History) -> None:
    history.sink_seen.append(read("0.1.0@9", at=3.5))
    history.sink_results[B] = ()


def lose_a_row(history: History) -> None:
    history.sink_results[B] = ()


def commit_nothing(history: History) -> None:
    history.sink_results.update({A: (), B: ()})
    history.sink_seen.clear()


def commit_again(history: History) -> None:
    history.sink_commits.append(SinkCommit(number=0, parts=[10, 11], asked_at=5.0))
    history.sink_results[A] += ((6, "0.0.0@10"),)
    history.sink_results[B] += ((7, "0.1.0@11"),)


def mix_two_commits(history: History) -> None:
    history.sink_commits.append(SinkCommit(number=0, parts=[10, 11], asked_at=5.0))
    history.sink_results[B] = ((7, "0.1.0@11"),)


@pytest.mark.parametrize(
    ("spoil", "rules"),
    [
        (show_another_attempt, {"unnamed_part_visible", "committed_twice"}),
        (show_too_early, {"unnamed_part_visible"}),
        (take_back, {"seen_and_taken_back", "batch_partly_visible"}),
        (lose_a_row, {"batch_partly_visible"}),
        (commit_nothing, {"batch_partly_visible"}),
        (commit_again, {"batch_partly_visible", "committed_twice"}),
        (mix_two_commits, {"committed_twice"}),
    ],
)
def test_a_spoiled_history_is_found_by_its_rules(
    spoil: Callable[[History], None], rules: set[str]
) -> None:
    history = sound()
    spoil(history)
    assert set(found(history)) == rules


def test_a_sound_history_has_no_findings() -> None:
    assert found(sound()) == []


def test_a_batch_whose_commit_had_no_answer_may_be_there_or_not() -> None:
    history = sound()
    history.sink_commits.append(SinkCommit(number=1, parts=[12], asked_at=5.0))
    assert found(history) == []
    history.sink_results[A] += ((6, "1.0.0@12"),)
    assert found(history) == []


def test_there_is_a_spoiled_history_for_every_rule() -> None:
    marks = test_a_spoiled_history_is_found_by_its_rules.pytestmark  # type: ignore[attr-defined]
    found = set().union(*(rules for _, rules in marks[0].args[1]))
    assert found == {rule.__name__ for rule in SINK_RULES}
