"""Divides limits of a whole topic among its partitions.

Each partition keeps all it has, up to a level at which all of them together reach the limit. So a
partition with less than an even share loses nothing, and the larger ones keep the same amount. Whoever
knows the same amounts finds the same level: the leaders of a topic need not agree on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from quiver.broker.topics.catalog import TopicRecord
from quiver.log.retention import RetentionLimits
from quiver.model.topic import RetentionScope
from quiver.protocol import PartitionInfo, TopicInfo


class TopicLimits:
    """``describe`` tells how much each partition of a topic has, wherever it is led."""

    def __init__(self, describe: Callable[[str], Awaitable[TopicInfo]]) -> None:
        self._describe = describe

    async def divided(
        self, record: TopicRecord, limits: RetentionLimits, indexes: Sequence[int]
    ) -> dict[int, RetentionLimits]:
        """The limits of each of these partitions, as the topic's setting says.

        A partition whose leader does not answer counts as empty: the others keep more.
        """
        is_divided = record.settings.retention.scope is RetentionScope.TOPIC
        if not is_divided or not indexes or limits.bytes is limits.messages is None:
            return dict.fromkeys(indexes, limits)
        known = (await self._describe(record.name)).partitions
        sizes = even_shares(limits.bytes, [one.bytes or 0 for one in known])
        counts = even_shares(limits.messages, [_messages(one) for one in known])
        shares = {
            one.index: replace(limits, bytes=size, messages=count)
            for one, size, count in zip(known, sizes, counts, strict=True)
        }
        return {index: shares[index] for index in indexes if index in shares}


def even_shares(limit: int | None, amounts: Sequence[int]) -> list[int | None]:
    """How much each may keep of what it has, so that together they keep the limit.

    ``None`` where nothing has to go.
    """
    if limit is None or sum(amounts) <= limit:
        return [None] * len(amounts)
    shares: list[int | None] = [None] * len(amounts)
    left, smallest_first = limit, sorted(range(len(amounts)), key=amounts.__getitem__)
    for place, index in enumerate(smallest_first):
        share = left // (len(amounts) - place)
        if amounts[index] > share:
            shares[index] = share
        left -= min(share, amounts[index])
    return shares


def _messages(one: PartitionInfo) -> int:
    return (one.next_offset or 0) - (one.start_offset or 0)
