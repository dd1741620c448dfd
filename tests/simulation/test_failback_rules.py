"""Every rule about failbacks finds what it is for, and nothing in a history that is sound."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver.cluster.records import NodeId, PartitionId
from quiver.testing.simulator.checker import check
from quiver.testing.simulator.history import Copy, Delivery, Queue, Send
from quiver.testing.simulator.mirrors.failback_rules import FAILBACK_RULES
from quiver.testing.simulator.mirrors.history import (
    Failback,
    FailbackPart,
    LedLog,
    Mark,
    MirrorHistory,
    Promotion,
)

P, ASIDE = PartitionId("t/0"), PartitionId("t.diverged-1/0")
COMMON: Mark = (0, 1, 10, 111)
TAIL: Mark = (1, 1, 20, 222)
THERE: Mark = (1, 1, 25, 333)


def log(*marks: Mark, epoch: int = 1, own: tuple[int, ...] = ()) -> LedLog:
    return LedLog(node=NodeId("n1"), epoch=epoch, at=0.0, found=0, marks=[*marks], own=[*own])


def send(value: str, offset: int, at: float) -> Send:
    return Send(
        producer=1,
        sequence=int(value[2:]),
        partition=P,
        value=value,
        invoked=at,
        ended=at + 0.1,
        outcome="done",
        offset=offset,
        epoch=1,
    )


def sound() -> MirrorHistory:
    """Of two messages one was copied. The other is kept aside, and the copy's own comes in its place."""
    history = MirrorHistory()
    history.queues = {
        "q": Queue(topics=("t",), ordering="none", guarantee="at-least-once", max_deliveries=3)
    }
    history.followed = ["q"]
    history.sends = [send("1.0", 0, 1.0), send("1.1", 1, 2.0)]
    history.failbacks = {
        "t": Failback(
            number=1,
            aside="t.diverged-1",
            began=5.0,
            finished=6.0,
            parts={P: FailbackPart(cut=1, end=2, tail=[TAIL], epoch=2)},
        )
    }
    history.kept = {ASIDE: log((*TAIL[:3], 999))}
    history.kept_values = {ASIDE: ((1, "1.1"),)}
    copies = {P: [Copy(node=NodeId("n1"), watermark=2, values=((0, 1, "1.0"), (1, 2, "2.0")))]}
    history.back = MirrorHistory(
        logs={P: [log(COMMON, THERE, own=(1,))]}, copied={P: [log(COMMON, THERE, epoch=2)]}
    )
    history.back.target.copies = copies
    return history


def found(history: MirrorHistory) -> list[str]:
    return [rule.__name__ for rule in FAILBACK_RULES if list(rule(history))]


def keep_nothing(history: MirrorHistory) -> None:
    history.kept.clear()


def keep_more(history: MirrorHistory) -> None:
    history.kept[ASIDE].marks.append((2, 1, 30, 444))


def lose(history: MirrorHistory) -> None:
    history.kept_values[ASIDE] = ((1, "1.2"),)


def keep_elsewhere(history: MirrorHistory) -> None:
    history.kept_values[ASIDE] = ((2, "1.1"),)


def publish(history: MirrorHistory) -> None:
    assert history.back is not None
    history.sends.append(send("1.2", 1, 6.5))
    history.kept_values[ASIDE] += ((1, "1.2"),)


def deliver(history: MirrorHistory) -> None:
    history.deliveries.append(
        Delivery(
            queue="q",
            consumer="a",
            partition=P,
            offset=0,
            value="1.0",
            key="k",
            attempt=1,
            lease=0,
            invoked=6.5,
            ended=6.6,
            deadline=8.0,
        )
    )


def leave_one_uncut(history: MirrorHistory) -> None:
    history.failbacks["t"].left.append("n2 has 1 entries of t@1/0 from 1 on")


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (keep_nothing, "kept_something_else"),
        (keep_more, "kept_something_else"),
        (lose, "confirmed_and_nowhere"),
        (keep_elsewhere, "confirmed_and_nowhere"),
        (publish, "taken_by_a_copy"),
        (deliver, "delivered_by_a_copy"),
        (leave_one_uncut, "left_in_sync"),
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
    assert check(sound()) == []


def test_the_way_back_is_a_copy_like_any_other() -> None:
    history = sound()
    assert history.back is not None
    history.back.copied[P][0].marks[1] = TAIL
    (finding,) = check(history)
    assert finding.startswith("on the way back, copied what is not there")


def test_there_is_a_spoiled_history_for_every_rule() -> None:
    marks = test_a_spoiled_history_is_found_by_its_rule.pytestmark  # type: ignore[attr-defined]
    assert {rule for _, rule in marks[0].args[1]} == {rule.__name__ for rule in FAILBACK_RULES}


def test_a_leader_whose_retention_was_slower_may_have_kept_more() -> None:
    history = sound()
    part = history.failbacks["t"].parts[P]
    older: Mark = (0, 1, 5, 444)
    part.cut, part.older = 0, [older]
    history.kept[ASIDE].marks.insert(0, older)
    assert found(history) == []


def test_a_copy_delivers_to_a_subscription_that_the_other_cluster_does_not_have() -> None:
    history = sound()
    deliver(history)
    history.followed.clear()
    assert found(history) == []


def test_whoever_waited_while_it_was_a_copy_may_be_served_once_it_is_promoted_again() -> None:
    history = sound()
    assert history.back is not None
    history.back.promotions["t"] = Promotion(invoked=6.55)
    deliver(history)
    publish(history)
    assert found(history) == []
