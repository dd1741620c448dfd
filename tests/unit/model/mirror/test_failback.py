"""How far the failback of a topic is."""

from __future__ import annotations

from msgspec.structs import replace

from quiver.model.mirror.failback import Cut, Failback, FailbackPartition
from quiver.model.mirror.origin import Origin

ORIGIN = Origin(mirror="us", cluster="there", topic="orders", number=3)
BLANK = Failback(origin=ORIGIN, aside="orders.diverged-1", partitions=[None, None])
DIVERGED = FailbackPartition(cut=10, end=15)
SAME = FailbackPartition(cut=8, end=8, is_kept=True, is_cut=True)


def test_nothing_is_cut_before_all_partitions_are_kept_aside() -> None:
    assert BLANK.cut_of(0) is None
    one = BLANK.with_partition(0, replace(DIVERGED, is_kept=True))
    assert one.cut_of(0) is None
    both = one.with_partition(1, SAME)
    assert (both.is_compared, both.is_kept, both.is_cut, both.diverged) == (True, True, False, 5)
    assert both.cut_of(0) == Cut(begin=10, end=15)
    assert both.cut_of(1) is None


def test_a_log_that_has_more_than_was_looked_at_is_not_cut() -> None:
    cut = Cut(begin=10, end=15)
    assert [end for end in range(8, 18) if cut.applies_to(end)] == [11, 12, 13, 14, 15]


def test_a_partition_can_begin_again() -> None:
    both = BLANK.with_partition(0, SAME).with_partition(1, SAME)
    assert both.is_cut
    again = both.with_partition(1, None)
    assert (again.is_compared, again.is_kept, again.is_cut) == (False, False, False)
