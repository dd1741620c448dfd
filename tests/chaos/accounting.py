"""Whether what a workload saw is right: the simulator's rules, and those of queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from quiver.testing.simulator.checker import check
from tests.chaos.workload import Delivered, Seen


def findings(seen: Seen) -> list[str]:
    """What should not have happened, in words; once the workload is finished."""
    return [
        *check(seen.history),
        *(f"never delivered: {one}" for one in never_delivered(seen)),
        *(f"delivered and never sent: {one}" for one in delivered_but_never_sent(seen)),
        *(f"delivered after its ack: {one}" for one in delivered_after_ack(seen.deliveries)),
    ]


def never_delivered(seen: Seen) -> Iterator[str]:
    """Everything that was confirmed has been given to a consumer in the end."""
    given = {one.value for one in seen.deliveries}
    for send in seen.history.sends:
        if send.outcome == "done" and send.value not in given:
            yield f"{send.value} at {send.partition}:{send.offset}"


def delivered_but_never_sent(seen: Seen) -> Iterator[str]:
    sent = {send.value for send in seen.history.sends}
    for one in seen.deliveries:
        if one.value not in sent:
            yield one.value


def delivered_after_ack(deliveries: list[Delivered]) -> Iterator[str]:
    """On an exactly-once subscription nobody is given what was confirmed to be finished."""
    acked: dict[str, float] = defaultdict(lambda: float("inf"))
    for one in deliveries:
        if one.acked is not None:
            acked[one.value] = min(acked[one.value], one.acked)
    for one in deliveries:
        if one.invoked > acked[one.value]:
            yield f"{one.value}, acknowledged {one.invoked - acked[one.value]:.3f} s before"
