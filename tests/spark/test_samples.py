"""Samples of what nodes count: they add up, whatever happens to the nodes in between; no Spark here
but for the windows that are made of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest

from quiver.metrics.distribution import QUEUE_BOUNDS
from quiver.spark.pipelines import by_subscription
from quiver.spark.pipelines.sampler import open_sampler
from quiver.spark.pipelines.samples import Counts, Look, Sample, added_up, look_in
from tests.serving import eventually

MOMENT = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def look(node: str, now: float, *, acked: int, lag: int = 0, began: float = 0.0) -> Look:
    sample = Sample(subscription="s", at=now, totals={node: Counts(acked=acked)}, lag=lag)
    return Look(node=node, began=began, samples={"s": sample})


def test_a_sample_counts_from_the_one_before_it() -> None:
    (first,) = added_up([look("a", 10.0, acked=5)], {})
    (second,) = added_up([look("a", 14.0, acked=8, lag=2)], {"s": first})
    assert (first.counts.acked, first.seconds) == (5, 10.0)
    assert (second.counts.acked, second.seconds, second.lag) == (3, 4.0, 2)


def test_a_node_that_was_restarted_counts_from_its_start() -> None:
    (first,) = added_up([look("a", 10.0, acked=5)], {})
    (second,) = added_up([look("a", 14.0, acked=4, began=12.0)], {"s": first})
    assert (second.counts.acked, second.seconds) == (4, 2.0)


def test_nodes_add_up_and_one_that_is_away_is_counted_later() -> None:
    both = [look("a", 10.0, acked=5, lag=1), look("b", 10.0, acked=7, lag=2)]
    (first,) = added_up(both, {})
    (second,) = added_up([look("a", 11.0, acked=6)], {"s": first})
    (third,) = added_up([look("b", 12.0, acked=9)], {"s": second})
    assert (first.counts.acked, first.lag) == (12, 3)
    assert (second.counts.acked, third.counts.acked) == (1, 2)


def test_what_a_node_tells_is_understood(client, topic) -> None:
    client.create_queue(f"{topic}-q", max_deliveries=3)
    client.publish_many(f"{topic}-q", [b"0", b"1", b"2", b"3"])
    first, second, *_ = client.receive(f"{topic}-q", max_messages=3, wait="5s")
    first.ack()
    second.nack()

    def seen() -> Sample:
        nothing = Sample(subscription="", at=0.0)
        return look_in(client.metrics(), 0.0).samples.get(f"{topic}-q", nothing)

    eventually(lambda: seen().leased == 1, "the node shows how it is now")
    (totals,) = seen().totals.values()
    assert (totals.delivered, totals.acked, totals.nacked, totals.within[-1]) == (3, 1, 1, 1)
    assert seen().lag == 3


def test_whoever_looks_next_counts_on(client, node, topic) -> None:
    client.create_queue(f"{topic}-q")
    for done in (1, 2):
        client.publish(f"{topic}-q", b"x")
        client.receive(f"{topic}-q", wait="5s")[0].ack()
        shown = f'acked_messages_total{{subscription="{topic}-q"}} {done}'
        eventually(lambda shown=shown: shown in client.metrics(), "the node shows how it is now")
        with open_sampler(node.url, f"{topic}-samples") as sampler, sampler.going_on():
            pass
    stored = [
        msgspec.json.decode(one.payload, type=Sample)
        for one in client.read(f"{topic}-samples").messages()
    ]
    counted = [one.counts.acked for one in stored if one.subscription == f"{topic}-q"]
    assert counted == [1, 0, 1, 0]


def test_windows_have_rates_percentiles_and_the_last_state(spark) -> None:
    def stored(second: int, lag: int, within: dict[float, int]) -> tuple[str, datetime]:
        counts = Counts(delivered=10, redelivered=2, acked=8, nacked=1, dead_lettered=1)
        counts.within = [
            sum(count for limit, count in within.items() if limit <= bound)
            for bound in (*QUEUE_BOUNDS, float("inf"))
        ]
        sample = Sample(subscription="s", at=0.0, seconds=4.0, counts=counts, lag=lag)
        return json.dumps(msgspec.to_builtins(sample)), MOMENT.replace(second=second)

    # 80 times up to 1 ms, 15 from 0.5 s to 1 s, 5 beyond the last bound.
    times = {0.001: 80, 1: 15, float("inf"): 5}
    rows = [stored(5, 9, times), stored(10, 3, {})]
    frame = spark.createDataFrame(rows, "value string, timestamp timestamp")
    (row,) = by_subscription(frame, window="1 minute").collect()
    assert (row.subscription, row.acked, row.lag, row.lag_max) == ("s", 16, 3, 9)
    assert (row.acked_per_second, row.redelivery_rate, row.error_rate) == (2.0, 0.2, 0.1)
    assert row.time_in_queue_p50_ms == pytest.approx(0.625)
    assert row.time_in_queue_p95_ms == pytest.approx(1000)
    assert row.time_in_queue_p99_ms == 86_400_000
