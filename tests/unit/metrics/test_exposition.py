"""The text for Prometheus: that its own parser reads it, and that names follow its conventions."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from quiver.metrics import NodeMetrics
from quiver.metrics.definitions import (
    DEFINITIONS,
    PARTITION_ROWS_MAX,
    Definition,
    MetricKind,
)
from quiver.metrics.exposition import exposition
from quiver.metrics.sample import (
    MirrorSample,
    NodeSample,
    PartitionSample,
    SourceSample,
    SubscriptionSample,
    TopicSample,
)
from quiver.metrics.traffic import OTHERS

UNITS = {"seconds", "bytes", "ratio"}
NOT_BASE_UNITS = {
    "ms",
    "milliseconds",
    "microseconds",
    "us",
    "minutes",
    "hours",
    "kb",
    "mb",
    "percent",
}


def text_of(metrics: NodeMetrics, sample: NodeSample) -> str:
    firing = {"warning": 0, "critical": 1}
    pieces = exposition(metrics, sample, node="node-1", version="1", firing=firing)
    return b"".join(pieces).decode()


def busy(names: int = 2, names_max: int = 10) -> tuple[NodeMetrics, NodeSample]:
    """A node of which every figure has something to show."""
    metrics = NodeMetrics(names_max)
    metrics.errors.labels("disk_full").inc()
    metrics.requests_of("publish").inc(7)
    metrics.connections_closed.labels("idle").inc()
    metrics.forwarded_bytes.labels("to_nodes").inc(9)
    metrics.traffic.fsync.add(0.002)
    topics, subscriptions = [], []
    for number in range(names):
        counts = metrics.traffic.topics.of(f"t{number}")
        counts.stored(10, 1000, 1)
        counts.latency.add(0.003)
        of_subscription = metrics.traffic.subscriptions.of(f"s{number}")
        of_subscription.delivered += 4
        of_subscription.time_in_queue.add(2.0, 4)
        topics.append(
            TopicSample(
                name=f"t{number}",
                size=9,
                in_sync=2,
                eligible=1,
                missing=1,
                replication_lag=3,
                leader_changes=4,
            )
        )
        subscriptions.append(
            SubscriptionSample(
                name=f"s{number}",
                ready=5,
                delayed=1,
                leased=2,
                dead_letter_pending=1,
                dead=3,
                oldest_age_s=number,
                partitions=[PartitionSample(topic=f"t{number}", partition=0, committed=2, lag=9)],
            )
        )
    mirrors = [MirrorSample(mirror="eu", topic="t0", state_lag_s=1.0)]
    return metrics, NodeSample(
        time_us=0,
        topics=topics,
        subscriptions=subscriptions,
        free_bytes=7,
        mirrors=mirrors,
        sources=[SourceSample(mirror="eu")],
    )


def parsed(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(text: str, line: str) -> float:
    (found,) = [one for one in text.splitlines() if one.startswith(f"{line} ")]
    return float(found.rpartition(" ")[2])


def test_every_definition_is_served_as_it_is_defined() -> None:
    families = parsed(text_of(*busy()))
    for one in DEFINITIONS:
        family = families[one.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (one.kind.value, one.help)
        assert family.samples, one.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(one.labels)


def test_nothing_is_served_that_is_not_defined() -> None:
    served = {name for name in parsed(text_of(*busy())) if not name.startswith("process_")}
    assert served == {one.name.removesuffix("_total") for one in DEFINITIONS}


@pytest.mark.parametrize("one", DEFINITIONS, ids=lambda one: one.name)
def test_names_follow_the_conventions(one: Definition) -> None:
    words = one.name.split("_")
    assert re.fullmatch(r"quiver(_[a-z]+)+", one.name)
    assert one.name.endswith("_total") == (one.kind is MetricKind.COUNTER)
    assert not one.name.endswith(("_count", "_sum", "_bucket", "_created", "_gauge", "_histogram"))
    assert not NOT_BASE_UNITS & set(words)
    assert one.kind.value not in words
    assert all(re.fullmatch(r"[a-z_]+", label) for label in one.labels)
    if one.kind is MetricKind.HISTOGRAM:
        assert words[-1] in UNITS
    assert re.fullmatch(r"[A-Z].*\.", one.help)


@pytest.mark.process
def test_promtool_finds_nothing_to_complain_of() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip(
            "promtool is of Debian's prometheus: without it, the other tests here hold the rules"
        )
    checked = subprocess.run(
        [tool, "check", "metrics"],
        input=text_of(*busy()),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_buckets_add_up() -> None:
    metrics = NodeMetrics()
    for seconds, weight in ((0.0004, 1), (0.0005, 2), (0.7, 3), (99, 4)):
        metrics.traffic.fsync.add(seconds, weight)
    text = text_of(metrics, NodeSample(time_us=0, topics=[], subscriptions=[]))
    buckets = {
        sample.labels["le"]: sample.value
        for sample in parsed(text)["quiver_fsync_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert [buckets[bound] for bound in ("0.0005", "0.5", "1", "10", "+Inf")] == [3, 3, 6, 6, 10]
    assert value(text, "quiver_fsync_seconds_count") == 10
    assert value(text, "quiver_fsync_seconds_sum") == pytest.approx(0.0004 + 0.001 + 2.1 + 396)


def test_names_beyond_the_bound_are_shown_in_sums() -> None:
    metrics, sample = busy(names=10, names_max=3)
    text = text_of(metrics, sample)
    assert value(text, f'quiver_topic_messages_total{{topic="{OTHERS}"}}') == 70
    assert value(text, f'quiver_topic_size_bytes{{topic="{OTHERS}"}}') == 63
    assert value(text, f'quiver_subscription_lag_messages{{subscription="{OTHERS}"}}') == 63
    assert value(text, f'quiver_subscription_oldest_age_seconds{{subscription="{OTHERS}"}}') == 9
    assert value(text, 'quiver_subscription_lag_messages{subscription="s2"}') == 9
    assert '"s3"' not in text


def test_ten_thousand_queues_make_a_text_of_bounded_size() -> None:
    small, large = (text_of(*busy(names=count, names_max=20)) for count in (30, 10_000))
    assert len(large.splitlines()) == len(small.splitlines())


def test_a_place_that_is_given_up_goes_to_a_new_name_only() -> None:
    metrics, _ = busy(names=4, names_max=3)
    counts = metrics.traffic.topics
    counts.forget("t0")
    assert counts.of("new") is not counts.others
    assert counts.of("t3") is counts.others


def test_what_is_served_comes_in_pieces() -> None:
    metrics, sample = busy(names=2000, names_max=2000)
    pieces = list(exposition(metrics, sample, node="n", version="1", firing={}))
    assert len(pieces) > 10
    assert max(map(len, pieces)) < 1 << 20


def test_names_are_escaped() -> None:
    metrics = NodeMetrics()
    sample = NodeSample(time_us=0, topics=[], subscriptions=[])
    pieces = exposition(metrics, sample, node='a"b\\c\nd', version="1", firing={})
    (info,) = parsed(b"".join(pieces).decode())["quiver_build_info"].samples
    assert info.labels["node"] == 'a"b\\c\nd'


def test_the_number_of_partitions_with_series_of_their_own_is_bounded() -> None:
    many = [
        PartitionSample(topic="t", partition=number, committed=number, lag=1)
        for number in reversed(range(PARTITION_ROWS_MAX))
    ]
    subscriptions = [SubscriptionSample(name=name, partitions=many) for name in ("a", "b")]
    sample = NodeSample(time_us=0, topics=[], subscriptions=subscriptions)
    families = parsed(text_of(NodeMetrics(10), sample))
    for name in ("lag_messages", "committed_offset"):
        shown = families[f"quiver_subscription_partition_{name}"].samples
        assert len(shown) == PARTITION_ROWS_MAX
        assert {one.labels["subscription"] for one in shown} == {"a"}


def test_what_is_not_fully_open_has_no_levels_rather_than_wrong_ones() -> None:
    sample = NodeSample(
        time_us=0,
        topics=[TopicSample(name="t", is_complete=False), TopicSample(name="u")],
        subscriptions=[
            SubscriptionSample(name="s", is_complete=False),
            SubscriptionSample(name="r"),
        ],
    )
    families = parsed(text_of(NodeMetrics(10), sample))
    for name in ("messages", "lag_messages", "oldest_age_seconds"):
        shown = families[f"quiver_subscription_{name}"].samples
        assert {one.labels["subscription"] for one in shown} == {"r"}
    (size,) = families["quiver_topic_size_bytes"].samples
    assert size.labels == {"topic": "u"}
