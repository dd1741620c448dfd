"""The start and end of a read: an offset, a name, a time, or a duration before now.

5                     that offset, in every partition
"earliest", "latest"  the first offset of the partition, and the offset of its next message
"-1h"                 the first message stored within the last hour; also a ``timedelta``
datetime(…)           the first message stored at or after that time; UTC without a zone
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from quiver.errors import InvalidRequest
from quiver.model.message import time_us_of
from quiver.model.units import microseconds
from quiver.protocol import FindOffset

Position = int | str | datetime | timedelta
_FORMS = 'an offset, "earliest", "latest", a duration such as "-1h", or a datetime'


class Mark(msgspec.Struct, frozen=True):
    """A position that is understood: exactly one of the three is set."""

    offset: int | None = None
    at: str | None = None
    time_us: int | None = None

    def question(self, topic: str, partition: int, isolation: str) -> FindOffset:
        """What to ask a node to learn the offset."""
        assert self.offset is None, "an offset need not be asked for"
        return FindOffset(
            topic=topic,
            partition=partition,
            at=self.at,
            time_us=self.time_us,
            isolation=isolation,
        )


EARLIEST, LATEST = Mark(at="earliest"), Mark(at="latest")


def mark_of(position: Position, now_us: int) -> Mark:
    """Understand a position; ``InvalidRequest`` if it is none of the forms."""
    if isinstance(position, bool):
        raise InvalidRequest(f"{position!r} is not a position; it is {_FORMS}")
    if isinstance(position, int):
        if position < 0:
            raise InvalidRequest(f"an offset must be 0 or more, not {position}")
        return Mark(offset=position)
    if isinstance(position, datetime):
        return Mark(time_us=max(0, time_us_of(position)))
    if isinstance(position, str) and position in ("earliest", "latest"):
        return Mark(at=position)
    if isinstance(position, str | timedelta):
        return Mark(time_us=_ago(position, now_us))
    raise InvalidRequest(f"not a position: {position!r}; it is {_FORMS}")


def _ago(duration: str | timedelta, now_us: int) -> int:
    try:
        duration_us = microseconds(duration)
    except InvalidRequest as error:
        raise InvalidRequest(f"{duration!r} is not a position; it is {_FORMS}") from error
    if duration_us > 0:
        raise InvalidRequest(f"{duration!r} is not in the past; write it as '-{duration}'")
    return max(0, now_us + duration_us)
