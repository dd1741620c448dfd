"""Reading a partition: entries from an offset on, and offsets by name or time."""

from __future__ import annotations

from quiver.protocol.base import Reply, Request


class Fetch(Request, tag="fetch"):
    """Read entries from an offset on. Waits up to ``wait_ms`` while there is nothing."""

    topic: str
    partition: int
    offset: int
    bytes_max: int = 4 << 20
    wait_ms: int = 0
    any_replica: bool = False
    """A replica that does not lead may answer, with as much as it knows to be committed."""
    isolation: str = "committed"
    """``uncommitted``: with the messages of transactions that are open, or were aborted."""


class Fetched(Reply, tag="fetched"):
    """The body is whole entries; the first may begin before the offset asked for."""

    start_offset: int
    next_offset: int
    topic_number: int
    layout: int = 0
    """The topic's, as the node knows it: whoever reads all partitions learns that there are more."""
    read_to: int = 0
    """Where to go on. Offsets before it that are not in the body have no message to read."""


class FindOffset(Request, tag="find_offset"):
    """An offset by name (``earliest``, ``latest``) or the first at or after a time."""

    topic: str
    partition: int
    at: str | None = None
    time_us: int | None = None
    isolation: str = "committed"
    """As of ``Fetch``: it says where the latest message is."""


class OffsetFound(Reply, tag="offset_found"):
    offset: int
