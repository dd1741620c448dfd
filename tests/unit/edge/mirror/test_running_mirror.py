"""A mirror at work goes on after errors that nobody expects, and says so."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quiver.aio import cancel_and_wait
from quiver.broker.mirror.catalog import MirrorRecord
from quiver.edge.mirror.environment import MirrorEnvironment
from quiver.edge.mirror.failback import FailbackDriver
from quiver.edge.mirror.runner import MirrorRunner
from quiver.edge.mirror.running_mirror import RunningMirror
from quiver.log.disk.disk_threads import in_thread
from quiver.model.mirror.settings import MirrorSettings
from quiver.protocol import SourceDescribed
from quiver.testing.clock import ManualClock
from tests.aio import async_test


class Source:
    """Its first answer is met with an error that no code expects."""

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, *_: object, **__: object) -> tuple[str, tuple[SourceDescribed, bytes]]:
        self.calls += 1
        if self.calls == 1:
            raise ValueError("nobody expects it")
        return "", (SourceDescribed(cluster="c1", version="1", is_unchanged=True), b"")

    async def close(self) -> None: ...


def running(source: Source, clock: ManualClock, *, is_paused: bool = False) -> RunningMirror:
    settings = MirrorSettings(source="quiver://127.0.0.1:1", topics=["orders"], paused=is_paused)
    mirrors = SimpleNamespace(
        definition_copy=lambda *_: SimpleNamespace(),
        failbacks=SimpleNamespace(under_way=lambda _: []),
        copies=lambda _: [],
        contacts={},
        definitions=(0, 0),
    )
    environment = MirrorEnvironment(
        mirrors=cast(Any, mirrors),
        cluster="c2",
        clock=clock,
        run_checks=in_thread,
        reach=lambda *_: cast(Any, source),
    )
    record = MirrorRecord(name="eu", number=1, settings=settings, created_us=0)
    return RunningMirror(record, environment)


def noted_errors() -> list[str]:
    """What the event loop's handler is told from now on."""
    found: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: found.append(str(context["exception"]))
    )
    return found


class Calls:
    """The first one meets an error that no code expects."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: object) -> list[Any]:
        self.count += 1
        if self.count == 1:
            raise ValueError("nobody expects it")
        return []


@pytest.mark.parametrize("is_paused", [False, True])
@async_test
async def test_a_source_is_asked_again_after_an_error_that_nobody_expects(is_paused: bool) -> None:
    reported = noted_errors()
    source, clock = Source(), ManualClock()
    mirror = running(source, clock, is_paused=is_paused)
    mirror.start()
    await clock.advance(60)
    await mirror.stop()
    assert source.calls > 1
    assert reported == ["nobody expects it"]


@async_test
async def test_a_failback_goes_on_after_an_error_that_nobody_expects() -> None:
    reported, led, clock = noted_errors(), Calls(), ManualClock()
    record = SimpleNamespace(name="orders", failback=object(), source=None)
    partitions = SimpleNamespace(under_way=lambda _: [record], led=led)
    driver = FailbackDriver("eu", cast(Any, None), cast(Any, partitions), clock)
    running = asyncio.create_task(driver.run())
    await clock.advance(5)
    await cancel_and_wait(running)
    assert led.count > 1
    assert reported == ["nobody expects it"]


@async_test
async def test_mirrors_are_run_after_an_error_that_nobody_expects() -> None:
    reported, listed, clock = noted_errors(), Calls(), ManualClock()
    mirrors = SimpleNamespace(catalog=SimpleNamespace(all=listed))
    runner = MirrorRunner(
        MirrorEnvironment(
            mirrors=cast(Any, mirrors), cluster="c2", clock=clock, run_checks=in_thread
        )
    )
    runner.start()
    await clock.advance(5)
    await runner.stop()
    assert listed.count > 1
    assert reported == ["nobody expects it"]
