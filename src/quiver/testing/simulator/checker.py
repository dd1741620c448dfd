"""Reads a history and says what should not have happened.

Each rule is a function from a history to its findings, in words. A finding names values, offsets and
epochs, so that the story of the seed can be searched for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from quiver.cluster.records import PartitionId
from quiver.testing.simulator.clients import BY_ID
from quiver.testing.simulator.history import Copy, History
from quiver.testing.simulator.mirrors.deal_rules import DEAL_RULES
from quiver.testing.simulator.mirrors.failback_rules import FAILBACK_RULES
from quiver.testing.simulator.mirrors.history import MirrorHistory
from quiver.testing.simulator.mirrors.rules import MIRROR_RULES
from quiver.testing.simulator.mirrors.turn_rules import TURN_RULES
from quiver.testing.simulator.queue_rules import QUEUE_RULES
from quiver.testing.simulator.receives.rules import RECEIVE_RULES
from quiver.testing.simulator.sessions.rules import SESSION_RULES
from quiver.testing.simulator.transactions.rules import TRANSACTION_RULES
from quiver.testing.simulator.transactions.sink_rules import SINK_RULES

STALE_SECONDS_MAX = 5.0
"""More than the simulator's lease, and more than its patience with followers."""

Rule = Callable[[History], Iterator[str]]


def check(history: History) -> list[str]:
    """Every finding of every rule, each with the rule's name."""
    found = [
        f"{rule.__name__.replace('_', ' ')}: {finding}"
        for rule in RULES
        for finding in rule(history)
    ]
    if isinstance(history, MirrorHistory):
        found += [f"in the copy, {finding}" for finding in check(history.target)]
        if history.back is not None:
            found += [f"on the way back, {finding}" for finding in check(history.back)]
    return found


def confirmed_but_lost(history: History) -> Iterator[str]:
    """A confirmed value is in the log in the end, at the offset that was confirmed."""
    final = {
        partition: {offset: value for offset, _, value in _longest(copies).values}
        for partition, copies in history.copies.items()
    }
    known = {
        (_topic_of(partition), value)
        for partition, values in final.items()
        for value in values.values()
    }
    for send in history.sends:
        if send.outcome == "done" and send.partition in final:
            values = final[send.partition]
            there = values.get(send.offset)
            if send.offset < 0:  # it was stored before, and nobody knew where any more
                there = send.value if (_topic_of(send.partition), send.value) in known else None
            if there != send.value:
                yield (
                    f"{send.value} was confirmed at {send.partition}:{send.offset} in epoch "
                    f"{send.epoch} at {send.ended:.3f} s, where now is {there}"
                )


def _topic_of(partition: PartitionId) -> str:
    return partition.rpartition("/")[0]


def confirmed_before_it_was_synced(history: History) -> Iterator[str]:
    """A leader sends entries to followers before it has synced them, and confirms them after."""
    for one in history.confirmed:
        if one.durable < one.end:
            yield (
                f"{one.node} confirmed {one.partition} up to {one.end} in epoch {one.epoch} at "
                f"{one.at:.3f} s, and had synced it up to {one.durable}"
            )


def two_values_at_one_offset(history: History) -> Iterator[str]:
    """Nobody ever sees two values at one place: not senders, not readers, not replicas."""
    seen: dict[tuple[PartitionId, int], str] = {}

    def look(partition: PartitionId, offset: int, value: str, who: str) -> Iterator[str]:
        known = seen.setdefault((partition, offset), value)
        if known != value:
            yield f"{partition}:{offset} is {known} and, to {who}, {value}"

    for send in history.sends:
        if send.outcome == "done" and send.offset >= 0:
            yield from look(send.partition, send.offset, send.value, "its sender")
    for read in history.reads:
        for offset, value in read.values:
            yield from look(read.partition, offset, value, f"reader {read.reader}")
    for partition, copies in history.copies.items():
        for copy in copies:
            for offset, _, value in copy.values:
                if offset < copy.watermark:
                    yield from look(partition, offset, value, copy.node)


def never_sent(history: History) -> Iterator[str]:
    sent = {(send.partition, send.value) for send in history.sends}
    for read in history.reads:
        for offset, value in read.values:
            if (read.partition, value) not in sent:
                yield f"{value} was read at {read.partition}:{offset}"


def stored_twice(history: History) -> Iterator[str]:
    """With idempotence no value has two places."""
    for partition, copies in history.copies.items():
        places: dict[str, int] = {}
        for offset, _, value in _longest(copies).values:
            if value in places:
                yield f"{value} is at {partition}:{places[value]} and at {offset}"
            places[value] = offset


def stored_in_two_partitions(history: History) -> Iterator[str]:
    """Also if a partition is split, no value has two places."""
    places: dict[tuple[str, str], str] = {}
    for partition, copies in history.copies.items():
        for offset, _, value in _longest(copies).values:
            known = places.setdefault((_topic_of(partition), value), f"{partition}:{offset}")
            if not known.startswith(f"{partition}:"):
                yield f"{value} is at {known} and at {partition}:{offset}"


def out_of_order(history: History) -> Iterator[str]:
    """One producer's values are stored in the order in which they were sent."""
    for partition, copies in history.copies.items():
        last: dict[str, int] = {}
        for offset, _, value in _longest(copies).values:
            producer, _, number = value.partition(".")
            if producer.startswith(BY_ID):
                continue  # without a session nothing keeps them in order
            if int(number) <= last.get(producer, -1):
                yield f"{value} at {partition}:{offset} comes after {producer}.{last[producer]}"
            last[producer] = int(number)


def reader_skipped(history: History) -> Iterator[str]:
    """What is read begins where the reader asked and has no gaps."""
    for read in history.reads:
        expected = read.asked
        for offset, value in read.values:
            if offset > expected or (offset < expected and expected != read.asked):
                yield (
                    f"reader {read.reader} wanted {read.partition}:{expected} and got {offset} "
                    f"({value}) at {read.ended:.3f} s"
                )
                break
            expected = offset + 1


def replicas_differ(history: History) -> Iterator[str]:
    """After healing all replicas are the same, epochs and all."""
    for partition, copies in history.copies.items():
        first = copies[0]
        for copy in copies[1:]:
            if copy.values != first.values:
                place = next(
                    (
                        index
                        for index, (one, other) in enumerate(
                            zip(first.values, copy.values, strict=False)
                        )
                        if one != other
                    ),
                    min(len(first.values), len(copy.values)),
                )
                yield (
                    f"{partition} on {first.node} ({len(first.values)} values) and {copy.node} "
                    f"({len(copy.values)}) part at {place}: {first.values[place : place + 1]} and "
                    f"{copy.values[place : place + 1]}"
                )


def states_differ(history: History) -> Iterator[str]:
    """Of the second log all replicas have the same, from where the last of them begins."""
    for partition, copies in history.states.items():
        starts = [copy.values[0][0] if copy.values else copy.watermark for copy in copies]
        start = max(starts, default=0)
        kept = {copy.node: [one for one in copy.values if one[0] >= start] for copy in copies}
        first = kept[copies[0].node]
        for node, values in kept.items():
            if values != first:
                yield (
                    f"{partition} from {start} on: {copies[0].node} has {first[:3]}…{first[-1:]}, "
                    f"{node} has {values[:3]}…{values[-1:]}"
                )


def watermark_went_back(history: History) -> Iterator[str]:
    """What one epoch has told to be committed, no later epoch takes back."""
    highest: dict[tuple[PartitionId, int], int] = {}
    lowest: dict[tuple[PartitionId, int], int] = {}
    for read in history.reads:
        if read.watermark is not None:
            key = (read.partition, read.epoch)
            highest[key] = max(highest.get(key, 0), read.watermark)
            lowest[key] = min(lowest.get(key, read.watermark), read.watermark)
    reached: dict[PartitionId, int] = defaultdict(int)
    for partition, epoch in sorted(highest):
        if lowest[partition, epoch] < reached[partition]:
            yield (
                f"{partition} was told to be committed up to {reached[partition]}, then in epoch "
                f"{epoch} up to {lowest[partition, epoch]}"
            )
        reached[partition] = max(reached[partition], highest[partition, epoch])


def two_leaders_in_one_epoch(history: History) -> Iterator[str]:
    leaders: dict[tuple[PartitionId, int], tuple[str, int]] = {}
    for led in history.led:
        known = leaders.setdefault((led.partition, led.epoch), (led.node, led.session))
        if known != (led.node, led.session):
            yield f"{led.partition} in epoch {led.epoch}: {known} and {(led.node, led.session)}"


def one_place_given_twice(history: History) -> Iterator[str]:
    """Within an epoch an offset is given to one value only."""
    given: dict[tuple[PartitionId, int, int], str] = {}
    for one in history.appended:
        known = given.setdefault((one.partition, one.epoch, one.offset), one.value)
        if known != one.value:
            yield f"{one.partition}:{one.offset} in epoch {one.epoch}: {known} and {one.value}"


def confirmed_by_a_former_leader(history: History) -> Iterator[str]:
    """Nothing sent after an epoch's first confirmation is confirmed under an earlier one."""
    done = sorted(
        (send for send in history.sends if send.outcome == "done"), key=lambda send: send.ended
    )
    for partition in {send.partition for send in done}:
        confirmed: list[tuple[float, int]] = []
        for send in done:
            if send.partition != partition:
                continue
            newer = [epoch for ended, epoch in confirmed if ended < send.invoked]
            if newer and max(newer) > send.epoch:
                yield f"{send.value} in epoch {send.epoch}, when {max(newer)} had confirmed"
                break
            if not confirmed or confirmed[-1][1] < send.epoch:
                confirmed.append((send.ended, send.epoch))


def confirmed_but_not_read(history: History) -> Iterator[str]:
    """A read that begins after a confirmation, under the same or a later epoch, reaches that far.

    Only where the leader said how far it knows, and nothing more was there to be read.
    """
    for partition in {read.partition for read in history.reads}:
        done = sorted(
            (send.ended, send.offset, send.epoch)
            for send in history.sends
            if send.outcome == "done" and send.partition == partition
        )
        reads = sorted(
            (read for read in history.reads if read.partition == partition),
            key=lambda read: read.invoked,
        )
        place, reached, epoch = 0, -1, 0
        for read in reads:
            while place < len(done) and done[place][0] < read.invoked:
                if done[place][1] > reached:
                    reached, epoch = done[place][1], done[place][2]
                place += 1
            if read.epoch < epoch or read.watermark is None:
                continue
            if read.watermark <= reached:
                yield (
                    f"{partition}:{reached} was confirmed in epoch {epoch}, and a read in epoch "
                    f"{read.epoch} at {read.invoked:.3f} s knows {read.watermark} only"
                )
                break


def served_by_a_former_leader(history: History) -> Iterator[str]:
    """A leader that was replaced serves no reads for longer than it can believe to be one."""
    confirmed: dict[PartitionId, tuple[list[float], list[int]]] = {}
    """Of each partition: when publishes were confirmed, and the latest epoch until then."""
    for send in sorted(history.sends, key=lambda one: one.ended):
        if send.outcome == "done":
            times, epochs = confirmed.setdefault(send.partition, ([], []))
            times.append(send.ended)
            epochs.append(max(send.epoch, epochs[-1] if epochs else send.epoch))
    for read in history.reads:
        times, epochs = confirmed.get(read.partition, ([], []))
        before = bisect_left(times, read.invoked - STALE_SECONDS_MAX)
        if before and epochs[before - 1] > read.epoch:
            yield (
                f"reader {read.reader} was served {read.partition} in epoch {read.epoch} at "
                f"{read.invoked:.3f} s, long after {epochs[before - 1]} had confirmed"
            )
            break


def start_went_back(history: History) -> Iterator[str]:
    """What a leader's readers saw excluded is excluded for good, whoever leads later."""
    for partition in {one.partition for one in history.begins}:
        seen = sorted(
            (one for one in history.begins if one.partition == partition),
            key=lambda one: (one.epoch, one.at),
        )
        for earlier, later in pairwise(seen):
            if later.start < earlier.start:
                yield (
                    f"the state of {partition} began at {earlier.start} in epoch {earlier.epoch} "
                    f"and at {later.start} in epoch {later.epoch}, on {later.node}"
                )
        for copy in history.states.get(partition, ()):
            if seen and copy.values and copy.values[0][0] < seen[-1].start:
                yield f"{copy.node} has {partition}:{copy.values[0][0]}, which is excluded"


def not_in_time(history: History) -> Iterator[str]:
    yield from history.trouble


def _longest(copies: list[Copy]) -> Copy:
    return max(copies, key=lambda copy: len(copy.values))


RULES: tuple[Rule, ...] = (
    confirmed_but_lost,
    confirmed_before_it_was_synced,
    two_values_at_one_offset,
    never_sent,
    stored_twice,
    stored_in_two_partitions,
    out_of_order,
    reader_skipped,
    replicas_differ,
    states_differ,
    watermark_went_back,
    two_leaders_in_one_epoch,
    one_place_given_twice,
    confirmed_by_a_former_leader,
    confirmed_but_not_read,
    served_by_a_former_leader,
    start_went_back,
    not_in_time,
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
