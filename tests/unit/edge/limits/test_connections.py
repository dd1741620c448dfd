"""How many connections there may be, and whose."""

from __future__ import annotations

from quiver.edge.limits.connections import ConnectionBound


def test_the_oldest_stranger_makes_room() -> None:
    bound, closed = ConnectionBound(3), list[str]()
    for name in "abcde":
        assert bound.enter(name, lambda name=name: closed.append(name))  # type: ignore[misc]
        assert bound.room >= 0
    assert closed == ["a", "b"]


def test_those_who_are_known_stay() -> None:
    bound, closed = ConnectionBound(3), list[str]()
    for name in "abc":
        bound.enter(name, lambda name=name: closed.append(name))  # type: ignore[misc]
        bound.admit(name)
    assert not bound.enter("d", lambda: None)
    assert not closed
    bound.leave("b")
    assert bound.enter("d", lambda: None)
    assert bound.room == 0


def test_leaving_and_being_admitted_count_once() -> None:
    bound = ConnectionBound(2)
    bound.enter("a", lambda: None)
    bound.admit("a")
    bound.admit("a")
    bound.leave("a")
    bound.leave("a")
    bound.admit("a")
    assert bound.room == 2
