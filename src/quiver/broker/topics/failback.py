"""The steps by which a topic becomes a copy of its own former copy: changes of its record. Pure.

Each can be repeated. ``TopicNotFound`` if the topic is another one by now, or the failback is over.
"""

from __future__ import annotations

from msgspec.structs import replace

from quiver.broker.topics.catalog import TopicRecord
from quiver.errors import TopicNotFound
from quiver.model.mirror.failback import Failback, FailbackPartition
from quiver.model.mirror.origin import Origin


def begun(record: TopicRecord, known: TopicRecord, origin: Origin, aside: str) -> TopicRecord:
    """It takes and delivers nothing more."""
    if known.number != record.number or known.origin is not None:
        raise TopicNotFound(f"topic {record.name!r} is another one now", topic=record.name)
    if known.failback is not None:
        return known
    blank: list[FailbackPartition | None] = [None for _ in known.first_hashes]
    return replace(known, failback=Failback(origin=origin, aside=aside, partitions=blank))


def noted(
    record: TopicRecord, known: TopicRecord, index: int, part: FailbackPartition | None
) -> TopicRecord:
    """One partition is further; without ``part`` it begins again."""
    if known.number != record.number or known.failback is None:
        raise TopicNotFound(f"the failback of {record.name!r} is over", topic=record.name)
    return replace(known, failback=known.failback.with_partition(index, part))


def finished(record: TopicRecord, known: TopicRecord) -> TopicRecord:
    """All partitions are cut to what the source has: it is a copy from now on."""
    failback = known.failback
    if known.number != record.number or failback is None or not failback.is_cut:
        return known
    return replace(
        known,
        failback=None,
        origin=failback.origin,
        promoted_from=None,
        moved_to="",
        diverged_to=failback.aside if failback.diverged else known.diverged_to,
        cuts=known.cuts + 1,
    )
