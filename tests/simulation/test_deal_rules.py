"""Every rule about transactions beside a mirror finds what it is for, and nothing in a sound history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver.cluster.records import PartitionId
from quiver.testing.simulator.mirrors.deal_rules import DEAL_RULES
from quiver.testing.simulator.mirrors.history import DEALS, Deal, Failback, MirrorHistory

A, B = PartitionId(f"{DEALS}/0"), PartitionId(f"{DEALS}/1")


def deal(number: int, asked: str, told: str) -> Deal:
    """Two messages in one partition, and one in the other."""
    values = [(A, f"w:{number}.0"), (A, f"w:{number}.1"), (B, f"w:{number}.2")]
    return Deal(writer="w", id=number, values=values, asked=asked, told=told)


def sound() -> MirrorHistory:
    """The first deal is in both clusters, the second was kept aside, the third is aborted."""
    history = MirrorHistory(back=MirrorHistory())
    history.deals = [
        deal(1, "commit", "committed"),
        deal(2, "commit", "committed"),
        deal(3, "abort", "aborted"),
    ]
    history.failbacks = {DEALS: Failback(number=1, aside="aside", began=1.0, finished=2.0)}
    first = {A: ((0, "w:1.0"), (1, "w:1.1")), B: ((0, "w:1.2"),)}
    kept = {A: ((4, "w:2.0"), (5, "w:2.1")), B: ((4, "w:2.2"),)}
    history.deals_visible = [dict(first), dict(first), kept]
    return history


def found(history: MirrorHistory) -> set[str]:
    return {rule.__name__ for rule in DEAL_RULES if list(rule(history))}


def lose_a_message(history: MirrorHistory) -> None:
    for cluster in history.deals_visible[:2]:
        cluster[A] = ((0, "w:1.0"),)


def show_what_was_aborted(history: MirrorHistory) -> None:
    history.deals_visible[2][B] += ((6, "w:3.2"),)


def show_what_was_forgotten(history: MirrorHistory) -> None:
    history.deals[0].asked = history.deals[0].told = ""


def lose_what_was_kept(history: MirrorHistory) -> None:
    history.deals_visible.pop()


def hold_a_reader_of_the_copy_back(history: MirrorHistory) -> None:
    history.deals_visible[0][A] = ()


@pytest.mark.parametrize(
    ("spoil", "rules"),
    [
        (lose_a_message, {"deal_in_part", "deal_lost"}),
        (show_what_was_aborted, {"deal_shown_unasked"}),
        (show_what_was_forgotten, {"deal_shown_unasked"}),
        (lose_what_was_kept, {"deal_lost"}),
        (hold_a_reader_of_the_copy_back, {"deals_differ"}),
    ],
)
def test_a_spoiled_history_is_found_by_its_rules(
    spoil: Callable[[MirrorHistory], None], rules: set[str]
) -> None:
    history = sound()
    spoil(history)
    assert found(history) == rules


def test_a_sound_history_has_no_findings() -> None:
    assert found(sound()) == set()


def test_there_is_a_spoiled_history_for_every_rule() -> None:
    marks = test_a_spoiled_history_is_found_by_its_rules.pytestmark  # type: ignore[attr-defined]
    every = set().union(*(rules for _, rules in marks[0].args[1]))
    assert every == {rule.__name__ for rule in DEAL_RULES}
