"""Alerts at work on virtual time: how often they are evaluated, and who is told what."""

from __future__ import annotations

import asyncio

from quiver.broker.alerts.alert import Alert
from quiver.broker.alerts.machine import AlertMachine
from quiver.broker.alerts.service import RECENT_MAX, AlertListener, AlertService
from quiver.config import AlertRule
from quiver.metrics.sample import NodeSample, SubscriptionSample
from quiver.testing.clock import ManualClock
from tests.aio import async_test

DEEP = AlertRule(name="deep", watch="depth", limit=0)


class Stage:
    """A queue whose depth the test sets, and a clock that moves when the test says so."""

    def __init__(self, *listeners: AlertListener, looking_s: float = 0.0) -> None:
        self.clock = ManualClock()
        self.depth = 0
        self.looked = 0
        self._looking_s = looking_s
        self.service = AlertService(
            AlertMachine((DEEP,)), self._sample, self.clock, interval_s=1, listeners=listeners
        )

    async def _sample(self) -> NodeSample:
        self.looked += 1
        await self.clock.sleep(self._looking_s)
        queue = SubscriptionSample(name="emails", ready=self.depth)
        return NodeSample(time_us=self.clock.time_us(), topics=[], subscriptions=[queue])

    async def fire_and_clear(self) -> None:
        for self.depth in (1, 0):
            await self.service.evaluate()


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def __call__(self, alert: Alert) -> None:
        self.heard.append(alert.state)


async def refuse(_: Alert) -> None:
    raise OSError("nobody is there")


@async_test
async def test_rules_are_evaluated_once_a_second() -> None:
    stage = Stage()
    stage.service.start()
    await stage.clock.advance(10)
    await stage.service.stop()
    assert stage.looked == 11


@async_test
async def test_where_looking_takes_long_it_is_done_more_rarely() -> None:
    stage = Stage(looking_s=0.5)
    stage.service.start()
    await stage.clock.advance(100)
    await stage.service.stop()
    assert stage.looked == 4  # 2 % of the time


@async_test
async def test_one_who_does_not_listen_keeps_nobody_else_from_hearing() -> None:
    listener = Listener()
    stage = Stage(refuse, listener)
    await stage.fire_and_clear()
    await asyncio.sleep(0)
    await stage.service.stop()
    assert listener.heard == ["firing", "cleared"]


@async_test
async def test_a_slow_listener_hears_in_order_and_holds_nobody_up() -> None:
    barrier, heard = asyncio.Event(), Listener()

    async def slow(alert: Alert) -> None:
        await barrier.wait()
        await heard(alert)

    stage = Stage(slow)
    await stage.fire_and_clear()
    await stage.fire_and_clear()
    assert heard.heard == []
    barrier.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert heard.heard == ["firing", "cleared"] * 2


@async_test
async def test_what_cleared_lately_is_remembered_up_to_a_bound() -> None:
    stage = Stage()
    for _ in range(RECENT_MAX + 5):
        await stage.fire_and_clear()
    assert len(stage.service.recent) == RECENT_MAX
    assert {alert.state for alert in stage.service.recent} == {"cleared"}
