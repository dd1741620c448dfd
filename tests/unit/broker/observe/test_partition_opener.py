"""A round opens what is led and not open, within its time, and says what is missing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from quiver.broker.observe import partition_opener
from quiver.broker.observe.partition_opener import PartitionOpener
from quiver.errors import LogFailed, NotLeader
from tests.aio import async_test, turns


class Partitions:
    """Partitions of one topic; ``failing`` cannot be opened, ``slow`` wait for ``disk``, and
    ``unused`` were never opened."""

    def __init__(self, count: int) -> None:
        self.placement = SimpleNamespace(version=0)
        self.failing: dict[int, Exception] = {}
        self.slow: set[int] = set()
        self.unused: set[int] = set()
        self.disk = asyncio.Event()
        self.asked: list[int] = []
        self.open: set[int] = set()
        self._count = count

    def led(self, _: Any) -> list[int]:
        return list(range(self._count))

    def is_unused(self, _: Any, index: int) -> bool:
        return index in self.unused

    def ready(self, _: Any, index: int) -> Any:
        return SimpleNamespace(state=None) if index in self.open else None

    async def get(self, _: Any, index: int) -> Any:
        self.asked.append(index)
        if index in self.slow:
            await self.disk.wait()
        if index in self.failing:
            raise self.failing[index]
        self.open.add(index)


def opener(partitions: Partitions) -> PartitionOpener:
    topic = SimpleNamespace(name="t", number=7)
    topics: Any = SimpleNamespace(version=1, topics=lambda: [topic])
    subscriptions: Any = SimpleNamespace(
        registry=SimpleNamespace(version=1), on_topic=lambda _name: []
    )

    async def no_state(*_: Any) -> None:
        pass

    return PartitionOpener(topics, subscriptions, partitions, no_state)  # type: ignore[arg-type]


@async_test
async def test_all_that_is_led_is_opened_once() -> None:
    partitions = Partitions(3)
    opening = opener(partitions)
    assert await opening.open_some() == {}
    assert await opening.open_some() == {}
    assert partitions.asked == [0, 1, 2]


@async_test
async def test_what_another_node_leads_by_now_is_missing_until_it_opens() -> None:
    partitions = Partitions(2)
    partitions.failing[1] = NotLeader("no")
    opening = opener(partitions)
    assert await opening.open_some() == {(7, 1): "t"}
    del partitions.failing[1]
    assert await opening.open_some() == {}


@async_test
async def test_what_cannot_be_opened_is_left_alone_for_a_while() -> None:
    partitions = Partitions(2)
    partitions.failing[0] = LogFailed("damaged")
    opening = opener(partitions)
    for _ in range(5):
        assert await opening.open_some() == {(7, 0): "t"}
    assert partitions.asked == [0, 1]


@async_test
async def test_what_nobody_ever_used_stays_closed_until_somebody_does() -> None:
    partitions = Partitions(3)
    partitions.unused = {0, 2}
    opening = opener(partitions)
    for _ in range(2):
        assert await opening.open_some() == {}
        assert [index for _, index in opening.unused] == [0, 2]
    assert partitions.asked == [1]
    partitions.unused, partitions.open = {2}, {0, 1}
    assert await opening.open_some() == {}
    assert [index for _, index in opening.unused] == [2]
    assert partitions.asked == [1]


@async_test
async def test_what_was_used_and_could_not_be_opened_is_missing() -> None:
    partitions = Partitions(2)
    partitions.unused = {1}
    opening = opener(partitions)
    assert await opening.open_some() == {}
    partitions.unused, partitions.failing = set(), {1: LogFailed("damaged")}
    assert await opening.open_some() == {(7, 1): "t"}
    assert opening.unused == []


@async_test
async def test_a_slow_disk_holds_a_round_up_once_and_starts_nothing_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_opener, "ROUND_S", 0.3)
    partitions = Partitions(4)
    partitions.slow = {1}
    opening = opener(partitions)
    assert await opening.open_some() == {(7, 1): "t", (7, 2): "t", (7, 3): "t"}
    assert partitions.asked == [0, 1]
    monkeypatch.setattr(partition_opener, "ROUND_S", 60.0)
    assert await opening.open_some() == {(7, 1): "t"}
    partitions.disk.set()
    await turns()
    assert await opening.open_some() == {}
    await opening.close()
