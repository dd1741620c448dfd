"""What each principal uses, checked against its quotas. No clock: time comes in.

A rate lets a caller run ahead a little and then makes it wait. A count refuses what would exceed it.
Both raise ``QuotaExceeded`` with the seconds to wait. The number of counted principals is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from quiver.config import Quotas
from quiver.edge.auth.principal import INTERNAL, Principal
from quiver.edge.limits.lease_quota import LeaseQuota
from quiver.edge.limits.token_bucket import TokenBucket
from quiver.errors import QuotaExceeded

PRINCIPALS_MAX = 20_000
_COUNT_RETRY_S = 1.0


class Usage:
    """What one principal uses, over all its connections."""

    def __init__(self, quotas: Quotas, now: float) -> None:
        self.quotas = quotas
        self.connections = 0
        self.leased = LeaseQuota()
        self._requests = _bucket(quotas.requests_per_second, now)
        self._bytes = _bucket(quotas.bytes_per_second, now)
        named = (("requests", self._requests), ("bytes", self._bytes))
        self._rates = [(name, bucket) for name, bucket in named if bucket is not None]

    def admit(self, size: int, now: float, patience_s: float) -> float:
        """Take a request of ``size`` bytes; how long its caller should then rest.

        Refused if what was taken before is not paid for within ``patience_s``.
        """
        for name, bucket in self._rates:
            debt_s = bucket.debt_s(now)
            if debt_s > patience_s:
                raise _exceeded(name, debt_s - patience_s)
        rest_s = 0.0
        if self._requests is not None:
            rest_s = self._requests.take(1, now)
        if self._bytes is not None:
            rest_s = max(rest_s, self._bytes.take(size, now))
        return rest_s

    def require_paid(self, now: float) -> None:
        """``QuotaExceeded`` while what was taken is not paid for."""
        for name, bucket in self._rates:
            debt_s = bucket.debt_s(now)
            if debt_s:
                raise _exceeded(name, debt_s)

    def sent(self, size: int, now: float) -> None:
        """Bytes of a reply count too."""
        if self._bytes is not None:
            self._bytes.take(size, now)

    def connect(self) -> None:
        most = self.quotas.connections_max
        if most and self.connections >= most:
            raise _exceeded("connections", _COUNT_RETRY_S)
        self.connections += 1

    def disconnect(self) -> None:
        self.connections -= 1

    def room_for_messages(self, asked: int, now_us: int) -> int:
        """How many of the messages asked for may be leased now."""
        most = self.quotas.inflight_messages_max
        if not most:
            return asked
        room = most - self.leased.count(now_us)
        if room <= 0:
            raise _exceeded("inflight_messages", _COUNT_RETRY_S)
        return min(asked, room)

    def require_room_for_topic(self, topics: int) -> None:
        most = self.quotas.topics_max
        if most and topics >= most:
            raise QuotaExceeded(
                f"you have {topics:,} of {most:,} topics and queues: delete one first",
                quota="topics",
            )

    def is_idle(self, now: float, now_us: int) -> bool:
        return (
            not self.connections
            and not self.leased.count(now_us)
            and all(bucket.is_full(now) for _, bucket in self._rates)
        )


class Usages:
    """The usage of every principal that was heard of lately."""

    def __init__(
        self,
        quotas: Quotas,
        special: Mapping[str, Quotas] | None = None,
        principals_max: int = PRINCIPALS_MAX,
    ) -> None:
        self._quotas = quotas
        self._special = special or {}
        """Those of principals that have other ones than everybody, by name."""
        self._principals_max = principals_max
        self._by_name: OrderedDict[str, Usage] = OrderedDict()

    def of(self, principal: Principal, now: float, now_us: int) -> Usage | None:
        """``None`` for those who have no quota."""
        quotas = self.quotas_of(principal)
        if principal is INTERNAL or quotas.counts_nothing:
            return None
        usage = self._by_name.get(principal.name)
        if usage is None:
            self._make_room(now, now_us)
            usage = self._by_name[principal.name] = Usage(quotas, now)
        self._by_name.move_to_end(principal.name)
        return usage

    def quotas_of(self, principal: Principal) -> Quotas:
        return self._special.get(principal.name, self._quotas)

    def _make_room(self, now: float, now_us: int) -> None:
        if len(self._by_name) < self._principals_max:
            return
        name, oldest = next(iter(self._by_name.items()))
        if not oldest.is_idle(now, now_us):
            raise _exceeded("principals", _COUNT_RETRY_S)
        del self._by_name[name]


def _bucket(rate: int, now: float) -> TokenBucket | None:
    return TokenBucket(rate, now) if rate else None


def _exceeded(quota: str, retry_after_s: float) -> QuotaExceeded:
    seconds = round(retry_after_s, 3)
    return QuotaExceeded(
        f"the quota {quota} is used up; try again in {seconds:g} s",
        quota=quota,
        retry_after_s=seconds,
    )
