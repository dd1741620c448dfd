"""Which segments a log may drop: a pure decision over what is known of each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quiver.model.ids import Microseconds, Offset


class RetentionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that hold together: a segment goes as soon as one of them says so.

    ``before`` is the offset that every subscription has passed; age, bytes and messages are caps.
    A segment with messages from ``unfinished_from`` on goes by the limits for unfinished messages
    alone. Whatever they say, nothing goes that reaches beyond ``not_beyond``.
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
        """The same, but for what reaches beyond an offset too."""
        least = offset if self.not_beyond is None else min(offset, self.not_beyond)
        return msgspec.structs.replace(self, not_beyond=least)


class SegmentFacts(msgspec.Struct, frozen=True, kw_only=True):
    base_offset: Offset
    next_offset: Offset
    size: int
    newest: Microseconds
    """No message in it is younger than this."""


def first_kept(
    segments: Sequence[SegmentFacts], limits: RetentionLimits, now: Microseconds
) -> Offset:
    """The new start of a log made of these segments: its oldest ones go, whole, while a limit says so.

    A cap in bytes or messages keeps at least what it names: the segment across the line stays.
    """
    assert segments, "a log has at least one segment"
    bytes_left = sum(segment.size for segment in segments)
    end = segments[-1].next_offset
    for segment in segments:
        bytes_left -= segment.size
        if _reaches_beyond(segment, limits.not_beyond):
            return segment.base_offset
        if _reaches_beyond(segment, limits.unfinished_from):
            may_go = _goes_unfinished(segment, limits, now, bytes_left)
        else:
            may_go = _goes(segment, limits, now, bytes_left, end - segment.next_offset)
        if not may_go:
            return segment.base_offset
    return end


def _reaches_beyond(segment: SegmentFacts, offset: Offset | None) -> bool:
    return offset is not None and segment.next_offset > offset


def _goes(
    segment: SegmentFacts,
    limits: RetentionLimits,
    now: Microseconds,
    bytes_left: int,
    messages_left: int,
) -> bool:
    return (
        (limits.before is not None and segment.next_offset <= limits.before)
        or (limits.age_us is not None and segment.newest < now - limits.age_us)
        or (limits.bytes is not None and bytes_left >= limits.bytes)
        or (limits.messages is not None and messages_left >= limits.messages)
    )


def _goes_unfinished(
    segment: SegmentFacts, limits: RetentionLimits, now: Microseconds, bytes_left: int
) -> bool:
    too_old = (
        limits.unfinished_age_us is not None
        and segment.newest < now - limits.unfinished_age_us
        and not _reaches_beyond(segment, limits.scheduled_from)
    )
    return too_old or (
        limits.unfinished_bytes is not None and bytes_left >= limits.unfinished_bytes
    )
