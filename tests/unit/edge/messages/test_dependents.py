"""A request that comes after others goes on when all went well, and hears of it when one did not."""

from __future__ import annotations

from quiver.edge.messages.dependents import KNOWN_MAX, Dependents


def test_it_goes_on_when_the_last_has_gone_well() -> None:
    dependents, heard = Dependents(), list[bool]()
    dependents.add([1, 2], {1, 2, 3}, heard.append)
    dependents.answered(2, went_well=True)
    assert heard == []
    dependents.answered(1, went_well=True)
    assert heard == [True]


def test_it_hears_at_once_when_one_fails_and_only_once() -> None:
    dependents, heard = Dependents(), list[bool]()
    dependents.add([1, 2], {1, 2, 3}, heard.append)
    dependents.answered(2, went_well=False)
    assert heard == [False]
    dependents.answered(1, went_well=True)
    assert heard == [False]


def test_a_failure_of_one_leaves_the_others_waiting() -> None:
    dependents, heard, other = Dependents(), list[bool](), list[bool]()
    dependents.add([1, 2], {1, 2, 3, 4}, heard.append)
    dependents.add([1], {1, 2, 3, 4}, other.append)
    dependents.answered(2, went_well=False)
    assert (heard, other) == ([False], [])
    dependents.answered(1, went_well=True)
    assert (heard, other) == ([False], [True])


def test_after_a_failure_nobody_awaits_the_others() -> None:
    dependents = Dependents()
    dependents.add([1, 2], {1, 2, 3}, lambda _: None)
    assert dependents.awaits(1)
    dependents.answered(2, went_well=False)
    assert not dependents.awaits(1)


def test_what_went_well_before_it_came_counts() -> None:
    dependents, heard = Dependents(), list[bool]()
    dependents.answered(1, went_well=True)
    dependents.add([1], {2}, heard.append)
    assert heard == [True]


def test_what_failed_before_it_came_does_not() -> None:
    dependents, heard = Dependents(), list[bool]()
    dependents.answered(1, went_well=False)
    dependents.add([1], {2}, heard.append)
    assert heard == [False]


def test_an_id_that_is_used_again_counts_as_it_was_answered_last() -> None:
    dependents, heard = Dependents(), list[bool]()
    dependents.answered(1, went_well=True)
    dependents.answered(1, went_well=False)
    dependents.add([1], {2}, heard.append)
    assert heard == [False]


def test_a_request_that_nobody_sent_did_not_go_well() -> None:
    dependents, heard = Dependents(), list[bool]()
    dependents.add([1, 7], {1, 2}, heard.append)
    assert heard == [False]
    dependents.answered(1, went_well=True)
    assert heard == [False]


def test_without_others_it_goes_on_at_once() -> None:
    dependents, heard = Dependents(), list[bool]()
    dependents.add([], {1}, heard.append)
    assert heard == [True]


def test_what_went_well_is_forgotten_at_some_time() -> None:
    dependents, heard = Dependents(), list[bool]()
    for one in range(KNOWN_MAX + 1):
        dependents.answered(one, went_well=True)
    dependents.add([0], set(), heard.append)
    dependents.add([1], set(), heard.append)
    assert heard == [False, True]
