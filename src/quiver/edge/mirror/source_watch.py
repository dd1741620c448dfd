"""A mirror that is paused: it copies nothing, and asks its source only how far behind the copies are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from quiver.broker.mirror.mirrors import Mirrors
from quiver.broker.mirror.progress import PartitionProgress
from quiver.broker.topics.catalog import TopicRecord
from quiver.errors import MirrorDiverged, QuiverError
from quiver.protocol import TopicInfo

WATCH_S = 5.0
"""How often the source is asked."""

Describe = Callable[[str], Awaitable[TopicInfo]]
"""A topic of the source, with where its partitions end."""


class SourceWatch:
    def __init__(
        self,
        mirrors: Mirrors,
        progress: Mapping[tuple[int, int], PartitionProgress],
        describe: Describe,
    ) -> None:
        self._mirrors = mirrors
        self._progress = progress
        self._describe = describe

    async def look(self, mirror: str, cluster: str) -> None:
        """Note how far the copies are behind the source, which is this cluster."""
        for copy in self._mirrors.copies(mirror):
            parts = [one for place, one in self._progress.items() if place[0] == copy.number]
            if not parts:
                continue
            try:
                await self._look_at(copy, parts, cluster)
            except (QuiverError, OSError) as error:
                for one in parts:
                    one.failed(str(error), is_broken=isinstance(error, MirrorDiverged))

    async def _look_at(
        self, copy: TopicRecord, parts: list[PartitionProgress], cluster: str
    ) -> None:
        assert copy.origin is not None
        info = await self._describe(copy.origin.topic)
        if (cluster, info.number) != (copy.origin.cluster, copy.origin.number):
            raise MirrorDiverged("the source has another topic of this name by now")
        ends = {one.index: one.next_offset for one in info.partitions}
        for one in parts:
            target = await self._mirrors.partition_copy(copy, one.index)
            one.opened(target.gaps)
            end = ends.get(one.index)
            if end is not None:
                one.watched(target.end, end)
