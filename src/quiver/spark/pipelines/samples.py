"""What the nodes themselves count, as messages: how each subscription has fared since the last look.

A sample says what has happened since the one before it, so samples add up. It also carries the
totals of each node, from which whoever looks next counts on. A node that was restarted counts from
its start.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from quiver.metrics import definitions
from quiver.metrics.distribution import QUEUE_BOUNDS

_COUNTERS = {
    definitions.DELIVERED.name: "delivered",
    definitions.REDELIVERED.name: "redelivered",
    definitions.ACKED.name: "acked",
    definitions.NACKED.name: "nacked",
    definitions.DEAD_LETTERED.name: "dead_lettered",
}
_TIMES = f"{definitions.TIME_IN_QUEUE.name}_bucket"
_PLACES = {bound: place for place, bound in enumerate((*map(float, QUEUE_BOUNDS), float("inf")))}
COUNTED = tuple(_COUNTERS.values())
STATES = ("ready", "delayed", "leased", "dead", "lag")


class Counts(msgspec.Struct, kw_only=True):
    """What only grows while a node runs."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    dead_lettered: int = 0
    within: list[int] = msgspec.field(default_factory=lambda: [0] * len(_PLACES))
    """Messages that were in the queue no longer than each bound; the last, all of them."""

    def since(self, before: Counts) -> Counts:
        """What has been added; all of it, if the node was restarted in between."""
        added = self._combined(before, operator.sub)
        shrunk = any(getattr(added, name) < 0 for name in COUNTED) or min(added.within) < 0
        return self if shrunk else added

    def and_also(self, other: Counts) -> Counts:
        """Both together."""
        return self._combined(other, operator.add)

    def _combined(self, other: Counts, how: Callable[[int, int], int]) -> Counts:
        return Counts(
            **{name: how(getattr(self, name), getattr(other, name)) for name in COUNTED},
            within=list(map(how, self.within, other.within)),
        )


class Sample(msgspec.Struct, kw_only=True):
    """A subscription, over all nodes that were looked at."""

    subscription: str
    at: float
    seconds: float = 0.0
    """How much time the counts are of."""
    counts: Counts = msgspec.field(default_factory=Counts)
    totals: dict[str, Counts] = {}
    """By node."""
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    lag: int = 0
    oldest_age_seconds: float = 0.0


class Look(msgspec.Struct, kw_only=True):
    """What one node shows at one moment."""

    node: str
    began: float
    """When the node was started."""
    samples: dict[str, Sample]


def look_in(text: str, now: float) -> Look:
    """A node's metrics, as Prometheus reads them."""
    look = Look(node="", began=now, samples={})
    found: dict[str, Counts] = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            if name == definitions.BUILD_INFO.name:
                look.node = labels["node"]
            elif name == "process_start_time_seconds":
                look.began = value
            elif (known := labels.get("subscription")) is not None:
                sample = look.samples.setdefault(known, Sample(subscription=known, at=now))
                _note(sample, found.setdefault(known, Counts()), name, labels, value)
    for name, sample in look.samples.items():
        sample.totals = {look.node: found[name]}
    return look


def added_up(looks: list[Look], before: dict[str, Sample]) -> list[Sample]:
    """One sample for each subscription, with what was counted since the samples before."""
    samples: dict[str, Sample] = {}
    for look in looks:
        for name, one in look.samples.items():
            last = before.get(name)
            known = {} if last is None else last.totals
            whole = samples.setdefault(
                name, Sample(subscription=name, at=one.at, totals=dict(known))
            )
            since = look.began if last is None else max(look.began, last.at)
            whole.seconds = max(whole.seconds, one.at - since)
            whole.counts = whole.counts.and_also(
                one.totals[look.node].since(known.get(look.node, Counts()))
            )
            whole.totals |= one.totals
            for state in STATES:
                setattr(whole, state, getattr(whole, state) + getattr(one, state))
            whole.oldest_age_seconds = max(whole.oldest_age_seconds, one.oldest_age_seconds)
    return list(samples.values())


def _note(sample: Sample, counts: Counts, name: str, labels: dict[str, str], value: float) -> None:
    if name in _COUNTERS:
        setattr(counts, _COUNTERS[name], int(value))
    elif name == _TIMES:
        counts.within[_PLACES[float(labels["le"])]] = int(value)
    elif name == definitions.MESSAGES.name:
        setattr(sample, labels["state"], int(value))
    elif name == definitions.LAG.name:
        sample.lag = int(value)
    elif name == definitions.OLDEST_AGE.name:
        sample.oldest_age_seconds = value
