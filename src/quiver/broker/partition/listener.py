"""Who is told of what happens to an open partition."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quiver.log.group_commit import OnCommit


class PartitionListener(msgspec.Struct, frozen=True, kw_only=True):
    lost: Callable[[], None] = lambda: None
    """Called when this node serves the partition no more."""
    stored: OnCommit = lambda committed: None
    """Called after each commit of its messages."""
    state_stored: OnCommit = lambda committed: None
    """Called after each commit of its state log."""


NOBODY_LISTENS = PartitionListener()
