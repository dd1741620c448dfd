"""How soon a worker has a message, and acknowledges it, at a rate that does not end."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from benchmarks.consume.arrivals import arrivals
from benchmarks.consume.peers import Peers, peers
from benchmarks.consume.queue import Stream
from benchmarks.consume.quiver_queue import FollowedTopic, QuiverQueue
from benchmarks.consume.rabbitmq_queue import RabbitQueue
from benchmarks.consume.redis_queue import RedisQueue
from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.latency import percentiles_ms
from benchmarks.harness.rounds import in_turn
from benchmarks.harness.row import Row, Target, at_most, ratio_at_most

_LIMITS_MS: dict[int, tuple[Target | None, Target | None]] = {
    500: (at_most(1.2), at_most(5)),
    5_000: (at_most(3), None),
}
_STEADY_RATE = 5_000
_BEHIND_MAX = _STEADY_RATE // 10
"""A tenth of a second."""
_LATE = "at least: what has not come 5 s after the end counts as if it came then"
_OWN = "consume"
_FOLLOW = "read(follow=True), no acks"
_REDIS = "Redis Streams always"
_RABBITMQ = "RabbitMQ quorum queue"
_NOTE = (
    "from when the publish was due; publisher and worker are processes; every message is acked, in "
    f"Redis all that were read together, up to 1,000; {_LATE}"
)
_PERCENTILES = ("p50", "p99")

Make = Callable[[str], Stream]
Percentiles = list[tuple[float, float]]
"""p50 and p99 of each round, in milliseconds."""


def deliver_end_to_end(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    with bench.folder() as folder, served(folder) as node, peers(folder) as others:
        contestants = _contestants(node, others)
        arrivals(QuiverQueue(node, "warm-up"), 500, 0.2)
        for rate in list(_LIMITS_MS)[: bench.pick(len(_LIMITS_MS), 1)]:
            rounds: dict[str, Percentiles] = {name: [] for name in contestants}
            for turn in range(bench.pick(3, 1)):
                for name in in_turn(contestants, turn):
                    stream = contestants[name](f"at-{rate}-{turn}-{list(contestants).index(name)}")
                    came = arrivals(stream, rate, bench.pick(5, 1))
                    rounds[name].append(percentiles_ms(came.latencies()))
            rows += _rows(rate, rounds)
        rows.append(_keeps_up(node, bench.pick(60, 1)))
    return rows


def _contestants(node: Child, others: Peers) -> dict[str, Make]:
    found: dict[str, Make] = {
        _OWN: lambda name: QuiverQueue(node, name),
        _FOLLOW: lambda name: FollowedTopic(node, name),
    }
    redis, rabbitmq = others.redis, others.rabbitmq
    if redis is not None:
        found[_REDIS] = lambda name: RedisQueue(redis, name, acks_together=True, read_max=1_000)
    if rabbitmq is not None:
        found[_RABBITMQ] = lambda name: RabbitQueue(rabbitmq, name)
    return found


def _rows(rate: int, rounds: dict[str, Percentiles]) -> list[Row]:
    own = rounds.pop(_OWN)
    rows = []
    for peer, theirs in rounds.items():
        for place, percentile in enumerate(_PERCENTILES):
            target = ratio_at_most(1.5) if peer == _REDIS else None
            if peer == _FOLLOW:
                target = _LIMITS_MS[rate][place]
            rows.append(
                _row(
                    f"publish until a worker has it, {rate:,}/s, fsync, {percentile}",
                    place,
                    own,
                    peer,
                    theirs,
                    target,
                )
            )
    return rows


def _row(
    name: str, place: int, own: Percentiles, peer: str, theirs: Percentiles, target: Target | None
) -> Row:
    return Row(
        name=name,
        value=statistics.median(one[place] for one in own),
        unit="ms",
        yardstick=statistics.median(one[place] for one in theirs),
        yardstick_name=peer,
        ratio=statistics.median(
            one[place] / other[place] for one, other in zip(own, theirs, strict=True)
        ),
        target=target,
        note=_NOTE if place == 0 and peer == _FOLLOW else "",
    )


def _keeps_up(node: Child, seconds: int) -> Row:
    came = arrivals(QuiverQueue(node, "steady"), _STEADY_RATE, seconds)
    p50, p99 = percentiles_ms(came.latencies())
    return Row(
        name=f"how far a worker is behind after {seconds} s at {_STEADY_RATE:,}/s, fsync",
        value=came.behind(),
        unit="msg",
        target=at_most(_BEHIND_MAX),
        note=f"messages that had not come when the last was due; of all p50 {p50:,.1f} ms and p99 "
        f"{p99:,.1f} ms, {_LATE}",
    )
