"""How a topic's keys are divided among its partitions, and how splits changed it. Pure.

Every partition owns one range of key hashes, and the ranges cover all hashes exactly once. A split gives
the upper half of a partition's range to a new one. The layout's number increases with each split, so that
a publish that was routed by an older layout can be refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quiver.errors import InvalidRequest
from quiver.model.ids import Offset
from quiver.model.key_hash import HASHES


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that was made from a part of another's range."""

    parent: int
    child: int
    offset: Offset
    """From here on the parent holds no keys of the child's range."""
    layout: int
    """The first layout with the child in it."""


def range_of(first_hashes: Sequence[int], index: int) -> tuple[int, int]:
    """The first hash of a partition's range, and the one behind its last."""
    first = first_hashes[index]
    return first, min((one for one in first_hashes if one > first), default=HASHES)


def middle_of(first_hashes: Sequence[int], index: int) -> int:
    """The first hash of the upper half of a partition's range."""
    first, end = range_of(first_hashes, index)
    if end - first < 2:
        raise InvalidRequest(f"partition {index} holds only one key hash and cannot be split")
    return (first + end) // 2


def changed_in(splits: Sequence[Split], index: int) -> int:
    """The layout since which a partition has had the range that it has now."""
    layouts = [one.layout for one in splits if index in (one.parent, one.child)]
    return max(layouts, default=1)


def origin_of(splits: Sequence[Split], index: int) -> Split | None:
    """The split that a partition came from, if it was not there from the beginning."""
    return next((one for one in splits if one.child == index), None)


def split_after(splits: Sequence[Split], index: int, layout: int) -> Split | None:
    """The first split of a partition since this layout, if there was one."""
    return next((one for one in splits if one.parent == index and one.layout > layout), None)
