"""The history of the console: an hour at most, and only of what is there."""

from __future__ import annotations

from pathlib import Path

from quiver.console.history import MetricsHistory
from quiver.console.recorder import HistoryRecorder
from quiver.console.snapshot import (
    ConsoleSnapshot,
    NodeMetricsRow,
    SubscriptionMetricsRow,
    TopicMetricsRow,
    Totals,
)
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.unit.broker.broker_doubles import until
from tests.unit.console.test_collector import broker


def snapshot(time_ms: int, **depths: int) -> ConsoleSnapshot:
    """A snapshot with these queues, each with as many ready messages."""
    return ConsoleSnapshot(
        time_ms=time_ms,
        node=NodeMetricsRow(
            name="n",
            software="",
            uptime_s=1,
            topics=0,
            partitions=0,
            connections=time_ms,
            answer_ms=1,
        ),
        totals=Totals(),
        topics=[
            TopicMetricsRow(name=name, partitions=1, rate=ready) for name, ready in depths.items()
        ],
        subscriptions=[
            SubscriptionMetricsRow(
                name=name,
                is_queue=True,
                topics=[name],
                ready=ready,
                oldest_s=ready,
                holds_dead_letters=name.endswith("_dlq"),
            )
            for name, ready in depths.items()
        ],
    )


def test_a_history_keeps_the_newest_points_in_order() -> None:
    history = MetricsHistory(points_max=3)
    for number in range(1, 6):
        history.add(snapshot(number * 10, a=number))
    assert history.times_ms == [30, 40, 50]
    assert history.subscription("a")["ready"] == [3, 4, 5]
    assert history.topic("a")["rate"] == [3, 4, 5]
    assert history.node(with_latencies=True)["connections"] == [30, 40, 50]


def test_what_came_later_has_nothing_before_and_what_has_gone_is_forgotten() -> None:
    history = MetricsHistory(points_max=3)
    history.add(snapshot(1, a=1))
    history.add(snapshot(2, a=2, b=7))
    assert history.subscription("b")["ready"] == [None, 7]
    history.add(snapshot(3, b=8))
    assert history.subscription("a") == {}
    history.add(snapshot(4, a=9, b=9))
    assert history.subscription("a")["ready"] == [None, None, 9]
    assert history.subscription("nobody") == {}


def test_totals_are_of_what_the_viewer_sees_without_dead_letters() -> None:
    history = MetricsHistory(points_max=3)
    history.add(snapshot(1, a=1, b=10, a_dlq=100))
    history.add(snapshot(2, a=2, b=1, a_dlq=100))
    everything = ["a", "b", "a_dlq"]
    assert history.totals([], everything)["ready"] == [11, 3]
    assert history.totals([], everything)["oldest_s"] == [10, 2]
    assert history.totals([], ["a", "unknown"])["ready"] == [1, 2]
    assert history.totals([], [])["oldest_s"] == [0, 0]
    assert history.totals(["b"], [])["published_rate"] == [10, 1]


def test_an_empty_history_tells_nothing() -> None:
    history = MetricsHistory()
    assert history.times_ms == []
    assert history.totals(["a"], ["a"])["ready"] == []
    assert history.node(with_latencies=True)["answer_ms"] == []


def test_only_who_may_know_latencies_sees_them() -> None:
    history = MetricsHistory()
    history.add(snapshot(1))
    assert history.node(with_latencies=True)["publish_p99_ms"] == [None]
    assert "publish_p99_ms" not in history.node(with_latencies=False)


@async_test
async def test_a_node_records_while_nobody_looks(tmp_path: Path) -> None:
    async with broker(tmp_path) as client:
        clock, history = ManualClock(), MetricsHistory()
        await client.create_queue("emails")
        await client.publish("emails", "x")
        recorder = HistoryRecorder(client, clock, history)
        recorder.start()
        try:
            for number in range(3):
                await until(lambda: clock.sleepers == 1)
                assert len(history.times_ms) == number
                await clock.advance(10)
            await until(lambda: clock.sleepers == 1)
        finally:
            await recorder.stop()
        assert len(history.times_ms) == 3
        assert history.times_ms[1] - history.times_ms[0] == 10_000
        assert history.subscription("emails")["ready"] == [1, 1, 1]
