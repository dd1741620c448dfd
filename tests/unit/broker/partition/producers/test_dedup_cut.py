"""A dedup window that forgets ids before their time says so: in a sample, an alert, and ``describe``."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver.broker.alerts.readings import Reader
from quiver.broker.partition.producers import dedup
from quiver.config.alert_rule import DEFAULT_RULES
from quiver.metrics.sample import NodeSample, TopicSample
from quiver.model.builder import BatchBuilder
from quiver.model.topic import TopicSettings
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import open_broker, publish

RULE = next(rule for rule in DEFAULT_RULES if rule.watch == "dedup_forgotten")


@pytest.mark.parametrize(("bytes_max", "is_cut"), [(100 * 32, True), (1000 * 32, False)])
@async_test
async def test_describe_and_a_sample_tell_how_many_ids_were_forgotten_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_max: int, is_cut: bool
) -> None:
    monkeypatch.setattr(dedup, "BYTES_MAX", bytes_max)
    clock = ManualClock()
    async with open_broker(tmp_path, SimulatedDisk(1), clock=clock) as broker:
        await broker.topics.create("jobs", TopicSettings(dedup_window="1h"))
        for number in range(200):
            builder = BatchBuilder()
            builder.add(b"work", dedup_id=f"id {number}")
            await publish(broker, "jobs", builder.build())
            await clock.advance(10)
        info = await broker.topics.describe("jobs")
        (topic,) = (one for one in (await broker.sample()).topics if one.name == "jobs")
        assert topic.dedup_forgotten == info.partitions[0].dedup_forgotten
        assert (topic.dedup_forgotten > 90) == is_cut
        assert is_cut or topic.dedup_forgotten == 0


def test_the_alert_fires_for_ids_that_are_forgotten_from_now_on() -> None:
    reader = Reader(RULE)
    readings = [
        reader.read(sample(forgotten), now) for now, forgotten in ((0, 5), (10, 5), (20, 9))
    ]
    assert [one["jobs"] > RULE.limit for one in readings] == [False, False, True]


def sample(forgotten: int) -> NodeSample:
    topic = TopicSample(name="jobs", dedup_forgotten=forgotten)
    return NodeSample(time_us=0, topics=[topic], subscriptions=[])
