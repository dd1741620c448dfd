"""Every rule about transactions finds what it is for, and nothing in a history that is sound."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver.cluster.records import PartitionId
from quiver.testing.simulator.history import History, Read, Transaction
from quiver.testing.simulator.transactions.rules import TRANSACTION_RULES

INPUT, A, B = PartitionId("t/0"), PartitionId("results/0"), PartitionId("results/1")


def transaction(number: int, outcome: str, *, at: float) -> Transaction:
    """It took the message at offset 0, and published one result to each of two partitions."""
    return Transaction(
        id=number,
        worker="w",
        began=at,
        inputs=[(INPUT, 0)],
        outputs=[(A, f"1.0/0@{number}"), (B, f"1.0/1@{number}")],
        asked="commit",
        asked_at=at + 1,
        told=outcome,
        ended=at + 2,
        outcome=outcome,
    )


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
    """The first transaction is aborted, the second is committed."""
    return History(
        transactions=[transaction(7, "aborted", at=1.0), transaction(8, "committed", at=5.0)],
        seen=[read("1.0/0@8", at=7.5)],
        results={A: ((2, "1.0/0@8"),), B: ((2, "1.0/1@8"),)},
        delivered=[(A, 2), (B, 2)],
        drained=True,
        drained_to={INPUT: 1},
    )


def found(history: History) -> list[str]:
    return [rule.__name__ for rule in TRANSACTION_RULES if list(rule(history))]


def lose_a_result(history: History) -> None:
    history.results[B] = ()


def show_what_was_aborted(history: History) -> None:
    history.results[B] += ((3, "1.0/1@7"),)


def show_twice(history: History) -> None:
    history.results[B] += ((3, "1.0/1@8"),)


def tell_another_end(history: History) -> None:
    history.transactions[0].told = "committed"


def leave_open(history: History) -> None:
    history.transactions[0].outcome = "open"


def commit_what_was_forgotten(history: History) -> None:
    history.transactions[1].asked = ""


def commit_for_a_zombie(history: History) -> None:
    history.transactions[1].fenced = 5.5


def read_an_aborted_one(history: History) -> None:
    history.seen.append(read("1.0/0@7", at=2.0))


def read_an_open_one(history: History) -> None:
    history.seen.append(read("1.0/0@8", at=5.5))


def finish_without_results(history: History) -> None:
    history.drained_to[INPUT] = 2


def take_twice(history: History) -> None:
    history.transactions.append(transaction(9, "committed", at=8.0))
    for number, partition in enumerate((A, B)):
        history.results[partition] += ((4, f"1.0/{number}@9"),)
        history.delivered.append((partition, 4))


def deliver_too_little(history: History) -> None:
    history.delivered.pop()


def deliver_what_is_hidden(history: History) -> None:
    history.delivered.append((A, 0))


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lose_a_result, "partly_visible"),
        (show_what_was_aborted, "partly_visible"),
        (show_twice, "partly_visible"),
        (tell_another_end, "told_otherwise"),
        (leave_open, "told_otherwise"),
        (commit_what_was_forgotten, "committed_unasked"),
        (commit_for_a_zombie, "zombie_committed"),
        (read_an_aborted_one, "read_too_early"),
        (read_an_open_one, "read_too_early"),
        (finish_without_results, "acknowledged_and_undone"),
        (take_twice, "acknowledged_and_undone"),
        (deliver_too_little, "committed_but_not_delivered"),
        (deliver_what_is_hidden, "committed_but_not_delivered"),
    ],
)
def test_a_spoiled_history_is_found_by_its_rule(
    spoil: Callable[[History], None], rule: str
) -> None:
    history = sound()
    spoil(history)
    assert rule in found(history)
    assert set(found(history)) <= {rule, "told_otherwise", "committed_but_not_delivered"}


def test_a_sound_history_has_no_findings() -> None:
    assert found(sound()) == []


def test_a_history_without_transactions_has_no_findings() -> None:
    assert found(History(drained=True, drained_to={INPUT: 3})) == []


def test_there_is_a_spoiled_history_for_every_rule() -> None:
    marks = test_a_spoiled_history_is_found_by_its_rule.pytestmark  # type: ignore[attr-defined]
    assert {rule for _, rule in marks[0].args[1]} == {rule.__name__ for rule in TRANSACTION_RULES}
