"""Every rule about consumer sessions finds what it is for, and nothing in a history that is sound."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver.cluster.records import NodeId, PartitionId, SessionId
from quiver.testing.simulator.history import (
    Delivery,
    History,
    Led,
    Letter,
    Life,
    Queue,
    Settlement,
    Start,
    Stranded,
    Touch,
)
from quiver.testing.simulator.sessions.rules import SESSION_RULES

P = PartitionId("t/0")
ONCE, LEAST = "once", "least"
NODE = NodeId("n1")
V = 3.0


def given(queue: str, offset: int, *, at: float, who: str = "a", attempt: int = 1) -> Delivery:
    return Delivery(
        queue=queue,
        consumer=who,
        partition=P,
        offset=offset,
        value=f"1.{offset}",
        key="k",
        attempt=attempt,
        lease=round(at * 10),
        invoked=at,
        ended=at + 0.1,
        deadline=at + V,
        pushed=at - 0.1,
        pushed_by=NODE,
    )


def started(queue: str, offset: int, *, at: float, who: str = "a", batch: int = 0) -> Start:
    return Start(
        queue=queue,
        consumer=who,
        batch=batch or round(at * 10),
        partition=P,
        offset=offset,
        at=at,
        answered=at + 0.1,
    )


def acked(queue: str, offset: int, *, at: float, who: str = "a", lease: float) -> Settlement:
    return Settlement(
        queue=queue,
        consumer=who,
        kind="ack",
        partition=P,
        lease=round(lease * 10),
        offsets=(offset,),
        invoked=at,
        ended=at + 0.1,
        outcome="done",
    )


def touched(*offsets: int, at: float, who: str = "a") -> Touch:
    held = tuple((P, offset) for offset in offsets)
    return Touch(consumer=who, node=NODE, at=at, answered=at + 0.1, held=held)


def life(queue: str, who: str, ended: float = 1e9, how: str = "") -> Life:
    return Life(
        queue=queue, consumer=who, began=0, leaving=ended, ended=ended, how=how, visibility_s=V
    )


def sound() -> History:
    """A message that takes five seconds, with heartbeats; and one whose consumer is killed."""
    return History(
        led=[Led(partition=PartitionId("t@1/0"), epoch=1, node=NODE, session=SessionId(""), at=0)],
        queues={
            name: Queue(topics=("t",), ordering="none", guarantee=guarantee, max_deliveries=2)
            for name, guarantee in ((ONCE, "exactly-once"), (LEAST, "at-least-once"))
        },
        lives=[life(ONCE, "a"), life(LEAST, "k", 2.0, "killed"), life(LEAST, "b")],
        starts=[
            started(ONCE, 0, at=1.0),
            started(LEAST, 0, at=1.0, who="k", batch=1),
            started(LEAST, 1, at=1.0, who="k", batch=1),
            started(LEAST, 0, at=3.0, who="b"),
            started(LEAST, 1, at=3.5, who="b"),
        ],
        deliveries=[
            given(ONCE, 0, at=1.0),
            given(LEAST, 0, at=1.0, who="k"),
            given(LEAST, 0, at=3.0, who="b", attempt=2),
            given(LEAST, 1, at=3.5, who="b", attempt=2),
        ],
        touches=[touched(0, at=at) for at in (2.0, 3.0, 4.0, 5.0)],
        settlements=[
            acked(ONCE, 0, at=6.0, lease=1.0),
            acked(LEAST, 0, at=3.2, who="b", lease=3.0),
            acked(LEAST, 1, at=3.7, who="b", lease=3.5),
        ],
    )


def found(history: History) -> list[str]:
    return [rule.__name__ for rule in SESSION_RULES if list(rule(history))]


def give_to_another(history: History) -> None:
    history.lives.append(life(ONCE, "c"))
    history.starts.append(started(ONCE, 0, at=5.5, who="c"))
    history.deliveries.append(given(ONCE, 0, at=5.5, who="c", attempt=2))


def count_what_was_pushed(history: History) -> None:
    history.starts.append(started(LEAST, 2, at=5.0, who="b"))
    history.deliveries.append(given(LEAST, 2, at=5.0, who="b", attempt=2))


def bury_what_was_pushed(history: History) -> None:
    history.letters.append(Letter(queue=LEAST, partition=P, offset=7))


def strand(history: History) -> None:
    history.stranded.append(
        Stranded(
            queue=LEAST,
            consumer="k",
            partition=P,
            offsets=(3,),
            node=NODE,
            how="killed",
            ended=2.0,
            at=9.0,
        )
    )


def deliver_again(history: History) -> None:
    history.starts.append(started(LEAST, 0, at=8.0, who="b"))
    history.deliveries.append(given(LEAST, 0, at=8.0, who="b", attempt=1))


def test_a_sound_history_is_found_sound() -> None:
    assert found(sound()) == []


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (give_to_another, "two_live_consumers"),
        (count_what_was_pushed, "counted_unseen"),
        (bury_what_was_pushed, "counted_unseen"),
        (strand, "stranded"),
        (deliver_again, "delivered_after_a_flush"),
    ],
)
def test_what_should_not_have_happened_is_found(
    spoil: Callable[[History], None], rule: str
) -> None:
    history = sound()
    spoil(history)
    assert found(history) == [rule]


def test_a_consumer_that_was_not_heard_of_may_lose_its_message() -> None:
    history = sound()
    history.touches.clear()
    give_to_another(history)
    assert found(history) == []


def test_where_the_lead_changes_hands_a_message_may_come_again() -> None:
    history = sound()
    deliver_again(history)
    history.led.append(
        Led(
            partition=PartitionId("t@1/0"),
            epoch=2,
            node=NodeId("n2"),
            session=SessionId(""),
            at=7.0,
        )
    )
    assert found(history) == []


def test_there_is_a_spoiled_history_for_every_rule() -> None:
    marks = test_what_should_not_have_happened_is_found.pytestmark  # type: ignore[attr-defined]
    assert {rule for _, rule in marks[0].args[1]} == {rule.__name__ for rule in SESSION_RULES}
