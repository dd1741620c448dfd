"""What should not have happened to transactions in a mirrored topic: more rules for the checker.

A copy has a transaction in each partition as a whole or not at all. It may have it in one partition only, if
its source was lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from quiver.testing.simulator.history import History
from quiver.testing.simulator.mirrors.history import DEALS, MirrorHistory


def deal_in_part(history: History) -> Iterator[str]:
    """Of a transaction all messages of a partition are visible in one place, or none is."""
    for where, place, seen in _visible(history):
        assert isinstance(history, MirrorHistory)
        for deal in history.deals:
            sent = [value for one, value in deal.values if one == place]
            count = len(seen.intersection(sent))
            if 0 < count < len(sent):
                yield f"{where} shows {count} of {len(sent)} messages of {deal.id} in {place}"


def deal_shown_unasked(history: History) -> Iterator[str]:
    """What was aborted, or never committed, is visible nowhere: neither in a copy nor kept aside."""
    for where, place, seen in _visible(history):
        assert isinstance(history, MirrorHistory)
        for deal in history.deals:
            is_undone = deal.asked != "commit" or deal.told == "aborted"
            if is_undone and seen.intersection(value for one, value in deal.values if one == place):
                yield f"{where} shows {place} of {deal.id}, which is {deal.told or 'not committed'}"


def deal_lost(history: History) -> Iterator[str]:
    """What a writer knows to be committed is visible in a cluster, or kept aside."""
    places = list(_visible(history))
    if not isinstance(history, MirrorHistory) or not places:
        return
    for deal in history.deals:
        for place in sorted({one for one, _ in deal.values}) if deal.told == "committed" else ():
            sent = [value for one, value in deal.values if one == place]
            if not any(seen.issuperset(sent) for _, one, seen in places if one == place):
                yield f"{deal.id} of {deal.writer} is committed, and {place} of it is nowhere"


def deals_differ(history: History) -> Iterator[str]:
    """Readers of a copy see what readers of its source see, at the same offsets."""
    if not isinstance(history, MirrorHistory) or history.back is None:
        return
    known = history.failbacks.get(DEALS)
    is_copy = known is not None and known.finished < 1e9
    if not is_copy or not history.deals_visible or DEALS in history.back.promotions:
        return  # a transaction that was open when its source was fenced may end there alone
    here, there = history.deals_visible[:2]
    for place, values in there.items():
        if here[place] != values:
            yield f"{place} differs: {sorted(set(here[place]) ^ set(values))[:3]}"


def _visible(history: History) -> Iterator[tuple[str, str, set[str]]]:
    if isinstance(history, MirrorHistory):
        names = ("the first cluster", "the second cluster", "what is kept aside")
        for where, found in zip(names, history.deals_visible, strict=False):
            for place, values in found.items():
                yield where, place, {value for _, value in values}


DEAL_RULES = (
    deal_in_part,
    deal_shown_unasked,
    deal_lost,
    deals_differ,
)
