"""Every rule of the checker finds what it is for, and nothing in a history that is sound."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from quiver.cluster.records import NodeId, PartitionId, SessionId
from quiver.testing.simulator.checker import RULES, check
from quiver.testing.simulator.history import (
    Appended,
    Confirmed,
    Copy,
    History,
    Led,
    LogBegins,
    Read,
    Send,
)
from quiver.testing.simulator.mirrors.deal_rules import DEAL_RULES
from quiver.testing.simulator.mirrors.failback_rules import FAILBACK_RULES
from quiver.testing.simulator.mirrors.rules import MIRROR_RULES
from quiver.testing.simulator.mirrors.turn_rules import TURN_RULES
from quiver.testing.simulator.queue_rules import QUEUE_RULES
from quiver.testing.simulator.receives.rules import RECEIVE_RULES
from quiver.testing.simulator.sessions.rules import SESSION_RULES
from quiver.testing.simulator.transactions.rules import TRANSACTION_RULES
from quiver.testing.simulator.transactions.sink_rules import SINK_RULES

P = PartitionId("t/0")
A, B = NodeId("a"), NodeId("b")


def sound() -> History:
    """Producer 1 sends 1.0, 1.1, 1.2; the lead changes from a to b in between."""
    values = ((0, 1, "1.0"), (1, 1, "1.1"), (2, 2, "1.2"))
    return History(
        sends=[
            Send(
                producer=1,
                sequence=number,
                partition=P,
                value=value,
                invoked=float(number),
                ended=number + 0.5,
                outcome="done",
                offset=offset,
                epoch=epoch,
            )
            for number, (offset, epoch, value) in enumerate(values)
        ],
        reads=[
            read(at=1.6, asked=0, epoch=1, watermark=2, values=((0, "1.0"), (1, "1.1"))),
            read(at=2.6, asked=2, epoch=2, watermark=3, values=((2, "1.2"),)),
        ],
        led=[led(1, A, 1, 0.0), led(2, B, 2, 1.9)],
        appended=[
            Appended(partition=P, epoch=epoch, offset=offset, value=value, node=A)
            for offset, epoch, value in values
        ],
        confirmed=[
            Confirmed(partition=P, epoch=1, node=A, end=end, durable=end, at=1.0) for end in (1, 2)
        ],
        copies={P: [Copy(node=node, watermark=3, values=values) for node in (A, B)]},
    )


def read(
    *, at: float, asked: int, epoch: int, watermark: int | None, values: tuple[tuple[int, str], ...]
) -> Read:
    return Read(
        reader=0,
        partition=P,
        invoked=at,
        ended=at + 0.1,
        asked=asked,
        epoch=epoch,
        watermark=watermark,
        values=values,
    )


def led(epoch: int, node: NodeId, session: int, at: float) -> Led:
    return Led(partition=P, epoch=epoch, node=node, session=SessionId(session), at=at)


def hold(
    history: History, *values: tuple[int, int, str], nodes: tuple[NodeId, ...] = (A, B)
) -> None:
    copies = {copy.node: copy for copy in history.copies[P]}
    for node in nodes:
        copies[node] = Copy(node=node, watermark=len(values), values=values)
    history.copies[P] = list(copies.values())


def lose_the_tail(history: History) -> None:
    hold(history, (0, 1, "1.0"), (1, 1, "1.1"))


def confirm_what_is_not_synced(history: History) -> None:
    late = Confirmed(partition=P, epoch=2, node=B, end=3, durable=2, at=2.5)
    history.confirmed.append(late)


def move_a_value(history: History) -> None:
    hold(history, (0, 1, "1.1"), (1, 1, "1.0"), (2, 2, "1.2"))


def read_another_value(history: History) -> None:
    history.reads.append(read(at=3.0, asked=1, epoch=2, watermark=3, values=((1, "1.2"),)))


def read_what_nobody_sent(history: History) -> None:
    history.reads.append(read(at=3.0, asked=3, epoch=2, watermark=4, values=((3, "9.9"),)))


def store_twice(history: History) -> None:
    hold(history, (0, 1, "1.0"), (1, 1, "1.1"), (2, 2, "1.2"), (3, 2, "1.2"))


def store_in_two_partitions(history: History) -> None:
    copy = Copy(node=A, watermark=1, values=((0, 1, "1.1"),))
    history.copies[PartitionId("t/1")] = [copy]


def store_out_of_order(history: History) -> None:
    history.sends[0].outcome = history.sends[1].outcome = "unknown"
    hold(history, (0, 1, "1.1"), (1, 1, "1.0"), (2, 2, "1.2"))


def skip_in_a_read(history: History) -> None:
    history.reads.append(
        read(at=3.0, asked=0, epoch=2, watermark=3, values=((0, "1.0"), (2, "1.2")))
    )


def begin_late_in_a_read(history: History) -> None:
    history.reads.append(read(at=3.0, asked=0, epoch=2, watermark=3, values=((1, "1.1"),)))


def let_replicas_differ(history: History) -> None:
    hold(history, (0, 1, "1.0"), (1, 1, "1.1"), (2, 3, "1.2"), nodes=(B,))


def let_states_differ(history: History) -> None:
    """One begins later, which is no matter; one has another entry."""
    history.states[P] = [
        Copy(node=A, watermark=3, values=((0, 1, "x"), (1, 1, "y"), (2, 2, "z"))),
        Copy(node=B, watermark=3, values=((1, 1, "y"), (2, 1, "z"))),
    ]


def take_the_watermark_back(history: History) -> None:
    history.reads.append(read(at=3.0, asked=1, epoch=3, watermark=1, values=()))


def lead_together(history: History) -> None:
    history.led.append(led(2, A, 1, 2.0))


def lead_again_after_a_restart(history: History) -> None:
    history.led.append(led(2, B, 9, 2.0))


def give_a_place_twice(history: History) -> None:
    history.appended.append(Appended(partition=P, epoch=2, offset=2, value="2.0", node=B))


def confirm_under_an_old_epoch(history: History) -> None:
    late = msgspec.structs.replace(
        history.sends[2], value="1.3", sequence=3, invoked=3.0, ended=3.5, offset=3, epoch=1
    )
    history.sends.append(late)
    hold(history, (0, 1, "1.0"), (1, 1, "1.1"), (2, 2, "1.2"), (3, 2, "1.3"))


def hide_what_is_confirmed(history: History) -> None:
    history.reads.append(read(at=3.0, asked=2, epoch=2, watermark=2, values=()))


def serve_long_after(history: History) -> None:
    history.reads.append(read(at=60.0, asked=2, epoch=1, watermark=2, values=()))


def begin_earlier_again(history: History) -> None:
    for epoch, node, start in ((1, A, 2), (2, B, 1)):
        begins = LogBegins(partition=P, epoch=epoch, node=node, start=start, at=float(epoch))
        history.begins.append(begins)


def come_to_no_end(history: History) -> None:
    history.trouble.append("nothing can be published")


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lose_the_tail, "confirmed but lost"),
        (move_a_value, "confirmed but lost"),
        (confirm_what_is_not_synced, "confirmed before it was synced"),
        (read_another_value, "two values at one offset"),
        (read_what_nobody_sent, "never sent"),
        (store_twice, "stored twice"),
        (store_in_two_partitions, "stored in two partitions"),
        (store_out_of_order, "out of order"),
        (skip_in_a_read, "reader skipped"),
        (begin_late_in_a_read, "reader skipped"),
        (let_replicas_differ, "replicas differ"),
        (let_states_differ, "states differ"),
        (take_the_watermark_back, "watermark went back"),
        (lead_together, "two leaders in one epoch"),
        (lead_again_after_a_restart, "two leaders in one epoch"),
        (give_a_place_twice, "one place given twice"),
        (confirm_under_an_old_epoch, "confirmed by a former leader"),
        (hide_what_is_confirmed, "confirmed but not read"),
        (serve_long_after, "served by a former leader"),
        (begin_earlier_again, "start went back"),
        (come_to_no_end, "not in time"),
    ],
)
def test_a_spoiled_history_is_found_by_its_rule(
    spoil: Callable[[History], None], rule: str
) -> None:
    history = sound()
    spoil(history)
    assert any(finding.startswith(f"{rule}:") for finding in check(history)), check(history)


def test_a_sound_history_has_no_findings() -> None:
    assert check(sound()) == []


def test_there_is_a_spoiled_history_for_every_rule() -> None:
    marks = test_a_spoiled_history_is_found_by_its_rule.pytestmark  # type: ignore[attr-defined]
    proven = {rule for _, rule in marks[0].args[1]}
    elsewhere = (
        *QUEUE_RULES,
        *SESSION_RULES,
        *RECEIVE_RULES,
        *TRANSACTION_RULES,
        *SINK_RULES,
        *MIRROR_RULES,
        *FAILBACK_RULES,
        *DEAL_RULES,
        *TURN_RULES,
    )
    here = [rule for rule in RULES if rule not in elsewhere]
    assert proven == {rule.__name__.replace("_", " ") for rule in here}
