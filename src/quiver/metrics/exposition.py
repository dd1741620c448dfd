"""All metrics of a node as the text that Prometheus reads (format 0.0.4).

What is counted for the node comes from its registry; metrics by topic and subscription are written
here, because thousands of them must not hold up the event loop: the text comes in pieces, between
which others may have their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate, islice
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, generate_latest

from quiver.metrics import definitions
from quiver.metrics.definitions import Definition, MetricKind
from quiver.metrics.distribution import Distribution
from quiver.metrics.node_metrics import NodeMetrics
from quiver.metrics.sample import (
    MirrorSample,
    NodeSample,
    PartitionSample,
    SourceSample,
    SubscriptionSample,
    TopicSample,
)
from quiver.metrics.traffic import OTHERS, ByName, SubscriptionCounts, TopicCounts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ROWS_AT_ONCE = 250
"""So many names of one metric make a piece: that takes about a millisecond."""
S = TypeVar("S", TopicSample, SubscriptionSample)
C = TypeVar("C")
Number = Callable[[SubscriptionCounts], float]
_SUBSCRIPTION_COUNTERS: tuple[tuple[Definition, Number], ...] = (
    (definitions.DELIVERED, lambda one: one.delivered),
    (definitions.DELIVERED_BYTES, lambda one: one.delivered_bytes),
    (definitions.REDELIVERED, lambda one: one.redelivered),
    (definitions.ACKED, lambda one: one.acked),
    (definitions.NACKED, lambda one: one.nacked),
    (definitions.DEAD_LETTERED, lambda one: one.dead_lettered),
    (definitions.REBALANCES, lambda one: one.rebalances),
)
_TOPIC_COUNTERS: tuple[tuple[Definition, Callable[[TopicCounts], float]], ...] = (
    (definitions.TOPIC_MESSAGES, lambda one: one.messages),
    (definitions.TOPIC_BYTES, lambda one: one.bytes),
    (definitions.TOPIC_BATCHES, lambda one: one.batches),
)
_REPLICAS: tuple[tuple[Definition, Callable[[TopicSample], int | None]], ...] = (
    (definitions.REPLICATION_LAG, lambda one: one.replication_lag),
    (definitions.IN_SYNC, lambda one: one.in_sync),
    (definitions.ELIGIBLE, lambda one: one.eligible),
    (definitions.REPLICAS_MISSING, lambda one: one.missing),
    (definitions.LEADER_CHANGES, lambda one: one.leader_changes),
)
_MIRROR: tuple[tuple[Definition, Callable[[MirrorSample], float | None]], ...] = (
    (definitions.MIRROR_LAG, lambda one: one.lag_messages),
    (definitions.MIRROR_LAG_BYTES, lambda one: one.lag_bytes),
    (definitions.MIRROR_LAG_SECONDS, lambda one: one.lag_s),
    (definitions.MIRROR_STATE_LAG, lambda one: one.state_lag_s),
    (definitions.MIRROR_BYTES, lambda one: one.copied_bytes),
    (definitions.MIRROR_GAPS, lambda one: one.gap_messages),
    (definitions.MIRROR_MISSING, lambda one: one.missing_messages),
    (definitions.MIRROR_BROKEN, lambda one: one.broken),
)


def exposition(
    metrics: NodeMetrics, sample: NodeSample, *, node: str, version: str, firing: dict[str, int]
) -> Iterator[bytes]:
    """The text in pieces of bounded size. ``firing``: how many alerts do, by severity."""
    yield _of_registry(metrics.registry)
    yield _of_registry(metrics.process)
    yield "".join(_node(metrics, sample, node, version, firing)).encode()
    for piece in _topics(metrics.traffic.topics, sample.topics):
        yield piece.encode()
    for piece in _mirrors(sample.mirrors, sample.sources):
        yield piece.encode()
    for piece in _subscriptions(metrics.traffic.subscriptions, sample.subscriptions):
        yield piece.encode()


def forwarder_exposition(metrics: NodeMetrics, *, name: str, version: str) -> bytes:
    """The metrics of a forwarder: its connections, what it passed on, and its process."""
    return b"".join(
        (
            _of_registry(metrics.registry),
            _of_registry(metrics.process),
            "".join(_build_info(name, version)).encode(),
        )
    )


def _build_info(node: str, version: str) -> Iterator[str]:
    names = f'node="{escaped(node)}",version="{escaped(version)}"'
    return _family(definitions.BUILD_INFO, [(names, 1)])


def _of_registry(registry: CollectorRegistry) -> bytes:
    """When a counter was made is of no use here, and doubles their number."""
    text = generate_latest(registry)
    return b"".join(
        line for line in text.splitlines(keepends=True) if b"_created" not in line.split(b"{")[0]
    )


def _node(
    metrics: NodeMetrics, sample: NodeSample, node: str, version: str, firing: dict[str, int]
) -> Iterator[str]:
    yield from _build_info(node, version)
    for definition, value in (
        (definitions.DISK_FREE, sample.free_bytes or 0),
        (definitions.TOPICS, len(sample.topics)),
        (definitions.SUBSCRIPTIONS, len(sample.subscriptions)),
        (definitions.PARTITIONS, sample.partitions),
        (definitions.PARTITIONS_FAILED, sample.partitions_failed),
        (definitions.TRANSACTIONS_UNFINISHED, sample.transactions_unfinished),
        (definitions.NODES_DOWN, len(sample.nodes_down)),
        (definitions.FORWARDERS, sample.forwarders),
    ):
        yield from _family(definition, [("", value)])
    decided = [
        ('outcome="aborted"', sample.transactions_aborted),
        ('outcome="committed"', sample.transactions_committed),
    ]
    yield from _family(definitions.TRANSACTIONS, decided)
    severities = [(f'severity="{escaped(name)}"', count) for name, count in sorted(firing.items())]
    yield from _family(definitions.ALERTS_FIRING, severities)
    yield from _histograms(definitions.FSYNC, [("", metrics.traffic.fsync)])


# ------------------------------------------------------------------ topics


def _topics(traffic: ByName[TopicCounts], topics: list[TopicSample]) -> Iterator[str]:
    shown, rest = _split(traffic, topics)
    counts = _counts(traffic, shown, rest, "topic")
    for definition, number in _TOPIC_COUNTERS:
        yield from _family(definition, [(label, number(one)) for label, one in counts])
    sizes = [(f'topic="{escaped(one.name)}"', one.size) for one in shown if one.is_complete]
    if rest:
        sizes.append((f'topic="{OTHERS}"', sum(one.size for one in rest)))
    yield from _family(definitions.TOPIC_SIZE, sizes)
    forgotten = [(f'topic="{escaped(one.name)}"', one.dedup_forgotten) for one in shown]
    if rest:
        forgotten.append((f'topic="{OTHERS}"', sum(one.dedup_forgotten for one in rest)))
    yield from _family(definitions.DEDUP_FORGOTTEN, forgotten)
    opened = [(f'topic="{escaped(one.name)}"', one.open_transactions) for one in shown]
    ages = [(f'topic="{escaped(one.name)}"', one.transaction_age_s) for one in shown]
    if rest:
        opened.append((f'topic="{OTHERS}"', sum(one.open_transactions for one in rest)))
        ages.append((f'topic="{OTHERS}"', max(one.transaction_age_s for one in rest)))
    yield from _family(definitions.OPEN_TRANSACTIONS, opened)
    yield from _family(definitions.TRANSACTION_AGE, ages)
    yield from _histograms(definitions.PUBLISH, [(label, one.latency) for label, one in counts])
    for of_replicas, value_of in _REPLICAS:
        values = [
            (f'topic="{escaped(one.name)}"', value)
            for one in shown
            if (value := value_of(one)) is not None
        ]
        if values:
            yield from _family(of_replicas, values)


# ------------------------------------------------------------------ mirrors


def _mirrors(mirrors: list[MirrorSample], sources: list[SourceSample]) -> Iterator[str]:
    """Where nothing is mirrored, nothing is said of mirrors."""
    labelled = [
        (f'mirror="{escaped(one.mirror)}",topic="{escaped(one.topic)}"', one) for one in mirrors
    ]
    for definition, value_of in _MIRROR if labelled else ():
        values = [(label, value_of(one)) for label, one in labelled]
        known = [(label, value) for label, value in values if value is not None]
        if known:
            yield from _family(definition, known)
    if sources:
        broken = [(f'mirror="{escaped(one.mirror)}"', int(one.is_broken)) for one in sources]
        yield from _family(definitions.MIRROR_SOURCE_BROKEN, broken)


# ------------------------------------------------------------------ subscriptions


def _subscriptions(
    traffic: ByName[SubscriptionCounts], subscriptions: list[SubscriptionSample]
) -> Iterator[str]:
    shown, rest = _split(traffic, subscriptions)
    counts = _counts(traffic, shown, rest, "subscription")
    for definition, number in _SUBSCRIPTION_COUNTERS:
        yield from _family(definition, [(label, number(one)) for label, one in counts])
    times = [(label, one.time_in_queue) for label, one in counts]
    yield from _histograms(definitions.TIME_IN_QUEUE, times)
    complete = [one for one in shown if one.is_complete]
    labelled = [(f'subscription="{escaped(one.name)}"', one) for one in (*complete, *_sum(rest))]
    states = [
        (f'{label},state="{state}"', count)
        for label, one in labelled
        for state, count in (
            ("ready", one.ready),
            ("delayed", one.delayed),
            ("leased", one.leased),
            ("dead", (one.dead or 0) + one.dead_letter_pending),
        )
    ]
    yield from _family(definitions.MESSAGES, states)
    yield from _family(definitions.LAG, [(label, one.lag) for label, one in labelled])
    yield from _family(
        definitions.OLDEST_AGE, [(label, one.oldest_age_s) for label, one in labelled]
    )
    partitions = list(islice(_partitions(complete), definitions.PARTITION_ROWS_MAX))
    yield from _family(definitions.PARTITION_LAG, [(label, one.lag) for label, one in partitions])
    yield from _family(
        definitions.COMMITTED_OFFSET, [(label, one.committed) for label, one in partitions]
    )


def _partitions(subscriptions: list[SubscriptionSample]) -> Iterator[tuple[str, PartitionSample]]:
    """In the same order every time, so that those over the limit are the same ones."""
    for subscription in subscriptions:
        of = f'subscription="{escaped(subscription.name)}"'
        for one in sorted(subscription.partitions, key=lambda one: (one.topic, one.partition)):
            yield f'{of},topic="{escaped(one.topic)}",partition="{one.partition}"', one


def _sum(subscriptions: list[SubscriptionSample]) -> list[SubscriptionSample]:
    """All of them as one, if there are any: numbers are added up, the age is that of the oldest."""
    if not subscriptions:
        return []
    return [
        SubscriptionSample(
            name=OTHERS,
            ready=sum(one.ready for one in subscriptions),
            delayed=sum(one.delayed for one in subscriptions),
            leased=sum(one.leased for one in subscriptions),
            dead_letter_pending=sum(one.dead_letter_pending for one in subscriptions),
            dead=sum(one.dead or 0 for one in subscriptions),
            oldest_age_s=max(one.oldest_age_s for one in subscriptions),
        )
    ]


# ------------------------------------------------------------------ lines


def _split(traffic: ByName[Any], samples: list[S]) -> tuple[list[S], list[S]]:
    """Those with a place of their own, and the rest."""
    for one in samples:
        traffic.of(one.name)
    shown = [one for one in samples if one.name in traffic.counts]
    return shown, [one for one in samples if one.name not in traffic.counts]


def _counts(traffic: ByName[C], shown: list[S], rest: list[S], label: str) -> list[tuple[str, C]]:
    found: list[tuple[str, C]] = [
        (f'{label}="{escaped(one.name)}"', traffic.counts[one.name]) for one in shown
    ]
    return [*found, (f'{label}="{OTHERS}"', traffic.others)] if rest else found


def _header(definition: Definition) -> str:
    name = definition.name
    return f"# HELP {name} {definition.help}\n# TYPE {name} {definition.kind}\n"


def _family(definition: Definition, rows: Sequence[tuple[str, float]]) -> Iterator[str]:
    """A metric with all its labels."""
    name = definition.name
    yield _header(definition)
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        yield "".join(
            [
                f"{name}{{{label}}} {value}\n" if label else f"{name} {value}\n"
                for label, value in rows[first : first + _ROWS_AT_ONCE]
            ]
        )


def _histograms(definition: Definition, rows: Sequence[tuple[str, Distribution]]) -> Iterator[str]:
    """A histogram with all its labels, those apart of which nothing was ever seen: they would be
    most of the lines of a large node."""
    assert definition.kind is MetricKind.HISTOGRAM
    yield _header(definition)
    seen = [(label, values) for label, values in rows if any(values.counts)]
    for first in range(0, len(seen), _ROWS_AT_ONCE):
        yield "".join(
            [
                _histogram(definition.name, label, values)
                for label, values in seen[first : first + _ROWS_AT_ONCE]
            ]
        )


def _histogram(name: str, label: str, values: Distribution) -> str:
    start = f"{name}_bucket{{{label}{',' if label else ''}"
    below = list(accumulate(values.counts))
    lines = [
        f"{start}{bound}{count}\n"
        for bound, count in zip(_bounds_text(values.bounds), below, strict=True)
    ]
    labels = f"{{{label}}}" if label else ""
    lines.append(f"{name}_sum{labels} {values.total}\n{name}_count{labels} {below[-1]}\n")
    return "".join(lines)


@cache
def _bounds_text(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return *(f'le="{bound:g}"}} ' for bound in bounds), 'le="+Inf"} '


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
