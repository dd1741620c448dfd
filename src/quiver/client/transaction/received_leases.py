"""The leases of messages that were received while a transaction is open: they are kept until it ends.

A transaction acknowledges its messages one after the other, and fails as a whole if the lease of one has
ended. So what the program has not come to yet must not lapse meanwhile. Messages that are settled or kept
for a transaction by then are no longer leased: extending them does nothing. Messages of sessions are not
here, since heartbeats keep their leases.
"""

from __future__ import annotations

import threading

import msgspec

from quiver.aio import retrieve_exception
from quiver.client.transport.cluster import Cluster
from quiver.model.clock import Clock
from quiver.protocol import Extend, PortionInfo, Received, Settlement

LEASES_MAX = 10_000
"""So many are kept, the newest: one for each receive from a partition."""
_VISIBILITY_S_MIN = 15.0
_SHORT_S = 3.0
"""A lease that lasts less is extended at once: it could end before ``keep`` is called again."""
_SHARE = 1 / 3
"""Of the time that a lease lasts: when it is extended."""


class _Lease(msgspec.Struct, eq=False):
    begun: int
    """How many transactions had begun when it was received."""
    subscription: str
    settlement: Settlement
    visibility_s: float
    extend_at: float
    is_short: bool


class ReceivedLeases:
    """``add`` may be called from any thread, ``keep`` on the event loop."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._leases: dict[bytes, _Lease] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, subscription: str, received: Received, begun: int) -> bool:
        """Messages that came when so many transactions had ``begun``, of which one is open.

        Whether ``keep`` has to be called at once.
        """
        added = [
            self._lease(subscription, portion, begun)
            for portion in received.portions
            if portion.lease  # what is delivered at most once has none
        ]
        with self._lock:
            self._leases.update((one.settlement.lease, one) for one in added)
            while len(self._leases) > LEASES_MAX:
                del self._leases[next(iter(self._leases))]
        return any(one.is_short for one in added)

    def _lease(self, subscription: str, portion: PortionInfo, begun: int) -> _Lease:
        left_s = max(0.0, (portion.deadline_us - self._clock.time_us()) / 1e6)
        is_short = left_s < _SHORT_S
        return _Lease(
            begun=begun,
            subscription=subscription,
            settlement=Settlement(portion.lease, portion.offsets),
            visibility_s=max(_VISIBILITY_S_MIN, left_s),
            extend_at=self._clock.monotonic() + (0.0 if is_short else left_s * _SHARE),
            is_short=is_short,
        )

    def keep(self, oldest: int) -> None:
        """Extend what is due. ``oldest`` is the first transaction that is open, or the next to begin."""
        with self._lock:
            for lease in [name for name, one in self._leases.items() if one.begun < oldest]:
                del self._leases[lease]
            leases = list(self._leases.values())
        self._extend(leases)

    def _extend(self, leases: list[_Lease]) -> None:
        now, known = self._clock.monotonic(), self._cluster.pool.any_open()
        if known is None:
            return
        due: dict[tuple[str, float], list[Settlement]] = {}
        for one in leases:
            if one.extend_at <= now:
                one.extend_at = now + one.visibility_s * _SHARE
                due.setdefault((one.subscription, one.visibility_s), []).append(one.settlement)
        for (subscription, visibility_s), settlements in due.items():
            answer = known[1].start(
                Extend(
                    subscription=subscription,
                    settlements=settlements,
                    visibility_ms=round(visibility_s * 1000),
                )
            )
            answer.add_done_callback(retrieve_exception)  # the next one comes before the lease ends
