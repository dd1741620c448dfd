"""What should not have happened to the messages of subscriptions: more rules for the checker.

Only what an exactly-once subscription promises is strict: with at-least-once a leader that was
replaced, and does not know it yet, may give out messages that its successor gives out too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from quiver.model.subscription import Guarantee, Ordering
from quiver.testing.simulator.clients import BY_ID
from quiver.testing.simulator.history import Delivery, History

Message = tuple[str, str, int]
"""A subscription, a partition and an offset."""


def delivered_inside_a_lease(history: History) -> Iterator[str]:
    """Exactly once: nobody gets a message while another holds it."""
    given_up = _given_up(history)
    for message, deliveries in _by_message(history, Guarantee.EXACTLY_ONCE).items():
        for first in deliveries:
            until = min(_held_until(history, first), given_up.get((first.lease, message[2]), 1e9))
            until = min(until, _left_at(history, first))
            for second in deliveries:
                if first.ended < second.invoked and second.ended < until:
                    yield (
                        f"{_named(message)} was {first.consumer}'s until {until:.3f} s, and "
                        f"{second.consumer} got it at {second.ended:.3f} s"
                    )


def stale_receipt_honoured(history: History) -> Iterator[str]:
    """Exactly once: who holds a message no more, for another has it, cannot settle it."""
    deliveries = _by_message(history, Guarantee.EXACTLY_ONCE)
    tried: set[tuple[int, int]] = set()
    for settlement in sorted(history.settlements, key=lambda one: one.invoked):
        for offset in settlement.offsets:
            message = (settlement.queue, settlement.partition, offset)
            again = (settlement.lease, offset) in tried
            if settlement.kind == "ack":
                tried.add((settlement.lease, offset))
            if settlement.outcome != "done" or offset in settlement.stale or again:
                continue
            for other in deliveries.get(message, ()):
                mine = next(one for one in deliveries[message] if one.lease == settlement.lease)
                if mine.ended < other.invoked and other.ended < settlement.invoked:
                    yield (
                        f"{settlement.kind} of {_named(message)} by {settlement.consumer} at "
                        f"{settlement.invoked:.3f} s, when {other.consumer} had it"
                    )
                    break


def delivered_after_its_ack(history: History) -> Iterator[str]:
    """Exactly once: a confirmed acknowledgement is the end, and no dead letter comes of it."""
    acked = _ended(history, "ack")
    yield from _delivered_after(history, acked, "acknowledged")
    for letter in history.letters:
        message = (letter.queue, letter.partition, letter.offset)
        if message in acked:
            yield f"{_named(message)} was acknowledged and is a dead letter"


def delivered_after_its_reject(history: History) -> Iterator[str]:
    """Exactly once: a confirmed reject is the end. That a dead letter comes of it is another rule."""
    return _delivered_after(history, _ended(history, "reject"), "rejected")


def _ended(history: History, kind: str) -> dict[Message, float]:
    """By message of exactly-once subscriptions: when its consumer knew that it was settled so."""
    return {
        (settlement.queue, settlement.partition, offset): settlement.ended
        for settlement in reversed(history.settlements)
        if settlement.kind == kind
        and settlement.outcome == "done"
        and history.queues[settlement.queue].guarantee == Guarantee.EXACTLY_ONCE
        for offset in settlement.offsets
        if offset not in settlement.stale
    }


def _delivered_after(history: History, ended: dict[Message, float], how: str) -> Iterator[str]:
    for one in history.deliveries:
        message = (one.queue, one.partition, one.offset)
        if one.invoked > ended.get(message, 1e9):
            yield (
                f"{_named(message)} was {how} at {ended[message]:.3f} s, and {one.consumer} "
                f"got it at {one.ended:.3f} s"
            )


def at_most_once_twice(history: History) -> Iterator[str]:
    for message, deliveries in _by_message(history, Guarantee.AT_MOST_ONCE).items():
        if len(deliveries) > 1:
            who = ", ".join(f"{one.consumer} at {one.ended:.3f} s" for one in deliveries)
            yield f"{_named(message)} was delivered to {who}"


def order_broken(history: History) -> Iterator[str]:
    """What was delivered without those before it says that they are done with: for good."""
    sequences: dict[tuple[str, str, str], dict[int, list[Delivery]]] = defaultdict(dict)
    for one in history.deliveries:
        queue = history.queues[one.queue]
        if queue.ordering != Ordering.NONE:
            key = one.key if queue.ordering == Ordering.KEY else ""
            sequence = sequences[one.queue, one.partition, key]
            sequence.setdefault(one.lease, []).append(one)
    dead = _dead(history) | set(history.elsewhere)
    for (name, partition, key), leases in sequences.items():
        strict = history.queues[name].guarantee != Guarantee.AT_LEAST_ONCE
        portions = sorted(leases.values(), key=lambda portion: portion[0].invoked)
        seen: set[int] = set()
        for place, portion in enumerate(portions):
            first = portion[0]
            before = [other for other in portions[:place] if other[0].ended < first.invoked]
            passed = max((other[0].offset for other in before), default=-1)
            for one in portion:
                known = one.offset in seen or (name, partition, one.offset) in dead
                if one.offset < passed and (strict or not known):
                    yield (
                        f"{name} got {partition}:{one.offset} ({one.value}, key {key or 'any'}) "
                        f"at {one.ended:.3f} s, after {passed}"
                    )
            seen |= {one.offset for one in portion}


def order_broken_by_a_split(history: History) -> Iterator[str]:
    """The same for the messages of a key in several partitions: they are numbered as they were sent."""
    sequences: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
    for one in history.deliveries:
        if history.queues[one.queue].ordering != Ordering.NONE and not one.key.startswith(BY_ID):
            sequences[one.queue, one.key].append(one)
    dead = _dead(history) | set(history.elsewhere)
    for (name, key), deliveries in sequences.items():
        if len({one.partition for one in deliveries}) == 1:
            continue
        strict = history.queues[name].guarantee != Guarantee.AT_LEAST_ONCE
        for one in deliveries:
            message = (name, one.partition, one.offset)
            known = message in dead or any(
                other.offset == one.offset and other.invoked < one.invoked
                for other in deliveries
                if other.partition == one.partition
            )
            if known and not strict:
                continue
            for other in deliveries:
                is_later = _number(other) > _number(one) and other.partition != one.partition
                if is_later and other.ended < one.invoked:
                    yield (
                        f"{name} got {one.partition}:{one.offset} ({one.value}, key {key}) at "
                        f"{one.ended:.3f} s, after {other.partition}:{other.offset} ({other.value})"
                    )
                    break


def _dead(history: History) -> set[Message]:
    return {(letter.queue, letter.partition, letter.offset) for letter in history.letters}


def _number(delivery: Delivery) -> int:
    return int(delivery.value.partition(".")[2])


def too_many_attempts(history: History) -> Iterator[str]:
    """No message is delivered more often than its subscription lets it be."""
    reported: set[Message] = set()
    counts: dict[Message, int] = defaultdict(int)
    for one in history.deliveries:
        queue, message = history.queues[one.queue], (one.queue, one.partition, one.offset)
        counts[message] += 1
        strict = queue.guarantee == Guarantee.EXACTLY_ONCE and not history.departures
        attempt = max(one.attempt, counts[message] if strict else 0)
        if 0 < queue.max_deliveries < attempt and message not in reported:
            reported.add(message)
            yield f"{_named(message)} was delivered for the {attempt}th time at {one.ended:.3f} s"


def neither_acked_nor_dead(history: History) -> Iterator[str]:
    """After the last drain every message is done with, by its consumers' word or as a dead letter."""
    if not history.drained:
        return
    done = _done(history)
    for name, queue in history.queues.items():
        if queue.guarantee == Guarantee.AT_MOST_ONCE:
            continue
        for partition, copies in history.copies.items():
            if partition.rpartition("/")[0] not in queue.topics or not copies:
                continue
            end = history.drained_to.get(partition)
            for offset, _, value in max(copies, key=lambda copy: len(copy.values)).values:
                came_later = end is not None and offset >= end
                if not came_later and (name, partition, offset) not in done:
                    yield f"{_named((name, partition, offset))} ({value}) was passed over"


def gone_before_it_was_finished(history: History) -> Iterator[str]:
    """What a topic keeps until it is finished reaches every subscription, whatever retention does."""
    if not history.drained:
        return
    done = _done(history)
    for name, queue in history.queues.items():
        kept = set(queue.topics).intersection(history.trimmed)
        if queue.guarantee == Guarantee.AT_MOST_ONCE or not kept:
            continue
        for send in history.sends:
            if send.partition.rpartition("/")[0] not in kept or send.outcome != "done":
                continue
            message = (name, send.partition, send.offset)
            if 0 <= send.offset < history.drained_to[send.partition] and message not in done:
                yield f"{_named(message)} ({send.value}) was confirmed, and is gone unfinished"


def _done(history: History) -> set[Message]:
    """What a consumer said that it is done with, or is a dead letter."""
    done = {
        (settlement.queue, settlement.partition, offset)
        for settlement in history.settlements
        if settlement.kind == "ack"
        for offset in settlement.offsets
    }
    return done | _dead(history)


def two_letters_for_one(history: History) -> Iterator[str]:
    seen: set[Message] = set()
    for letter in history.letters:
        message = (letter.queue, letter.partition, letter.offset)
        if message in seen:
            yield f"{_named(message)} is twice among the dead letters"
        seen.add(message)


def _by_message(history: History, guarantee: Guarantee) -> dict[Message, list[Delivery]]:
    found: dict[Message, list[Delivery]] = defaultdict(list)
    for one in history.deliveries:
        if history.queues[one.queue].guarantee == guarantee:
            found[one.queue, one.partition, one.offset].append(one)
    return found


def _given_up(history: History) -> dict[tuple[int, int], float]:
    """By lease and offset: when its consumer first asked for its end."""
    ends: dict[tuple[int, int], float] = {}
    for settlement in history.settlements:
        if settlement.kind != "extend":
            for offset in settlement.offsets:
                key = (settlement.lease, offset)
                ends[key] = min(ends.get(key, 1e9), settlement.invoked)
    return ends


def _held_until(history: History, delivery: Delivery) -> float:
    """When the lease ended at the earliest, whatever the clock that was asked."""
    behind_s, ahead_s = history.clocks_s
    until = delivery.deadline - ahead_s
    for one in history.settlements:
        if one.kind != "extend" or one.lease != delivery.lease or delivery.offset in one.stale:
            continue
        extended = one.invoked + one.visibility_s - (ahead_s - behind_s)
        if ahead_s > behind_s:
            until = min(until, extended)  # by another's clock that may have been the sooner end
        elif one.outcome == "done" and delivery.offset in one.offsets:
            until = max(until, extended)
    return until


def _left_at(history: History, delivery: Delivery) -> float:
    whose = (delivery.queue, delivery.consumer)
    return min(
        (one.at for one in history.departures if (one.queue, one.consumer) == whose), default=1e9
    )


def _named(message: Message) -> str:
    queue, partition, offset = message
    return f"{queue}'s {partition}:{offset}"


QUEUE_RULES = (
    delivered_inside_a_lease,
    stale_receipt_honoured,
    delivered_after_its_ack,
    delivered_after_its_reject,
    at_most_once_twice,
    order_broken,
    order_broken_by_a_split,
    too_many_attempts,
    neither_acked_nor_dead,
    gone_before_it_was_finished,
    two_letters_for_one,
)
