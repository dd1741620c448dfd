"""Copies the delivery state of one partition's subscriptions from whoever leads it at the source.

A snapshot is taken in when the messages that it speaks of are here. Only then is the next one asked for, so
that a copy that is behind still gets on.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from quiver.broker.mirror.progress import PartitionProgress
from quiver.broker.mirror.source import snapshots_in
from quiver.broker.topics.catalog import TopicRecord
from quiver.client.transport.backoff import RetryBackoff
from quiver.edge.mirror.environment import MirrorEnvironment
from quiver.edge.mirror.link import SourceLink
from quiver.errors import QuiverError
from quiver.model.ids import Offset
from quiver.protocol import DeliveryStateFetched, FetchDeliveryState

INTERVAL_S = 1.0
"""How often the state is asked for."""
_EFFORT = 20
"""It is asked for so rarely that copying it takes no more than a part in this many of the time."""
_WAIT_S = 30.0
"""How long a snapshot waits for its messages before the wait is begun again."""
_BACKOFF = RetryBackoff(first_s=0.1, most_s=15.0)

logger = structlog.get_logger()


class StatePuller:
    """``run`` until it is cancelled. ``is_fenced``: whether the source delivers no more."""

    def __init__(
        self,
        record: TopicRecord,
        index: int,
        link: SourceLink,
        progress: PartitionProgress,
        environment: MirrorEnvironment,
        *,
        is_fenced: Callable[[], bool],
    ) -> None:
        assert record.origin is not None
        self._record = record
        self._origin = record.origin
        self._index = index
        self._link = link
        self._mirrors = environment.mirrors
        self._progress = progress
        self._clock = environment.clock
        self._chance = environment.chance()
        self._is_fenced = is_fenced
        self._known: dict[str, int] = {}
        self._error = ""

    async def run(self) -> None:
        failures = 0
        while True:
            began = self._clock.monotonic()
            try:
                await self._copy()
                failures = 0
                self._error = ""
            except (QuiverError, OSError) as error:
                failures += 1
                self._known = {}
                self._report(str(error))
            took_s = self._clock.monotonic() - began
            pause_s = max(INTERVAL_S, _EFFORT * min(took_s, 1.0))
            await self._pause(pause_s + _BACKOFF.pause_s(failures, self._chance))

    async def _pause(self, seconds: float) -> None:
        """Sleep; shortly once the source is fenced: then a promote waits for the state."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(left, INTERVAL_S))
            if self._is_fenced():
                return

    def _report(self, error: str) -> None:
        if error != self._error:
            self._error = error
            logger.info(
                "delivery state is not copied",
                mirror=self._origin.mirror,
                topic=self._record.name,
                partition=self._index,
                error=error,
            )

    async def _copy(self) -> None:
        target = await self._mirrors.delivery_copy(self._record, self._index)
        known = {name: one for name, one in self._known.items() if name in target.copied()}
        request = FetchDeliveryState(
            topic=self._origin.topic,
            partition=self._index,
            number=self._origin.number,
            cluster=self._origin.cluster,
            known=known,
        )
        asked = self._clock.monotonic()
        reply, body = await self._link.call_leader(
            DeliveryStateFetched, request, self._origin.topic, self._index
        )
        await self._link.pace(len(body))
        while not await target.wait_for_data(Offset(reply.data_offset), _WAIT_S):
            await self._clock.sleep(INTERVAL_S)  # a log that is closed does not wait at all
        copied, is_whole = target.copied(), not target.lacks(reply.digests)
        snapshots = snapshots_in(body, reply.sizes)
        await target.take_in(snapshots, lambda: self._mirrors.current(self._record) is not None)
        self._known = {name: one for name, one in reply.digests.items() if name in copied}
        if is_whole:
            self._progress.state_taken(asked)
