"""Logins that a forwarder passes on: only the nodes behind it know which tokens are valid.

After some wrong tokens of one address, the nodes are asked about its unknown tokens one at a time, and no
more than ``DOUBTFUL_MAX`` wait for that. A valid token still gets in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from quiver.edge.limits.failed_logins import FailedLogins
from quiver.errors import Overloaded, Unauthenticated
from quiver.model.clock import Clock

WRONG_BURST, WRONG_PER_SECOND = 5, 0.5
"""Wrong tokens of one address before its tokens are in doubt."""
DOUBTFUL_MAX = 100


class ForwardedLogins:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed = FailedLogins(burst=WRONG_BURST, per_second=WRONG_PER_SECOND)
        self._doubtful = 0
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def asking(self, address: str) -> AsyncGenerator[None, None]:
        """The nodes are asked about a token of this address. ``Unauthenticated`` counts as a wrong one."""
        try:
            if not self._failed.is_over(address, self._clock.monotonic()):
                yield
                return
            if self._doubtful >= DOUBTFUL_MAX:
                raise Overloaded("too many unknown tokens are being checked; try again")
            self._doubtful += 1
            try:
                async with self._turn:
                    yield
            finally:
                self._doubtful -= 1
        except Unauthenticated:
            exceeded = self._failed.failed(address, self._clock.monotonic())
            if exceeded is not None:
                raise exceeded from None
            raise
