"""What should not have happened to consumers with a session: more rules for the checker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from quiver.model.subscription import Guarantee
from quiver.testing.simulator.history import Delivery, History, Start

Message = tuple[str, str, int]
"""A subscription, a partition and an offset."""
UNKNOWN = 1e9
"""When something happened that never did."""


def two_live_consumers(history: History) -> Iterator[str]:
    """Exactly once: as long as a consumer says that it works on a message, nobody else gets it.

    A node that says it has heard so keeps the lease for two thirds of the visibility at least. Where
    the lead changes hands meanwhile, or a clock is set, that is not so.
    """
    if history.clocks_s != (0.0, 0.0):
        return
    ends = {life.consumer: life for life in history.lives}
    settled: dict[tuple[int, int], float] = {}
    for settlement in history.settlements:
        for offset in settlement.offsets:
            settled.setdefault((settlement.lease, offset), settlement.invoked)
    for message, deliveries in _by_message(history, Guarantee.EXACTLY_ONCE).items():
        for first in deliveries:
            life = ends.get(first.consumer)
            later = [other for other in deliveries if other.invoked > first.ended]
            if life is None or not later:
                continue
            given_up = settled.get((first.lease, first.offset), UNKNOWN)
            until = min(_in_touch_until(history, first), life.leaving, given_up)
            for second in later:
                if second.ended < until and _one_leader(history, first, second):
                    yield (
                        f"{_named(message)} was {first.consumer}'s, who was there until "
                        f"{until:.3f} s, and {second.consumer} got it at {second.ended:.3f} s"
                    )


def _in_touch_until(history: History, delivery: Delivery) -> float:
    """How long the lease lasts at least, by what nodes have answered."""
    until = delivery.deadline
    visibility_s = delivery.deadline - delivery.invoked
    place = (delivery.partition, delivery.offset)
    for touch in history.touches:
        if (
            touch.consumer == delivery.consumer
            and delivery.ended < touch.at
            and touch.answered < until
            and place in touch.held
            and _leader_at(history, delivery.partition, touch.at) == touch.node
        ):
            until = max(until, touch.at + visibility_s * 2 / 3)
    return until


def leads_of(history: History, partition: str) -> list[tuple[float, str]]:
    """When a partition got a leader, and which."""
    topic, _, index = partition.rpartition("/")
    return [
        (led.at, led.node)
        for led in history.led
        if led.partition.partition("@")[0] == topic and led.partition.rpartition("/")[2] == index
    ]


def _leader_at(history: History, partition: str, at: float) -> str | None:
    before = [node for since, node in leads_of(history, partition) if since <= at]
    return before[-1] if before else None


def _one_leader(history: History, first: Delivery, second: Delivery) -> bool:
    """Whether the lead stayed where it was from one delivery to the other."""
    return not any(
        first.invoked <= at <= second.ended for at, _ in leads_of(history, first.partition)
    )


def counted_unseen(history: History) -> Iterator[str]:
    """No attempt counts of a message that no program had.

    But for what a program was given with another message, or was about to be given, when it ended: the
    node cannot know.
    """
    sessions = {life.consumer for life in history.lives}
    seen = {(one.consumer, one.partition, one.offset) for one in history.deliveries}
    batches: dict[int, list[Start]] = defaultdict(list)
    for start in history.starts:
        batches[start.batch].append(start)
    counted: dict[Message, list[float]] = defaultdict(list)
    last = {one.consumer: one.ended for one in history.deliveries}
    for batch in batches.values():
        first = batch[0]
        waits = history.queues[first.queue].guarantee != Guarantee.AT_LEAST_ONCE
        may_count = (
            any((one.consumer, one.partition, one.offset) in seen for one in batch)
            or (waits and first.answered == UNKNOWN)
            or last.get(first.consumer, 0.0) < first.at
        )
        for one in batch if may_count else ():
            counted[one.queue, one.partition, one.offset].append(one.at)
    for delivery in history.deliveries:
        message = (delivery.queue, delivery.partition, delivery.offset)
        times = sum(at <= delivery.ended for at in counted[message])
        if delivery.consumer in sessions and delivery.attempt > times:
            yield (
                f"{delivery.consumer} got {_named(message)} at {delivery.ended:.3f} s for the "
                f"{delivery.attempt}th time, and programs had it {times} times by then"
            )
    yield from _letters_unseen(history, counted)


def _letters_unseen(history: History, counted: dict[Message, list[float]]) -> Iterator[str]:
    rejected = {
        (one.queue, one.partition, offset)
        for one in history.settlements
        if one.kind == "reject"
        for offset in one.offsets
    }
    for letter in history.letters:
        message = (letter.queue, letter.partition, letter.offset)
        most = history.queues[letter.queue].max_deliveries
        if history.lives and message not in rejected and len(counted[message]) < most:
            yield (
                f"{_named(message)} is a dead letter, and programs had it "
                f"{len(counted[message])} times"
            )


def stranded(history: History) -> Iterator[str]:
    """Nothing stays with a consumer that is gone."""
    for one in history.stranded:
        yield (
            f"{one.node} kept {one.queue}'s {one.partition}:{list(one.offsets)} at {one.at:.3f} s "
            f"for {one.consumer}, which was {one.how} at {one.ended:.3f} s"
        )


def delivered_after_a_flush(history: History) -> Iterator[str]:
    """At least once: as long as one node leads, what a flush has confirmed is not delivered again."""
    if not history.lives:
        return
    acked = {
        (one.queue, one.partition, offset): one
        for one in history.settlements
        if one.kind == "ack" and one.outcome == "done"
        for offset in one.offsets
        if offset not in one.stale
    }
    first = {(one.lease, one.offset): one for one in history.deliveries}
    for delivery in history.deliveries:
        message = (delivery.queue, delivery.partition, delivery.offset)
        ack = acked.get(message)
        if (
            ack is not None
            and delivery.pushed > ack.ended
            and _leader_at(history, delivery.partition, delivery.pushed) == delivery.pushed_by
            and _one_leader(history, first[ack.lease, delivery.offset], delivery)
        ):
            yield (
                f"{_named(message)} was acknowledged at {ack.ended:.3f} s, and "
                f"{delivery.consumer} got it at {delivery.ended:.3f} s"
            )


def _by_message(history: History, guarantee: Guarantee) -> dict[Message, list[Delivery]]:
    found: dict[Message, list[Delivery]] = defaultdict(list)
    for one in history.deliveries:
        if history.queues[one.queue].guarantee == guarantee:
            found[one.queue, one.partition, one.offset].append(one)
    return found


def _named(message: Message) -> str:
    queue, partition, offset = message
    return f"{queue}'s {partition}:{offset}"


SESSION_RULES = (two_live_consumers, counted_unseen, stranded, delivered_after_a_flush)
