"""What should not have happened to the copy of a cluster: more rules for the checker."""

from __future__ import annotations

from collections.abc import Iterator

from quiver.cluster.records import PartitionId
from quiver.model.subscription import Guarantee
from quiver.testing.simulator.history import History
from quiver.testing.simulator.mirrors.history import LOOSE, LedLog, Mark, MirrorHistory, last_of


def copied_what_is_not_there(history: History) -> Iterator[str]:
    """At any time a copy is a prefix of its source, but for gaps that were declared."""
    if not isinstance(history, MirrorHistory):
        return
    for partition, copies in history.copied.items():
        if partition in history.logs and partition.rpartition("/")[0] != LOOSE:
            for copy in copies:
                yield from _strange(history, partition, copy)


def _strange(history: MirrorHistory, partition: PartitionId, copy: LedLog) -> Iterator[str]:
    """The first entry of a copy that its source never had for good."""
    logs, start = history.logs[partition], history.source_starts.get(partition, 0)
    kept = {mark[0]: mark for mark in _before_its_cut(history, partition).marks}
    once = {mark for log in logs for mark in log.marks}
    is_promoted = partition.rpartition("/")[0] in history.promotions
    expected = copy.marks[0][0] if copy.marks else 0
    for mark in copy.marks:
        offset, count = mark[0], mark[1]
        if is_promoted and copy.own_from is not None and offset >= copy.own_from:
            return  # published here
        if offset != expected:
            yield f"{copy.node} has {partition}:{offset} where {expected} comes next"
            return
        expected = offset + count
        if mark == kept.get(offset) or (offset < start and mark in once):
            continue
        if expected <= start and _is_declared(history, partition, offset, expected):
            continue
        yield (
            f"{copy.node} stored {mark} in {partition} in epoch {copy.epoch}, where its source has "
            f"{kept.get(offset)}"
        )
        return


def _before_its_cut(history: MirrorHistory, partition: PartitionId) -> LedLog:
    """The log of the source at last, or before it was cut to be a copy itself."""
    logs = history.logs[partition]
    known = history.failbacks.get(partition.rpartition("/")[0])
    part = known.parts.get(partition) if known is not None else None
    if part is not None and part.cut < part.end:
        logs = [log for log in logs if log.epoch < part.epoch] or logs
    return last_of(logs)


def _is_declared(history: MirrorHistory, partition: PartitionId, begin: int, end: int) -> bool:
    topic, _, index = partition.rpartition("/")
    return any(
        gap.begin <= begin and end <= gap.end
        for gap in history.gaps
        if (gap.topic, gap.index) == (topic, int(index))
    )


def merged_what_diverged(history: History) -> Iterator[str]:
    """A copy of what was taken back ends there: it is a prefix of what its source once was."""
    if not isinstance(history, MirrorHistory):
        return
    for partition, copies in history.copied.items():
        if partition.rpartition("/")[0] != LOOSE:
            continue
        for copy in copies:
            if not any(_is_prefix(copy.marks, log.marks) for log in history.logs[partition]):
                yield (
                    f"{copy.node} stored {copy.marks[-3:]} in {partition} in epoch {copy.epoch}: "
                    "the source never had that log"
                )
                return


def _is_prefix(some: list[Mark], whole: list[Mark]) -> bool:
    return whole[: len(some)] == some


def diverged_in_silence(history: History) -> Iterator[str]:
    """Who has what its source has not says so."""
    if not isinstance(history, MirrorHistory):
        return
    for partition, copies in history.copied.items():
        if partition.rpartition("/")[0] == LOOSE:
            copy, source = last_of(copies), last_of(history.logs[partition])
            if not _is_prefix(copy.marks, source.marks) and partition not in history.diverged:
                yield f"{partition} is another at {copy.node} than at {source.node}"


def copy_was_written_to(history: History) -> Iterator[str]:
    """Nobody can publish to a copy before it is promoted."""
    if not isinstance(history, MirrorHistory):
        return
    for send in history.target.sends:
        promotion = history.promotions.get(send.partition.rpartition("/")[0])
        if send.outcome == "done" and (promotion is None or send.ended < promotion.invoked):
            yield f"{send.value} was stored at {send.partition}:{send.offset} at {send.ended:.3f} s"


def copy_delivered(history: History) -> Iterator[str]:
    """A copied subscription delivers nothing before a promote."""
    if not isinstance(history, MirrorHistory):
        return
    for one in history.target.deliveries:
        promotion = history.promotions.get(one.partition.rpartition("/")[0])
        if promotion is None or one.ended < promotion.invoked:
            yield f"{one.consumer} got {one.queue}'s {one.partition}:{one.offset} at {one.ended:.3f} s"


def acknowledged_and_delivered_again(history: History) -> Iterator[str]:
    """What was acknowledged longer ago than the shown lag is done with, also after a promote.

    With a source that was stopped, that is all that was ever acknowledged.
    """
    if not isinstance(history, MirrorHistory):
        return
    acked = {
        (settlement.queue, settlement.partition, offset): settlement.ended
        for settlement in reversed(history.settlements)
        if settlement.kind == "ack" and settlement.outcome == "done"
        for offset in settlement.offsets
        if offset not in settlement.stale
    }
    for one in history.target.deliveries:
        promotion = history.promotions.get(one.partition.rpartition("/")[0])
        ended = acked.get((one.queue, one.partition, one.offset))
        if promotion is None or ended is None:
            continue
        counts = history.counted.get(one.partition, 0.0)
        if ended < (promotion.ended if promotion.is_complete else counts):
            yield (
                f"{one.queue}'s {one.partition}:{one.offset} was acknowledged at {ended:.3f} s, and "
                f"{one.consumer} got it at {one.ended:.3f} s from the copy, which counts "
                f"{'everything' if promotion.is_complete else f'what was done by {counts:.3f} s'}"
            )


def unacknowledged_and_passed_over(history: History) -> Iterator[str]:
    """What nobody has acknowledged is delivered after a promote."""
    if not isinstance(history, MirrorHistory) or history.target.trouble:
        return
    done = {
        (settlement.queue, settlement.partition, offset)
        for settlement in (*history.settlements, *history.target.settlements)
        if settlement.kind == "ack"
        for offset in settlement.offsets
    }
    done |= {
        (letter.queue, letter.partition, letter.offset)
        for letter in (*history.letters, *history.target.letters)
    }
    done |= set(history.finished_before)
    for name in history.queues_copied:
        queue = history.target.queues[name]
        for partition, copies in history.target.copies.items():
            if queue.guarantee == Guarantee.AT_MOST_ONCE or not copies:
                continue
            if partition.rpartition("/")[0] not in queue.topics:
                continue
            end = history.target.drained_to.get(partition, 0)
            for offset, _, value in copies[0].values:
                if offset < end and (name, partition, offset) not in done:
                    yield f"{name}'s {partition}:{offset} ({value}) was passed over by the copy"


def complete_and_lost(history: History) -> Iterator[str]:
    """A promote that says that it is complete has all that the source has ever confirmed."""
    if not isinstance(history, MirrorHistory):
        return
    for send in history.sends:
        promotion = history.promotions.get(send.partition.rpartition("/")[0])
        copies = history.target.copies.get(send.partition)
        if promotion is None or not promotion.is_complete or send.outcome != "done" or not copies:
            continue
        there = {offset: value for offset, _, value in copies[0].values}
        if send.offset >= 0 and there.get(send.offset) != send.value:
            yield (
                f"{send.value} was confirmed at {send.partition}:{send.offset} at "
                f"{send.ended:.3f} s, and the copy has {there.get(send.offset)}"
            )


MIRROR_RULES = (
    copied_what_is_not_there,
    merged_what_diverged,
    diverged_in_silence,
    copy_was_written_to,
    copy_delivered,
    acknowledged_and_delivered_again,
    unacknowledged_and_passed_over,
    complete_and_lost,
)
