"""Which segments a log may drop: a pure decision over what is known of each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quiver.model.ids import Microseconds, Offset


class RetentionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that hold together: a segment goes as soon as one of them says so.

    ``before`` is the offset that every subscription has passed; age, bytes and messages are caps.
    Whatever they say, nothing goes that reaches beyond ``not_beyond``: it is not committed yet.
    """

    age_us: int | None = None
    bytes: int | None = None
    messages: int | None = None
    before: Offset | None = None
    not_beyond: Offset | None = None


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
        passed = limits.before is not None and segment.next_offset <= limits.before
        too_old = limits.age_us is not None and segment.newest < now - limits.age_us
        too_big = limits.bytes is not None and bytes_left >= limits.bytes
        too_many = limits.messages is not None and end - segment.next_offset >= limits.messages
        held_back = limits.not_beyond is not None and segment.next_offset > limits.not_beyond
        if held_back or not (passed or too_old or too_big or too_many):
            return segment.base_offset
    return end
