"""Limits wrong tokens from one address. No clock: time comes in.

After a burst of wrong tokens, each further one is answered with how long to wait. A valid token is not
affected. The number of remembered addresses is bounded: the oldest failure is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict

from quiver.edge.limits.token_bucket import TokenBucket
from quiver.errors import QuotaExceeded

BURST = 50
PER_SECOND = 5
ADDRESSES_MAX = 10_000


class FailedLogins:
    def __init__(
        self,
        addresses_max: int = ADDRESSES_MAX,
        *,
        burst: int = BURST,
        per_second: float = PER_SECOND,
    ) -> None:
        self._addresses_max = addresses_max
        self._burst = burst
        self._per_second = per_second
        self._wrong: OrderedDict[str, TokenBucket] = OrderedDict()

    def failed(self, address: str, now: float) -> QuotaExceeded | None:
        """Count a wrong token; the error to answer with once there were too many."""
        debt_s = self._debt_s(address, now)
        bucket = self._wrong.pop(address, None) or TokenBucket(
            self._per_second, now, room=self._burst - 1
        )
        if not debt_s:
            bucket.take(1, now)
        self._wrong[address] = bucket
        if len(self._wrong) > self._addresses_max:
            self._wrong.popitem(last=False)
        if not debt_s:
            return None
        return QuotaExceeded(
            "too many wrong tokens came from this address; try again later",
            quota="wrong_tokens",
            retry_after_s=round(debt_s, 3),
        )

    def is_over(self, address: str, now: float) -> bool:
        """Whether the next wrong token of the address is one too many."""
        return self._debt_s(address, now) > 0

    def _debt_s(self, address: str, now: float) -> float:
        bucket = self._wrong.get(address)
        return 0.0 if bucket is None else bucket.debt_s(now)
