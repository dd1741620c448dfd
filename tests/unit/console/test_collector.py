"""What the console shows is what the broker holds, gathered within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quiver import AsyncClient
from quiver.config import NodeConfig
from quiver.console import live
from quiver.console.collector import MetricsCollector, Turns
from quiver.console.live import LiveMetrics
from quiver.console.pages import POLICY, Pages
from quiver.console.snapshot import ConsoleSnapshot
from quiver.edge.auth.principal import INTERNAL
from quiver.edge.in_process import InProcessDialer
from quiver.edge.node import Node
from quiver.errors import PathNotFound
from quiver.model.clock import SystemClock
from quiver.testing.clock import ManualClock
from tests.aio import async_test


@asynccontextmanager
async def broker(folder: Path) -> AsyncIterator[AsyncClient]:
    node = await Node.start(NodeConfig(data=str(folder)), listen=False)
    client = AsyncClient(dialer=InProcessDialer(node.services, INTERNAL))
    try:
        yield client
    finally:
        await client.close()
        await node.stop()


def test_turns_reach_everybody_and_begin_again() -> None:
    turns, names = Turns(2), ["a", "b", "c", "d", "e"]
    taken = [turns.next(names) for _ in range(4)]
    assert taken == [["a", "b"], ["c", "d"], ["e", "a"], ["b", "c"]]


def test_turns_take_all_where_there_are_few() -> None:
    assert Turns(3).next(["b", "a"]) == ["a", "b"]
    assert Turns(3).next([]) == []


@async_test
async def test_depths_sizes_and_ages_are_those_of_the_broker(tmp_path: Path) -> None:
    async with broker(tmp_path) as client:
        await client.create_queue("emails")
        await client.publish_many("emails", [{"n": n} for n in range(5)])
        await client.publish("emails", "later", delay="1h")
        await client.receive("emails", 2)
        taken = await MetricsCollector(client, SystemClock()).take()
        [emails, letters] = taken.subscriptions
        assert (letters.name, letters.pending) == ("emails.dlq", 0)
        assert (emails.pending, emails.ready, emails.leased, emails.delayed) == (6, 3, 2, 1)
        assert emails.oldest_s is not None
        assert 0 < emails.oldest_s < 60
        assert taken.totals.pending == 6
        [topic, _] = taken.topics
        assert (topic.name, topic.messages) == ("emails", 6)
        assert topic.bytes > 0
        assert taken.node.answer_ms > 0


@async_test
async def test_dead_letters_are_apart_from_the_pending_total(tmp_path: Path) -> None:
    async with broker(tmp_path) as client:
        await client.create_queue("emails")
        await client.publish_many("emails", ["good", "bad"])
        [message] = await client.receive("emails", 1)
        await client.reject("emails", [message])
        collector = MetricsCollector(client, SystemClock())
        taken = await collector.take()
        async with asyncio.timeout(50):
            while taken.subscriptions[1].pending == 0:  # it is on its way
                taken = await collector.take()
        [emails, letters] = taken.subscriptions
        assert (emails.holds_dead_letters, emails.dead_letters) == (False, "emails.dlq")
        assert (letters.holds_dead_letters, letters.pending) == (True, 1)
        assert [topic.holds_dead_letters for topic in taken.topics] == [False, True]
        assert (taken.totals.pending, taken.totals.dead) == (1, 1)


@async_test
async def test_a_dead_letter_queue_of_nobody_else_counts_like_any_other(tmp_path: Path) -> None:
    async with broker(tmp_path) as client:
        await client.create_queue("spare.dlq")
        await client.publish("spare.dlq", "x")
        taken = await MetricsCollector(client, SystemClock()).take()
        spare = next(one for one in taken.subscriptions if one.name == "spare.dlq")
        assert not spare.holds_dead_letters
        assert taken.totals.pending == 1


@async_test
async def test_rates_are_what_came_and_went_between_two_looks(tmp_path: Path) -> None:
    async with broker(tmp_path) as client:
        clock = ManualClock()
        await client.create_queue("emails")
        collector = MetricsCollector(client, clock)
        first = await collector.take()
        assert first.totals.published_rate == 0
        await client.publish_many("emails", list(range(20)))
        messages = await client.receive("emails", 15)
        await client.ack("emails", messages)
        await clock.advance(2)
        taken = await collector.take()
        assert taken.topics[0].rate == pytest.approx(10)
        assert taken.subscriptions[0].rate == pytest.approx(7.5)


@async_test
async def test_no_more_is_looked_at_than_the_bound_and_everything_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quiver.console.collector.LOOKS_MAX", 2)
    async with broker(tmp_path) as client:
        for number in range(5):
            await client.create_topic(f"t{number}")
            await client.publish(f"t{number}", "x")
        asked: list[str] = []
        collector, describe = MetricsCollector(client, SystemClock()), client.describe_topic

        async def counted(name: str) -> Any:
            asked.append(name)
            return await describe(name)

        monkeypatch.setattr(client, "describe_topic", counted)
        await collector.take()
        assert asked == ["t0", "t1"]
        for _ in range(2):
            taken = await collector.take()
        assert [topic.messages for topic in taken.topics] == [1] * 5


@async_test
async def test_many_names_are_listed_more_rarely_if_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path) as client:
        clock, asked, list_topics = ManualClock(), 0, client.list_topics

        async def slowly() -> Any:
            nonlocal asked
            asked += 1
            await clock.advance(0.1)
            return await list_topics()

        monkeypatch.setattr(client, "list_topics", slowly)
        await client.create_topic("t0")
        collector = MetricsCollector(client, clock)
        for _ in range(3):
            await collector.take()
        assert asked == 3, "where there are few, each time"
        monkeypatch.setattr("quiver.console.collector._MANY", 0)
        await client.create_topic("t1")
        assert len((await collector.take()).topics) == 1
        await clock.advance(20)
        assert len((await collector.take()).topics) == 2
        assert asked == 4


@async_test
async def test_a_frame_is_made_once_for_all_who_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path) as client:
        asked, describe = 0, client.describe_node

        async def counted() -> Any:
            nonlocal asked
            asked += 1
            return await describe()

        monkeypatch.setattr(client, "describe_node", counted)
        collector = LiveMetrics(SystemClock())
        frames = await asyncio.gather(*(collector.frame(client) for _ in range(20)))
        assert asked == 1
        assert frames[0] is not None
        assert all(frame is frames[0] for frame in frames)
        msgspec.json.decode(frames[0], type=ConsoleSnapshot)


@async_test
async def test_a_node_that_answers_slowly_is_asked_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path) as client:
        clock, asked = ManualClock(), 0
        collector, describe = LiveMetrics(clock), client.describe_node

        async def slowly() -> Any:
            nonlocal asked
            asked += 1
            await clock.advance(1.0)
            return await describe()

        monkeypatch.setattr(client, "describe_node", slowly)
        await collector.frame(client)
        await clock.advance(19.0)
        await collector.frame(client)
        assert asked == 1
        await clock.advance(1.5)
        await collector.frame(client)
        assert asked == 2


@async_test
async def test_whoever_looks_waits_no_longer_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "WAIT_S", 0.01)
    async with broker(tmp_path) as client:

        async def never() -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(client, "describe_node", never)
        collector = LiveMetrics(SystemClock())
        assert await collector.frame(client) is None
        await collector.close()


def test_pages_are_whole_and_name_nothing_outside() -> None:
    pages = Pages()
    assert b"Chart.js" in pages.get("chart.js").content
    assert b"//" not in pages.get("index.html").content
    assert "unsafe" not in POLICY
    with pytest.raises(PathNotFound):
        pages.get("../pages.py")


def test_no_page_makes_markup_of_text() -> None:
    for name, file in Pages()._files.items():
        if name.endswith(".js") and name != "chart.js":
            for way in (b"innerHTML", b"outerHTML", b"insertAdjacentHTML", b"document.write"):
                assert way not in file.content, name
