"""How much of a log its limits keep: a pure decision over where each limit alone would begin it."""

from __future__ import annotations

import msgspec

from quiver.model.ids import Offset


class RetentionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that hold together: a message goes as soon as one of them says so.

    ``before`` is the offset that every subscription has passed; age, bytes and messages are caps.
    Messages from ``unfinished_from`` on go by the limits for unfinished messages alone. Whatever
    they say, nothing goes from ``not_beyond`` on.
    """

    age_us: int | None = None
    bytes: int | None = None
    messages: int | None = None
    before: Offset | None = None
    unfinished_from: Offset | None = None
    unfinished_age_us: int | None = None
    unfinished_bytes: int | None = None
    scheduled_from: Offset | None = None
    """From here on, unfinished messages are not late: no age removes them."""
    not_beyond: Offset | None = None

    def capped(self, offset: Offset) -> RetentionLimits:
        """The same, but for what is at an offset or beyond it."""
        least = offset if self.not_beyond is None else min(offset, self.not_beyond)
        return msgspec.structs.replace(self, not_beyond=least)


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """The first offset that each limit alone would keep; ``None`` where there is no such limit."""

    age: Offset | None = None
    bytes: Offset | None = None
    unfinished_age: Offset | None = None
    unfinished_bytes: Offset | None = None


def first_kept(start: Offset, end: Offset, limits: RetentionLimits, reached: Reached) -> Offset:
    """Where a log from ``start`` to ``end`` begins once everything has gone that may go.

    A log begins at one place: what unfinished messages go by takes finished ones before them along.
    """
    kept = max(
        start,
        limits.before or start,
        reached.age or start,
        reached.bytes or start,
        start if limits.messages is None else Offset(end - limits.messages),
    )
    if limits.unfinished_from is not None:
        kept = min(kept, max(start, limits.unfinished_from))
        goal = _first_unfinished_kept(limits, reached)
        kept = goal if goal > limits.unfinished_from else kept
    if limits.not_beyond is not None:
        kept = min(kept, max(start, limits.not_beyond))
    return max(start, min(kept, end))


def _first_unfinished_kept(limits: RetentionLimits, reached: Reached) -> Offset:
    by_age = reached.unfinished_age or Offset(0)
    if limits.scheduled_from is not None:
        by_age = min(by_age, limits.scheduled_from)
    return max(by_age, reached.unfinished_bytes or Offset(0))
