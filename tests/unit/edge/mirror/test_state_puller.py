"""How often delivery state is asked for."""

from __future__ import annotations

import asyncio
from typing import cast

from quiver.broker.mirror.delivery_copy import DeliveryCopy
from quiver.broker.mirror.mirrors import Mirrors
from quiver.broker.mirror.progress import PartitionProgress
from quiver.broker.topics.catalog import TopicRecord
from quiver.edge.mirror.environment import MirrorEnvironment
from quiver.edge.mirror.link import SourceLink
from quiver.edge.mirror.state_puller import StatePuller
from quiver.log.disk.disk_threads import in_thread
from quiver.protocol import DeliveryStateFetched
from quiver.testing.clock import ManualClock
from tests.aio import async_test, turns
from tests.unit.broker.mirror.mirror_doubles import ORIGIN, topic_record


class Stage:
    """A source whose state takes half a second to copy; it is asked ten seconds later then."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.asked: list[float] = []
        self.is_fenced = False
        environment = MirrorEnvironment(
            mirrors=cast(Mirrors, self), cluster="here", clock=self.clock, run_checks=in_thread
        )
        self.puller = StatePuller(
            topic_record(origin=ORIGIN),
            0,
            cast(SourceLink, self),
            PartitionProgress("eu", "orders", 0, self.clock),
            environment,
            is_fenced=lambda: self.is_fenced,
        )

    async def call_leader(self, *_: object) -> tuple[DeliveryStateFetched, memoryview]:
        self.asked.append(self.clock.monotonic())
        await self.clock.sleep(0.5)
        return DeliveryStateFetched(time_us=0, data_offset=0), memoryview(b"")

    async def pace(self, size: int) -> None: ...

    async def delivery_copy(self, record: TopicRecord, index: int) -> DeliveryCopy:
        return cast(DeliveryCopy, self)

    def copied(self) -> set[str]:
        return set()

    def lacks(self, names: object) -> bool:
        return False

    async def wait_for_data(self, *_: object) -> bool:
        return True

    async def take_in(self, *_: object) -> None: ...

    async def __aenter__(self) -> Stage:
        self._task = asyncio.create_task(self.puller.run())
        await turns()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@async_test
async def test_state_that_takes_long_is_asked_for_rarely() -> None:
    async with Stage() as stage:
        await stage.clock.advance(22)
        assert stage.asked == [0.0, 10.5, 21.0]


@async_test
async def test_state_that_a_promote_waits_for_is_asked_for_at_once() -> None:
    async with Stage() as stage:
        await stage.clock.advance(3)
        stage.is_fenced = True
        await stage.clock.advance(2)
        assert len(stage.asked) == 3
