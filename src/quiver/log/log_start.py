"""Where a log begins for its readers.

The start may be any offset in the first stored segment: what is before it is excluded, and its space
comes back with the segment.
"""

from __future__ import annotations

import msgspec

from quiver.model.ids import Offset


class LogStart(msgspec.Struct, frozen=True):
    """The first offset that can be read.

    Its entry is at ``position`` in the first segment, or up to an index interval after that.
    """

    offset: Offset
    position: int = 0
