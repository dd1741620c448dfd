"""Every rule about copies finds what it is for, and nothing in a history that is sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from quiver.cluster.records import NodeId, PartitionId
from quiver.errors import MirrorExists, PartitionUnavailable
from quiver.model.subscription import Guarantee
from quiver.testing.simulator.checker import check
from quiver.testing.simulator.history import Copy, Delivery, Queue, Send, Settlement
from quiver.testing.simulator.mirrors.history import (
    LOOSE,
    Gap,
    LedLog,
    Mark,
    MirrorHistory,
    Promotion,
)
from quiver.testing.simulator.mirrors.rules import MIRROR_RULES
from quiver.testing.simulator.mirrors.simulation import MirrorSimulation
from tests.aio import async_test

P, L = PartitionId("t/0"), PartitionId(f"{LOOSE}/0")
MARKS: list[Mark] = [(0, 2, 10, 111), (2, 1, 20, 222), (3, 1, 30, 333)]
VALUES = ((0, 1, "1.0"), (1, 1, "1.1"), (2, 1, "2.0"), (3, 1, "2.1"))


def log(node: str, marks: list[Mark], epoch: int = 1) -> LedLog:
    return LedLog(node=NodeId(node), epoch=epoch, at=0.0, found=0, marks=list(marks))


def delivery(offset: int, at: float) -> Delivery:
    return Delivery(
        queue="q",
        consumer="a",
        partition=P,
        offset=offset,
        value=VALUES[offset][2],
        key="k",
        attempt=1,
        lease=offset,
        invoked=at - 0.1,
        ended=at,
        deadline=at + 2.0,
    )


def ack(offset: int, at: float) -> Settlement:
    return Settlement(
        queue="q",
        consumer="a",
        kind="ack",
        partition=P,
        lease=offset,
        offsets=(offset,),
        invoked=at - 0.1,
        ended=at,
        outcome="done",
    )


def send(place: int, at: float) -> Send:
    offset, epoch, value = VALUES[place]
    return Send(
        producer=int(value[0]),
        sequence=int(value[2]),
        partition=P,
        value=value,
        invoked=at - 0.1,
        ended=at,
        outcome="done",
        offset=offset,
        epoch=epoch,
    )


def sound() -> MirrorHistory:
    """A copy is promoted with its source stopped. Two messages were acknowledged there, two are here."""
    history = MirrorHistory()
    queue = Queue(
        topics=("t",), ordering="none", guarantee=Guarantee.EXACTLY_ONCE, max_deliveries=3
    )
    history.queues = history.target.queues = {"q": queue}
    history.sends = [send(place, 1.0) for place in range(4)]
    history.settlements = [ack(0, 2.0), ack(1, 3.0)]
    history.logs = {P: [log("n1", MARKS)], L: [log("n1", MARKS), log("n1", MARKS[:1], 2)]}
    history.copied = {P: [log("m1", MARKS[:2]), log("m2", MARKS, 2)], L: [log("m1", MARKS[:2])]}
    history.diverged = {L: "it ends before its copy"}
    history.counted = {P: 2.5}
    history.promotions = {"t": Promotion(invoked=4.0, ended=5.0, is_fenced=True, is_complete=True)}
    history.queues_copied = ["q"]
    target = history.target
    target.deliveries = [delivery(2, 6.0), delivery(3, 6.5)]
    target.settlements = [ack(2, 7.0), ack(3, 7.0)]
    target.copies = {P: [Copy(node=NodeId("m2"), watermark=4, values=VALUES)]}
    target.drained_to = {P: 4}
    return history


def found(history: MirrorHistory) -> list[str]:
    return [rule.__name__ for rule in MIRROR_RULES if list(rule(history))]


def skip_one(history: MirrorHistory) -> None:
    del history.copied[P][1].marks[1]


def change_one(history: MirrorHistory) -> None:
    history.copied[P][0].marks[1] = (2, 1, 20, 999)


def leave_out_without_a_word(history: MirrorHistory) -> None:
    history.source_starts = {P: 2}
    history.copied[P][0].marks[0] = (0, 2, 0, 0)


def merge(history: MirrorHistory) -> None:
    history.logs[L][1].marks.append((2, 1, 40, 444))
    history.copied[L][0].marks.append((3, 1, 50, 555))


def say_nothing(history: MirrorHistory) -> None:
    history.diverged.clear()


def write_to_a_copy(history: MirrorHistory) -> None:
    history.target.sends = [send(2, 3.0)]


def deliver_from_a_copy(history: MirrorHistory) -> None:
    history.target.deliveries.append(delivery(2, 3.9))


def deliver_what_was_acknowledged(history: MirrorHistory) -> None:
    history.target.deliveries.append(delivery(1, 6.0))


def deliver_what_counted(history: MirrorHistory) -> None:
    history.promotions["t"].is_complete = False
    history.target.deliveries.append(delivery(0, 6.0))


def pass_over(history: MirrorHistory) -> None:
    del history.target.settlements[1]


def lose(history: MirrorHistory) -> None:
    history.target.copies[P] = [Copy(node=NodeId("m2"), watermark=3, values=VALUES[:3])]
    history.target.drained_to = {P: 3}


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (skip_one, "copied_what_is_not_there"),
        (change_one, "copied_what_is_not_there"),
        (leave_out_without_a_word, "copied_what_is_not_there"),
        (merge, "merged_what_diverged"),
        (say_nothing, "diverged_in_silence"),
        (write_to_a_copy, "copy_was_written_to"),
        (deliver_from_a_copy, "copy_delivered"),
        (deliver_what_was_acknowledged, "acknowledged_and_delivered_again"),
        (deliver_what_counted, "acknowledged_and_delivered_again"),
        (pass_over, "unacknowledged_and_passed_over"),
        (lose, "complete_and_lost"),
    ],
)
def test_a_spoiled_history_is_found_by_its_rule(
    spoil: Callable[[MirrorHistory], None], rule: str
) -> None:
    history = sound()
    spoil(history)
    assert found(history) == [rule]


def test_a_sound_history_has_no_findings() -> None:
    assert found(sound()) == []


def test_a_gap_that_was_declared_is_no_finding() -> None:
    history = sound()
    leave_out_without_a_word(history)
    history.gaps = [Gap("t", 0, 0, 2)]
    assert found(history) == []


def test_what_was_acknowledged_after_the_shown_lag_may_be_delivered_again() -> None:
    history = sound()
    history.promotions["t"].is_complete = False
    history.target.deliveries.append(delivery(1, 6.0))
    assert found(history) == []


def test_what_consumers_of_the_copy_see_is_checked_too() -> None:
    history = sound()
    history.target.trouble = ["a topic is not copied"]
    assert "in the copy, not in time: a topic is not copied" in check(history)


def test_there_is_a_spoiled_history_for_every_rule() -> None:
    marks = test_a_spoiled_history_is_found_by_its_rule.pytestmark  # type: ignore[attr-defined]
    assert {rule for _, rule in marks[0].args[1]} == {rule.__name__ for rule in MIRROR_RULES}


@async_test
async def test_a_mirror_that_was_made_without_an_answer_is_not_asked_for_again() -> None:
    class Client:
        errors: ClassVar = [PartitionUnavailable("the answer was lost"), MirrorExists()]

        async def ask_any(self, request: Any, timeout_s: float) -> None:
            raise self.errors.pop(0)

        async def rest(self) -> None:
            pass

    simulation: Any = object.__new__(MirrorSimulation)
    await simulation._insist(Client(), None)
    assert Client.errors == []
