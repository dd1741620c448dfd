"""The values that rules judge, by subject, read from a sample.

Trends are kept from one sample to the next. A subject that is missing counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from quiver.broker.alerts.trend import STEPS, Added, Growth
from quiver.config.alert_rule import AlertRule
from quiver.metrics.sample import GAPS_WINDOW_US, MirrorSample, NodeSample, SubscriptionSample

DEAD_LETTERS_WINDOW_S = 300.0
UNREAD_LOST_WINDOW_S = 3600.0
DEDUP_WINDOW_S = 300.0
ERRORS_WINDOW_S = 60.0
GAP_NEW_US = 60_000_000
"""Whoever found a gap may have been killed before it told. So a gap is told again for so long."""
REQUESTS_MIN = 20
"""Of fewer requests within the window a share says nothing."""

Readings = dict[str, float]


class Reader:
    """Reads one rule's numbers. ``read`` is called with samples in order of time."""

    def __init__(self, rule: AlertRule) -> None:
        self._rule = rule
        self._growth: dict[str, Growth] = {}
        self._added: dict[str, Added] = {}
        self._known: set[str] = set()
        self.recovered: dict[str, int] = {}
        """Subjects that are new to this reader though what is read is not, and since when it is so."""
        self.moved: set[str] = set()
        """Subjects that were read here, and are read on another node now."""
        self._newest_gaps: dict[str, int] = {}
        self._read: Callable[[NodeSample, float], Readings] = getattr(self, f"_{rule.watch}")

    def read(self, sample: NodeSample, now: float) -> Readings:
        return self._read(sample, now)

    def _subscriptions(self, sample: NodeSample) -> Iterable[SubscriptionSample]:
        pattern = self._rule.on
        if pattern == "*":
            return [one for one in sample.subscriptions if not one.holds_dead_letters]
        return [one for one in sample.subscriptions if fnmatchcase(one.name, pattern)]

    def _depth(self, sample: NodeSample, _: float) -> Readings:
        return {one.name: one.lag for one in self._subscriptions(sample) if one.lag}

    def _oldest_age(self, sample: NodeSample, _: float) -> Readings:
        found = self._subscriptions(sample)
        return {one.name: one.oldest_age_s for one in found if one.oldest_age_s}

    def _lag_growing(self, sample: NodeSample, now: float) -> Readings:
        """Of what has nothing pending nothing is remembered."""
        pending = {one.name: one.lag for one in self._subscriptions(sample) if one.lag}
        self._growth = {name: one for name, one in self._growth.items() if name in pending}
        step_s = max(1.0, self._rule.limit / STEPS)
        return {
            name: self._growth.setdefault(name, Growth(step_s, lag, now)).seconds(lag, now)
            for name, lag in pending.items()
        }

    def _dead_letters(self, sample: NodeSample, _: float) -> Readings:
        """What a dead-letter queue holds when it is opened here was told by whoever had it before."""
        opened = [one for one in self._subscriptions(sample) if one.dead is not None]
        self.recovered = {
            one.name: one.recovered_letters_us
            for one in opened
            if one.recovered_letters_us is not None and one.name not in self._known
        }
        self._known = {one.name for one in opened}
        dead = {
            one.name: (one.dead or 0) + one.dead_letter_pending
            for one in self._subscriptions(sample)
        }
        return {name: count for name, count in dead.items() if count or name in self._known}

    def _dead_letter_arrivals(self, sample: NodeSample, now: float) -> Readings:
        arrived = {one.name: one.dead_lettered for one in self._subscriptions(sample)}
        self._added = {name: one for name, one in self._added.items() if name in arrived}
        return {
            name: self._lately(name, count, now, DEAD_LETTERS_WINDOW_S)
            for name, count in arrived.items()
        }

    def _unread_lost(self, sample: NodeSample, now: float) -> Readings:
        """Counted since the node started, so that the first one counts, too."""
        lost = {one.name: one.unread_lost for one in self._subscriptions(sample) if one.unread_lost}
        self._added = {name: one for name, one in self._added.items() if name in lost}
        return {
            name: self._lately(name, count, now, UNREAD_LOST_WINDOW_S, first=0)
            for name, count in lost.items()
        }

    def _dedup_forgotten(self, sample: NodeSample, now: float) -> Readings:
        forgotten = {
            one.name: one.dedup_forgotten
            for one in sample.topics
            if fnmatchcase(one.name, self._rule.on)
        }
        self._added = {name: one for name, one in self._added.items() if name in forgotten}
        return {
            name: self._lately(name, count, now, DEDUP_WINDOW_S)
            for name, count in forgotten.items()
        }

    def _transaction_age(self, sample: NodeSample, _: float) -> Readings:
        return {
            one.name: one.transaction_age_s
            for one in sample.topics
            if one.transaction_age_s and fnmatchcase(one.name, self._rule.on)
        }

    def _mirror_lag(self, sample: NodeSample, _: float) -> Readings:
        return self._mirrored(sample, lambda one: one.lag_s)

    def _mirror_gaps(self, sample: NodeSample, _: float) -> Readings:
        """A gap that is not new when this node begins to copy was told by whoever found it.

        One that is gone before its time moved with its partition.
        """
        told_us = sample.time_us - GAP_NEW_US
        gaps = {one.topic: one.gaps for one in sample.mirrors if one.gaps}
        self.recovered = {
            name: found[0][0]
            for name, found in gaps.items()
            if name not in self._known and found[-1][0] < told_us
        }
        self.moved = {
            name
            for name, found_us in self._newest_gaps.items()
            if name not in gaps
            and name in sample.mirrored
            and sample.time_us < found_us + GAPS_WINDOW_US
        }
        self._newest_gaps = {name: found[-1][0] for name, found in gaps.items()}
        self._known = set(gaps)
        return self._mirrored(sample, lambda one: sum(count for _, count in one.gaps))

    def _mirror_broken(self, sample: NodeSample, _: float) -> Readings:
        """Of a topic the partitions that are broken; of a mirror that its source is."""
        sources = [one.mirror for one in sample.sources if one.is_broken]
        found = {name: 1.0 for name in sources if fnmatchcase(name, self._rule.on)}
        return found | self._mirrored(sample, lambda one: one.broken)

    def _mirrored(self, sample: NodeSample, value_of: Callable[[MirrorSample], float]) -> Readings:
        found = [one for one in sample.mirrors if fnmatchcase(one.topic, self._rule.on)]
        return {one.topic: value for one in found if (value := value_of(one))}

    def _error_rate(self, sample: NodeSample, now: float) -> Readings:
        requests = self._lately("requests", sample.requests, now, ERRORS_WINDOW_S)
        errors = self._lately("errors", sample.errors, now, ERRORS_WINDOW_S)
        return {"": errors / requests} if requests >= REQUESTS_MIN else {}

    def _lately(
        self, name: str, level: float, now: float, window_s: float, first: float | None = None
    ) -> float:
        added = self._added.get(name)
        if added is None:
            added = self._added[name] = Added(window_s, level if first is None else first, now)
        return added.lately(level, now)

    def _disk_low(self, sample: NodeSample, _: float) -> Readings:
        return {} if sample.free_bytes is None else {"": sample.free_bytes}

    def _under_replicated(self, sample: NodeSample, _: float) -> Readings:
        return {
            one.name: one.missing
            for one in sample.topics
            if one.missing and fnmatchcase(one.name, self._rule.on)
        }

    def _node_down(self, sample: NodeSample, _: float) -> Readings:
        return dict.fromkeys(sample.nodes_down, 1)
