"""Whether the source of a mirror answers this node, as it is shown and judged. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from quiver.errors import AccessRefused
from quiver.metrics.sample import SourceSample
from quiver.model.clock import Clock

UNREACHED_S = 60.0
"""A source that has not answered even once is waited for so long before the mirror counts as broken."""


class SourceContact:
    """Kept while a mirror runs on this node."""

    def __init__(self, mirror: str, clock: Clock) -> None:
        self.mirror = mirror
        self._clock = clock
        self._begun = clock.monotonic()
        self._is_refused = False
        self.cluster = ""
        """The id of the source, once it has answered."""
        self.error = ""
        """Why it does not answer now."""
        self._subscriptions: frozenset[str] | None = None

    def answered(self, cluster: str) -> None:
        self.cluster, self.error, self._is_refused = cluster, "", False

    def showed(self, subscriptions: Iterable[str]) -> None:
        """It has these subscriptions, as far as it shows them."""
        self._subscriptions = frozenset(subscriptions)

    def lacks(self, subscription: str) -> bool:
        """Whether it is known not to have a subscription."""
        return self._subscriptions is not None and subscription not in self._subscriptions

    def failed(self, error: Exception) -> None:
        self.error = str(error)
        self._is_refused = self._is_refused or isinstance(error, AccessRefused)

    @property
    def is_broken(self) -> bool:
        """Whether somebody has to do something about it.

        The source refuses the token or is not trusted, or its address never was one.
        """
        unreached_s = 0.0 if self.cluster else self._clock.monotonic() - self._begun
        return self._is_refused or unreached_s > UNREACHED_S

    def sample(self) -> SourceSample:
        return SourceSample(mirror=self.mirror, is_broken=self.is_broken)
