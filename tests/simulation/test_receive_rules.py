"""Every rule about receives finds what it is for, and nothing in a history that is sound."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from quiver.cluster.records import NodeId, PartitionId, SessionId
from quiver.testing.simulator.history import Delivery, History, Led
from quiver.testing.simulator.receives.rules import RECEIVE_RULES

P = PartitionId("t/0")


def given(offset: int, *, at: float, attempt: int = 1) -> Delivery:
    return Delivery(
        queue="q",
        consumer="a",
        partition=P,
        offset=offset,
        value=f"1.{offset}",
        key="k",
        attempt=attempt,
        lease=round(at * 10),
        invoked=at,
        ended=at + 0.1,
        deadline=at + 2.0,
    )


def sound() -> History:
    """One message is delivered once, and one that lapsed in its program's hands twice."""
    deliveries = [given(0, at=10.0), given(1, at=10.0), given(1, at=13.0, attempt=2)]
    led = [
        Led(partition=PartitionId("t@1/0"), epoch=1, node=NodeId("n1"), session=SessionId(1), at=0)
    ]
    return History(is_calm=True, deliveries=deliveries, led=led)


def found(history: History) -> list[str]:
    return [rule.__name__ for rule in RECEIVE_RULES if list(rule(history))]


def lapse_unseen(history: History) -> None:
    history.deliveries.append(given(2, at=15.0, attempt=2))


def lapse_unseen_again(history: History) -> None:
    history.deliveries.append(given(1, at=15.0, attempt=4))


@pytest.mark.parametrize(
    ("spoil", "rule"), [(lapse_unseen, "lapsed_unseen"), (lapse_unseen_again, "lapsed_unseen")]
)
def test_a_spoiled_history_is_found_by_its_rule(
    spoil: Callable[[History], None], rule: str
) -> None:
    history = sound()
    spoil(history)
    assert found(history) == [rule]


def test_a_sound_history_has_no_findings() -> None:
    assert found(sound()) == []


def test_a_leader_that_hands_over_and_what_fails_are_no_findings() -> None:
    history = sound()
    lapse_unseen(history)
    moved = msgspec.structs.replace(history.led[0], epoch=2, node=NodeId("n2"), at=13.0)
    assert found(msgspec.structs.replace(history, led=[*history.led, moved])) == []
    assert found(msgspec.structs.replace(history, is_calm=False)) == []


def test_there_is_a_spoiled_history_for_every_rule() -> None:
    marks = test_a_spoiled_history_is_found_by_its_rule.pytestmark  # type: ignore[attr-defined]
    assert {rule for _, rule in marks[0].args[1]} == {rule.__name__ for rule in RECEIVE_RULES}
