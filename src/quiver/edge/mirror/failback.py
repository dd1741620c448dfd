"""Takes topics of this node through a failback: compared with the source, kept aside, and cut.

What is done is in the topics' records, so another node or process goes on from there. What fails is tried
again, for as long as it takes.
"""

from __future__ import annotations

import structlog

from quiver.aio import report_unexpected
from quiver.broker.mirror.common_end import CommonEnd, Comparison
from quiver.broker.mirror.failback import FailbackPartitions
from quiver.broker.topics.catalog import TopicRecord
from quiver.edge.mirror.link import SourceLink
from quiver.errors import InvalidRequest, MirrorDiverged, QuiverError
from quiver.model.clock import Clock
from quiver.model.envelope import entries_in
from quiver.model.ids import Offset
from quiver.model.mirror.entry_mark import EntryMark, mark_of
from quiver.model.mirror.origin import Origin
from quiver.protocol import FetchLog, LogFetched

_LOOK_S = 0.2
_AGAIN_S = 1.0

logger = structlog.get_logger()


class FailbackDriver:
    """``run`` until it is cancelled."""

    def __init__(
        self, mirror: str, link: SourceLink, partitions: FailbackPartitions, clock: Clock
    ) -> None:
        self._mirror = mirror
        self._link = link
        self._partitions = partitions
        self._clock = clock
        self._errors: dict[str, str] = {}
        """Why a topic does not get on, by its name."""

    async def run(self) -> None:
        while True:
            failed = False
            under_way = self._partitions.under_way(self._mirror)
            self._errors = {
                one.name: self._errors[one.name] for one in under_way if one.name in self._errors
            }
            for record in under_way:
                try:
                    await self._advance(record)
                    self._errors.pop(record.name, None)
                except (QuiverError, OSError) as error:
                    failed = True
                    text = error.message if isinstance(error, QuiverError) else str(error)
                    self._report(record, text)
                except Exception as error:
                    failed = True
                    self._report(record, repr(error))
                    report_unexpected("a failback met an error", error)
            await self._clock.sleep(_AGAIN_S if failed else _LOOK_S)

    def _report(self, record: TopicRecord, error: str) -> None:
        if self._errors.get(record.name) != error:
            logger.warning("failback waits", topic=record.name, error=error)
        self._errors[record.name] = error

    @property
    def errors(self) -> dict[str, str]:
        """Why topics do not get on, by their name at the source."""
        under_way = {one.name: one.source for one in self._partitions.under_way(self._mirror)}
        found = [(under_way.get(name), error) for name, error in self._errors.items()]
        return {source.topic: error for source, error in found if source is not None}

    async def _advance(self, record: TopicRecord) -> None:
        """The next step of each partition that this node leads."""
        failback = record.failback
        assert failback is not None
        for index in self._partitions.led(record):
            part = failback.partitions[index]
            if part is None:
                await self._compare(record, failback.origin, index)
            elif not part.is_kept and failback.is_compared:
                await self._partitions.keep(record, index)
            elif not part.is_cut and failback.is_kept:
                await self._partitions.cut(record, index)

    async def _compare(self, record: TopicRecord, origin: Origin, index: int) -> None:
        log = await self._partitions.settled_log(record, index)
        if log.stored_from == log.next_offset > 0:
            await self._require_continued(record, origin, index, log.next_offset)
        search = CommonEnd(log.stored_from, log.next_offset)
        while search.probe is not None:
            (entry, *_) = await log.read(search.probe, 1, stored=True)
            comparison = await self._compared(origin, index, mark_of(entry))
            search.on_compared(entry.base_offset, entry.next_offset, comparison)
        await self._partitions.compared(record, index, log, search.offset)

    async def _require_continued(
        self, record: TopicRecord, origin: Origin, index: int, end: Offset
    ) -> None:
        """A log that retention has emptied cannot be cut. The source's must have an entry at its end."""
        request = FetchLog(
            topic=origin.topic,
            partition=index,
            offset=end,
            number=origin.number,
            cluster=origin.cluster,
            bytes_max=1,
        )
        try:
            _, body = await self._link.call_leader(LogFetched, request, origin.topic, index)
            entries = entries_in(body)
            if not entries or entries[0].base_offset >= end:
                return
        except MirrorDiverged as error:
            if "next_offset" not in error.details:
                raise
        raise InvalidRequest(
            f"retention has removed all messages of partition {index} of {record.name!r} here, and the "
            f"source does not go on at its end, offset {end:,}: delete the topic, and it is copied anew"
        )

    async def _compared(self, origin: Origin, index: int, mark: EntryMark) -> Comparison:
        """Whether the source has the same entry in its log."""
        request = FetchLog(
            topic=origin.topic,
            partition=index,
            offset=Offset(mark.base_offset + mark.count),
            number=origin.number,
            cluster=origin.cluster,
            last=mark,
            bytes_max=1,
        )
        try:
            reply, _ = await self._link.call_leader(LogFetched, request, origin.topic, index)
        except MirrorDiverged as error:
            if not {"offset", "next_offset"} & error.details.keys():
                raise  # it is another topic, or another cluster
            return Comparison.DIFFERENT
        unknown = mark.base_offset < reply.start_offset
        return Comparison.UNKNOWN if unknown else Comparison.SAME
