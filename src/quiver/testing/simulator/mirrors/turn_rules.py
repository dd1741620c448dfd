"""What should not have happened to clusters that went on taking turns: more rules for the checker."""

from __future__ import annotations

from collections.abc import Iterator

from quiver.cluster.records import PartitionId
from quiver.testing.simulator.history import History
from quiver.testing.simulator.mirrors.history import MirrorHistory, Turn


def followed_otherwise(history: History) -> Iterator[str]:
    """Whoever follows has the log of the other, entry by entry."""
    for turn, place in _places(history):
        here, there = turn.here.get(place), turn.there[place]
        if here != there:
            yield f"{turn.follower} has {here and here[-3:]} in {place}, and its source {there[-3:]}"


def turned_and_lost(history: History) -> Iterator[str]:
    """What it had before is in the log of both, or kept aside."""
    for turn, place in _places(history):
        kept = {mark[:3] for mark in turn.kept.get(place, ())}
        both = set(turn.there[place])
        lost = [
            mark for mark in turn.before.get(place, ()) if mark not in both and mark[:3] not in kept
        ]
        if lost:
            yield f"{turn.follower} had {lost[:3]} in {place}, which is nowhere any more"


def own_of_both_or_none(history: History) -> Iterator[str]:
    """Each entry was published in one of the two clusters, and both know in which."""
    for turn, place in _places(history):
        here, there = set(turn.own_here.get(place, ())), set(turn.own_there.get(place, ()))
        for offset, *_ in turn.there[place]:
            if (offset in here) == (offset in there):
                yield f"{place}:{offset} is the own of {'both' if offset in here else 'neither'}"
                break


def taken_while_following(history: History) -> Iterator[str]:
    """Nobody publishes to whoever follows."""
    for turn in history.turns if isinstance(history, MirrorHistory) else ():
        for place in turn.taken:
            yield f"{turn.follower} follows, and has stored a publish in {place}"


def _places(history: History) -> Iterator[tuple[Turn, PartitionId]]:
    for turn in history.turns if isinstance(history, MirrorHistory) else ():
        for place in sorted(turn.there):
            yield turn, place


TURN_RULES = (
    followed_otherwise,
    turned_and_lost,
    own_of_both_or_none,
    taken_while_following,
)
