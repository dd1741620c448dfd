"""The last hour of a node's metrics, so that charts are full when the console is opened.

Every topic and subscription of a snapshot has a ring of numbers, one row for each point. A row is kept
for ``POINTS_MAX`` points; what a snapshot no longer has is forgotten at once. A topic takes 6 KB and a
subscription 10 KB, and a snapshot has at most 500 of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import isnan

import msgspec
import numpy as np
import numpy.typing as npt

from quiver.console.snapshot import ConsoleSnapshot, SubscriptionMetricsRow, TopicMetricsRow

STEP_S = 10.0
POINTS_MAX = 360
_NODE = ("connections", "answer_ms", "publish_p50_ms", "publish_p99_ms")
_TOPIC = ("rate", "byte_rate", "messages", "bytes")
_SUBSCRIPTION = ("ready", "delayed", "leased", "dead", "pending", "rate")
_OLDEST = "oldest_s"
_LATENCIES = ("publish_p50_ms", "publish_p99_ms")
Series = dict[str, list[float | None]]
"""By field, one number for each point; ``None`` where it is not known."""
_Numbers = npt.NDArray[np.float32]


class _Ring:
    """The numbers of one subject, a row for each point."""

    def __init__(self, fields: tuple[str, ...], points_max: int) -> None:
        self.fields = fields
        self.numbers: _Numbers = np.full((points_max, len(fields)), np.nan, np.float32)
        self.holds_dead_letters = False

    def put(self, place: int, row: msgspec.Struct | None) -> None:
        values = [getattr(row, field, None) for field in self.fields]
        self.numbers[place] = [np.nan if value is None else value for value in values]


class MetricsHistory:
    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._points_max = points_max
        self._count = 0
        self._times: npt.NDArray[np.int64] = np.zeros(points_max, np.int64)
        self._node = _Ring(_NODE, points_max)
        self._topics: dict[str, _Ring] = {}
        self._subscriptions: dict[str, _Ring] = {}

    def add(self, snapshot: ConsoleSnapshot) -> None:
        """Remember one more point, and forget the oldest if there are too many."""
        place = self._count % self._points_max
        self._count += 1
        self._times[place] = snapshot.time_ms
        self._node.put(place, snapshot.node)
        self._topics = self._next(self._topics, _TOPIC, snapshot.topics, place)
        self._subscriptions = self._next(
            self._subscriptions, (*_SUBSCRIPTION, _OLDEST), snapshot.subscriptions, place
        )

    def _next(
        self,
        known: dict[str, _Ring],
        fields: tuple[str, ...],
        rows: Iterable[TopicMetricsRow] | Iterable[SubscriptionMetricsRow],
        place: int,
    ) -> dict[str, _Ring]:
        rings = {}
        for row in rows:
            ring = rings[row.name] = known.get(row.name) or _Ring(fields, self._points_max)
            ring.put(place, row)
            ring.holds_dead_letters = row.holds_dead_letters
        return rings

    # ------------------------------------------------------------------ what is told

    @property
    def times_ms(self) -> list[int]:
        """When each point was taken, the oldest first."""
        return [int(time) for time in self._times[self._order()]]

    def node(self, *, with_latencies: bool) -> Series:
        shown = self._series(self._node)
        return shown if with_latencies else {k: v for k, v in shown.items() if k not in _LATENCIES}

    def topic(self, name: str) -> Series:
        return self._series(self._topics.get(name))

    def subscription(self, name: str) -> Series:
        return self._series(self._subscriptions.get(name))

    def totals(self, topics: Collection[str], subscriptions: Collection[str]) -> Series:
        """The totals of a viewer who sees these, as ``Totals`` has them."""
        stored = self._sum(self._topics, topics, _TOPIC)
        depths = self._sum(self._subscriptions, subscriptions, _SUBSCRIPTION)
        oldest = [one.numbers[:, -1] for one in _counted(self._subscriptions, subscriptions)]
        greatest = np.fmax.reduce(oldest) if oldest else np.zeros(self._points_max)
        shown = {
            "published_rate": stored[:, 0],
            "byte_rate": stored[:, 1],
            "finished_rate": depths[:, _SUBSCRIPTION.index("rate")],
            _OLDEST: np.nan_to_num(greatest),
        }
        for place, field in enumerate(_SUBSCRIPTION[:-1]):
            shown[field] = depths[:, place]
        return {field: self._told(numbers) for field, numbers in shown.items()}

    def _sum(
        self, rings: dict[str, _Ring], names: Collection[str], fields: tuple[str, ...]
    ) -> _Numbers:
        total: _Numbers = np.zeros((self._points_max, len(fields)), np.float32)
        for ring in _counted(rings, names):
            total += np.nan_to_num(ring.numbers[:, : len(fields)])
        return total

    def _series(self, ring: _Ring | None) -> Series:
        if ring is None:
            return {}
        return {field: self._told(ring.numbers[:, at]) for at, field in enumerate(ring.fields)}

    def _told(self, numbers: npt.NDArray[np.floating]) -> list[float | None]:
        return [None if isnan(one) else round(one, 3) for one in numbers[self._order()].tolist()]

    def _order(self) -> npt.NDArray[np.int64]:
        """The places of the points, the oldest first."""
        kept = min(self._count, self._points_max)
        return np.arange(self._count - kept, self._count) % self._points_max


def _counted(rings: dict[str, _Ring], names: Collection[str]) -> list[_Ring]:
    """Those of these names that count in totals: dead letters do not."""
    found = [rings[name] for name in names if name in rings]
    return [ring for ring in found if not ring.holds_dead_letters]
