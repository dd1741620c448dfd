"""What all logs of one process share."""

from __future__ import annotations

import msgspec

from quiver.log.cache.cache_budget import CacheBudget
from quiver.log.clean_ends import CleanEnds


class LogContext(msgspec.Struct, frozen=True, kw_only=True):
    caches: CacheBudget | None = None
    """The memory of their caches; each log has its own limit only if there is none."""
    failed: set[str] = msgspec.field(default_factory=set)
    """Folders of logs that accept no appends since a write failed, until they are opened again."""
    ends: CleanEnds = msgspec.field(default_factory=CleanEnds)
    """Where they ended when the process was last stopped."""
