"""What should not have happened to a source that became a copy of its copy: more rules for the checker.

From then on it is a copy like any other, and the rules of copies hold for the way back.
"""

from __future__ import annotations

from collections.abc import Iterator

from quiver.cluster.records import PartitionId
from quiver.testing.simulator.history import Delivery, History, Send
from quiver.testing.simulator.mirrors.history import Failback, FailbackPart, MirrorHistory


def kept_something_else(history: History) -> Iterator[str]:
    """The topic that is kept aside has, entry by entry, what the log had from its cut on."""
    for place, known, part in _parts(history):
        assert isinstance(history, MirrorHistory)
        aside = PartitionId(f"{known.aside}/{place.rpartition('/')[2]}")
        log = history.kept.get(aside)
        # As in a backup, entries have no producers any more, which their checksums are of.
        kept = [] if log is None else [mark[:3] for mark in log.marks]
        tail = [mark[:3] for mark in part.tail]
        before = kept[: len(kept) - len(tail)]
        older = {mark[:3] for mark in part.older}
        if kept[len(before) :] != tail or not older.issuperset(before):
            missing = [mark for mark in tail if mark not in kept]
            yield (
                f"{place} was cut from {part.cut} to {part.end}, and {aside} has {len(kept)} entries "
                f"of {len(tail)}: {missing[:2]} are missing"
            )


def confirmed_and_nowhere(history: History) -> Iterator[str]:
    """What a client was told to be stored is in the log or kept aside, at its offset."""
    if not isinstance(history, MirrorHistory) or history.back is None:
        return
    parts = {place: known for place, known, _ in _parts(history)}
    somewhere = {
        (place.partition(".")[0].partition("/")[0], value)
        for place, values in history.kept_values.items()
        for _, value in values
    }
    somewhere |= {
        (place.partition("/")[0], value)
        for place, copies in history.back.target.copies.items()
        for copy in copies
        for _, _, value in copy.values
    }
    for send in history.sends:
        known = parts.get(send.partition)
        if known is None or send.outcome != "done":
            continue
        aside = PartitionId(f"{known.aside}/{send.partition.rpartition('/')[2]}")
        copies = history.back.target.copies.get(send.partition, ())
        places = {
            *history.kept_values.get(aside, ()),
            *((offset, value) for copy in copies for offset, _, value in copy.values),
        }
        is_there = (send.offset, send.value) in places
        if send.offset < 0:  # it was stored before, and nobody knew where any more
            is_there = (send.partition.partition("/")[0], send.value) in somewhere
        if copies and not is_there:
            yield (
                f"{send.value} was confirmed at {send.partition}:{send.offset} at "
                f"{send.ended:.3f} s, and is neither there nor in {aside}"
            )


def taken_by_a_copy(history: History) -> Iterator[str]:
    """Nobody publishes to the old source once it is a copy, before it is promoted again."""
    if not isinstance(history, MirrorHistory) or history.back is None:
        return
    for send in history.sends:
        if send.outcome == "done" and _is_of_a_copy(history, send):
            yield (
                f"{send.value} was sent to {send.partition} at {send.invoked:.3f} s, and stored at "
                f"{send.offset}"
            )


def delivered_by_a_copy(history: History) -> Iterator[str]:
    """It delivers nothing either."""
    if not isinstance(history, MirrorHistory) or history.back is None:
        return
    for one in history.deliveries:
        if one.queue in history.followed and _is_of_a_copy(history, one):
            yield f"{one.consumer} got {one.queue}'s {one.partition}:{one.offset} at {one.ended:.3f} s"


def left_in_sync(history: History) -> Iterator[str]:
    """When the topic is a copy, nobody who may lead next has anything of what was cut."""
    if isinstance(history, MirrorHistory):
        for topic, known in history.failbacks.items():
            for what in known.left:
                yield f"{topic} became a copy at {known.finished:.3f} s, and {what}"


def _is_of_a_copy(history: MirrorHistory, one: Send | Delivery) -> bool:
    """Whether it was asked for when the topic was a copy, and answered before that was promoted again."""
    topic, back = one.partition.rpartition("/")[0], history.back
    known = history.failbacks.get(topic)
    promotion = back.promotions.get(topic) if back is not None else None
    is_after = known is not None and one.invoked > known.finished
    return is_after and (promotion is None or one.ended < promotion.invoked)


def _parts(history: History) -> Iterator[tuple[PartitionId, Failback, FailbackPart]]:
    """The partitions of topics that became copies."""
    if isinstance(history, MirrorHistory) and history.back is not None:
        for known in history.failbacks.values():
            if known.finished < 1e9:
                for place, part in known.parts.items():
                    yield place, known, part


FAILBACK_RULES = (
    kept_something_else,
    confirmed_and_nowhere,
    taken_by_a_copy,
    delivered_by_a_copy,
    left_in_sync,
)
