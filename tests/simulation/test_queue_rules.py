"""Every rule about subscriptions finds what it is for, and nothing in a history that is sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from quiver.cluster.records import NodeId, PartitionId
from quiver.testing.simulator.checker import check
from quiver.testing.simulator.history import (
    Copy,
    Delivery,
    Departure,
    History,
    Letter,
    Queue,
    Send,
    Settlement,
)
from quiver.testing.simulator.queue_rules import QUEUE_RULES

P = PartitionId("t/0")
ONCE, LEAST, MOST = "once", "least", "most"
VISIBILITY_S = 2.0


def delivery(
    queue: str,
    offset: int,
    *,
    at: float,
    lease: int,
    consumer: str = "c",
    key: str = "k",
    attempt: int = 1,
) -> Delivery:
    return Delivery(
        queue=queue,
        consumer=consumer,
        partition=P,
        offset=offset,
        value=f"1.{offset}",
        key=key,
        attempt=attempt,
        lease=lease,
        invoked=at,
        ended=at + 0.1,
        deadline=at + VISIBILITY_S,
    )


def settling(
    kind: str, queue: str, offset: int, *, at: float, lease: int, consumer: str = "c"
) -> Settlement:
    return Settlement(
        queue=queue,
        consumer=consumer,
        kind=kind,
        partition=P,
        lease=lease,
        offsets=(offset,),
        invoked=at,
        ended=at + 0.1,
        outcome="done",
        visibility_s=VISIBILITY_S,
    )


def sound() -> History:
    """Three messages, each received and acknowledged; of one at-least-once, after a lapsed lease."""
    values = tuple((offset, 1, f"1.{offset}") for offset in range(3))
    history = History(
        sends=[
            Send(
                producer=1,
                sequence=offset,
                partition=P,
                value=value,
                invoked=0.0,
                ended=0.5,
                outcome="done",
                offset=offset,
                epoch=1,
            )
            for offset, _, value in values
        ],
        copies={P: [Copy(node=NodeId("a"), watermark=3, values=values)]},
        queues={
            name: Queue(topics=("t",), ordering="key", guarantee=guarantee, max_deliveries=3)
            for name, guarantee in (
                (ONCE, "exactly-once"),
                (LEAST, "at-least-once"),
                (MOST, "at-most-once"),
            )
        },
        drained=True,
    )
    for offset in range(3):
        at = 1.0 + offset
        history.deliveries += [
            delivery(ONCE, offset, at=at, lease=offset),
            delivery(LEAST, offset, at=at, lease=10 + offset),
            delivery(MOST, offset, at=at, lease=20 + offset),
        ]
        history.settlements += [
            settling("ack", ONCE, offset, at=at + 0.2, lease=offset),
            settling("ack", LEAST, offset, at=at + 0.2, lease=10 + offset),
        ]
    return history


def never_settle(history: History, queue: str, offset: int) -> None:
    history.settlements = [
        one for one in history.settlements if (one.queue, one.offsets) != (queue, (offset,))
    ]


def deliver_to_two(history: History) -> None:
    never_settle(history, ONCE, 2)
    history.deliveries.append(delivery(ONCE, 2, at=4.0, lease=30, consumer="d"))


def forget_an_extension(history: History) -> None:
    never_settle(history, ONCE, 2)
    history.settlements.append(settling("extend", ONCE, 2, at=4.5, lease=2))
    history.deliveries.append(delivery(ONCE, 2, at=5.5, lease=30, consumer="d"))


def lapse(history: History) -> None:
    never_settle(history, ONCE, 2)
    history.deliveries.append(delivery(ONCE, 2, at=6.0, lease=30, consumer="d", attempt=2))
    history.settlements.append(settling("ack", ONCE, 2, at=6.5, lease=30, consumer="d"))


def delete_with_a_stale_receipt(history: History) -> None:
    lapse(history)
    history.settlements[-1] = settling("ack", ONCE, 2, at=6.5, lease=2)


def extend_with_a_stale_receipt(history: History) -> None:
    lapse(history)
    history.settlements.append(settling("extend", ONCE, 2, at=6.2, lease=2))


def deliver_after_an_ack(history: History) -> None:
    history.deliveries.append(delivery(ONCE, 2, at=9.0, lease=30, attempt=2))


def reject(history: History) -> None:
    never_settle(history, ONCE, 2)
    history.settlements.append(settling("reject", ONCE, 2, at=3.3, lease=2))
    history.letters.append(Letter(queue=ONCE, partition=P, offset=2))


def deliver_after_a_reject(history: History) -> None:
    reject(history)
    history.deliveries.append(delivery(ONCE, 2, at=9.0, lease=30, attempt=2))


def reject_without_a_letter(history: History) -> None:
    reject(history)
    history.letters.clear()


def bury_after_an_ack(history: History) -> None:
    history.letters.append(Letter(queue=ONCE, partition=P, offset=1))


def deliver_twice_at_most(history: History) -> None:
    history.deliveries.append(delivery(MOST, 2, at=9.0, lease=30))


def go_back(history: History) -> None:
    history.deliveries.append(delivery(ONCE, 1, at=9.0, lease=30))


def begin_with_the_second(history: History) -> None:
    history.deliveries = [
        one for one in history.deliveries if (one.queue, one.offset) != (LEAST, 0)
    ]
    history.deliveries.append(delivery(LEAST, 0, at=9.0, lease=30))


def move_the_last(history: History) -> None:
    """The last message of the key is in a partition that was split off."""
    child = PartitionId("t/1")

    def moved(one: Any) -> Any:
        if 2 not in getattr(one, "offsets", (getattr(one, "offset", None),)):
            return one
        change = {"offsets": (0,)} if isinstance(one, Settlement) else {"offset": 0}
        return msgspec.structs.replace(one, partition=child, **change)

    history.deliveries = [moved(one) for one in history.deliveries]
    history.settlements = [moved(one) for one in history.settlements]
    history.sends = [moved(one) for one in history.sends]
    values = history.copies[P][0].values
    history.copies = {
        P: [Copy(node=NodeId("a"), watermark=2, values=values[:2])],
        child: [Copy(node=NodeId("a"), watermark=1, values=((0, 1, "1.2"),))],
    }


def deliver_the_child_first(history: History) -> None:
    move_the_last(history)
    history.deliveries = [
        msgspec.structs.replace(one, invoked=0.6, ended=0.7)
        if (one.queue, one.value) == (LEAST, "1.2")
        else one
        for one in history.deliveries
    ]


def go_back_to_the_parent(history: History) -> None:
    move_the_last(history)
    history.deliveries.append(delivery(ONCE, 1, at=9.0, lease=30))


def try_too_often(history: History) -> None:
    history.deliveries.append(delivery(LEAST, 2, at=9.0, lease=30, attempt=4))


def pass_one_over(history: History) -> None:
    never_settle(history, LEAST, 1)


def trim(history: History) -> None:
    """All that is finished was deleted."""
    history.trimmed, history.copies = ("t",), {}
    history.drained_to = {P: 3}


def trim_an_unfinished_one(history: History) -> None:
    trim(history)
    never_settle(history, LEAST, 1)


def bury_twice(history: History) -> None:
    history.letters += [Letter(queue=LEAST, partition=P, offset=1)] * 2


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (deliver_to_two, "delivered inside a lease"),
        (forget_an_extension, "delivered inside a lease"),
        (delete_with_a_stale_receipt, "stale receipt honoured"),
        (extend_with_a_stale_receipt, "stale receipt honoured"),
        (deliver_after_an_ack, "delivered after its ack"),
        (deliver_after_a_reject, "delivered after its reject"),
        (reject_without_a_letter, "neither acked nor dead"),
        (bury_after_an_ack, "delivered after its ack"),
        (deliver_twice_at_most, "at most once twice"),
        (go_back, "order broken"),
        (begin_with_the_second, "order broken"),
        (deliver_the_child_first, "order broken by a split"),
        (go_back_to_the_parent, "order broken by a split"),
        (try_too_often, "too many attempts"),
        (pass_one_over, "neither acked nor dead"),
        (trim_an_unfinished_one, "gone before it was finished"),
        (bury_twice, "two letters for one"),
    ],
)
def test_a_spoiled_history_is_found_by_its_rule(
    spoil: Callable[[History], None], rule: str
) -> None:
    history = sound()
    spoil(history)
    assert any(finding.startswith(f"{rule}:") for finding in check(history)), check(history)


def leave(history: History) -> None:
    never_settle(history, ONCE, 2)
    history.departures.append(Departure(queue=ONCE, consumer="c", at=3.5))
    history.deliveries.append(delivery(ONCE, 2, at=4.0, lease=30, consumer="d"))
    history.settlements.append(settling("ack", ONCE, 2, at=4.5, lease=30, consumer="d"))


def give_back(history: History) -> None:
    never_settle(history, ONCE, 2)
    history.settlements.append(settling("nack", ONCE, 2, at=3.3, lease=2))
    history.deliveries.append(delivery(ONCE, 2, at=4.0, lease=30, attempt=2))
    history.settlements.append(settling("ack", ONCE, 2, at=4.5, lease=30))


def clock_ahead(history: History) -> None:
    deliver_to_two(history)
    history.settlements.append(settling("ack", ONCE, 2, at=4.5, lease=30, consumer="d"))
    history.clocks_s = (0.0, 5.0)


def acked_and_told_stale(history: History) -> None:
    lapse(history)
    history.settlements.append(
        msgspec.structs.replace(settling("ack", ONCE, 2, at=6.3, lease=2), stale=(2,))
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        lapse,
        leave,
        give_back,
        reject,
        clock_ahead,
        acked_and_told_stale,
        move_the_last,
        trim,
    ],
)
def test_a_sound_history_has_no_findings(change: Callable[[History], None]) -> None:
    history = sound()
    change(history)
    assert check(history) == []


def test_there_is_a_spoiled_history_for_every_rule() -> None:
    marks = test_a_spoiled_history_is_found_by_its_rule.pytestmark  # type: ignore[attr-defined]
    proven = {rule for _, rule in marks[0].args[1]}
    assert proven == {rule.__name__.replace("_", " ") for rule in QUEUE_RULES}
