"""How long to wait before trying again.

The pause is drawn evenly from zero to a bound that doubles with each failure in a row, so that many
clients that lost the same node do not come back all at once.
"""

from __future__ import annotations

import random

import msgspec


class RetryBackoff(msgspec.Struct, frozen=True, kw_only=True):
    first_s: float = 0.05
    """The bound after the first failure."""
    most_s: float = 2.0
    """The bound that is never passed."""

    def pause_s(self, failures: int, chance: random.Random) -> float:
        """How long to wait after this many failures in a row; nothing if there were none."""
        if failures <= 0:
            return 0.0
        return chance.uniform(0.0, min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 30)))
