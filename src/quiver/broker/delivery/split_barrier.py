"""Holds back the child of a split until the subscription has finished the parent's earlier messages.

So order by key or by partition holds across a split. If another node leads the parent, that node is
asked, for as long as a consumer waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quiver.aio import cancel_and_wait
from quiver.errors import QuiverError
from quiver.model.clock import Clock

_ASK_AGAIN_S = 0.1
_INTEREST_S = 10.0
"""Without anybody who wants to know for so long, the other node is not asked any more."""


class SplitBarrier:
    """``look`` says whether the parent is passed, or ``None`` if another node knows, who is asked
    with ``ask``. ``on_open`` is called when the answer to that is yes."""

    def __init__(
        self,
        look: Callable[[], bool | None],
        ask: Callable[[], Awaitable[bool]],
        on_open: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._look = look
        self._ask = ask
        self._on_open = on_open
        self._clock = clock
        self._is_open = False
        self._wanted_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    def is_open(self) -> bool:
        """Whether the child may be delivered."""
        if not self._is_open:
            seen = self._look()
            self._is_open = bool(seen)
            if seen is None:
                self._wanted_at = self._clock.monotonic()
                if self._asking is None:
                    self._asking = asyncio.create_task(self._ask_around())
        return self._is_open

    def close(self) -> None:
        """The subscription begins anew, somewhere: what was passed may not be any more."""
        self._is_open = False

    async def stop(self) -> None:
        """Ask no more."""
        await cancel_and_wait(self._asking)

    async def _ask_around(self) -> None:
        try:
            while self._clock.monotonic() < self._wanted_at + _INTEREST_S:
                try:
                    if await self._ask():
                        self._is_open = True
                        self._on_open()
                        return
                except QuiverError:
                    pass  # whoever leads the parent next may know
                await self._clock.sleep(_ASK_AGAIN_S)
        finally:
            self._asking = None
