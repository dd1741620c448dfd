"""Publish latency between two looks, out of counts that only grow."""

from __future__ import annotations

import pytest

from quiver.console.latency import PublishLatency
from quiver.metrics import NodeMetrics


def test_only_publishes_since_the_last_look_count() -> None:
    metrics, latency = NodeMetrics(), PublishLatency()
    slow = metrics.traffic.topics.of("slow").latency
    slow.add(9.0, weight=1000)
    assert latency.between(metrics.values(), 0.5) == [None]
    metrics.traffic.topics.of("quick").latency.add(0.0007, weight=99)
    slow.add(0.3)
    p50_ms, p99_ms, p100_ms = latency.between(metrics.values(), 0.5, 0.99, 1)
    assert p50_ms == pytest.approx(0.5 + 0.5 * 50 / 99)
    assert p99_ms == pytest.approx(1.0)
    assert p100_ms == pytest.approx(500)


def test_without_publishes_there_is_no_latency() -> None:
    metrics, latency = NodeMetrics(), PublishLatency()
    metrics.traffic.topics.of("orders").latency.add(0.001)
    for _ in range(3):
        found = latency.between(metrics.values(), 0.5, 0.99)
    assert found == [None, None]


def test_beyond_the_last_bound_it_is_the_last_bound() -> None:
    metrics, latency = NodeMetrics(), PublishLatency()
    latency.between(metrics.values(), 0.5)
    metrics.traffic.topics.of("orders").latency.add(60)
    assert latency.between(metrics.values(), 0.5) == [10_000]


def test_a_viewer_who_may_not_know_and_a_node_that_began_anew_tell_nothing() -> None:
    metrics, latency = NodeMetrics(), PublishLatency()
    metrics.traffic.topics.of("orders").latency.add(0.001, weight=5)
    latency.between(metrics.values(), 0.5)
    assert latency.between({}, 0.5) == [None]
    latency.between(metrics.values(), 0.5)
    assert latency.between(NodeMetrics().values(), 0.5) == [None]
