"""The fetches that wait at a leader until there is something to answer them with.

New entries answer a fetch at once. A watermark or a start that moved does not: it rides on the entries that
come next, and is sent alone only if none come for ``watermark_delay_s``. Publishes do not wait for that: the
leader confirms them by what it knows itself.
"""

from __future__ import annotations

import asyncio

from quiver.aio import Alarm
from quiver.cluster.replica.leader import KnownFollower, Leader
from quiver.cluster.replica.messages import Fetch
from quiver.cluster.replica.settings import ReplicaSettings
from quiver.model.clock import Clock

_EARLY_S = 0.001
"""An event loop may ring this much before the time that was asked for."""


class _Parked:
    __slots__ = ("answered", "began", "due", "fetch", "follower", "is_behind")

    def __init__(
        self,
        fetch: Fetch,
        follower: KnownFollower,
        began: float,
        due: float,
        answered: asyncio.Future[None],
    ) -> None:
        self.fetch = fetch
        self.follower = follower
        self.began = began
        self.due = due
        """When it is answered, with news or without."""
        self.is_behind = False
        """Whether the follower does not know the watermark or the start of the log."""
        self.answered = answered


class ParkedFetches:
    """Of one leader in one epoch. Call ``look`` whenever a log has come further."""

    def __init__(self, machine: Leader, clock: Clock, settings: ReplicaSettings) -> None:
        self._machine = machine
        self._clock = clock
        self._settings = settings
        self._parked: list[list[_Parked]] = [[] for _ in machine.logs]
        self._alarm = Alarm(clock, self._ring)
        self._loop = asyncio.get_running_loop()

    def has_entries(self, fetch: Fetch) -> bool:
        return self._machine.logs[fetch.log].end > fetch.offset

    async def wait(self, fetch: Fetch) -> None:
        """Return when there are entries for it, or when it has waited long enough."""
        now, parked_here = self._clock.monotonic(), self._parked[fetch.log]
        longest = min(fetch.wait_s, self._settings.idle_wait_s, self._machine.wait_s_max(now))
        follower = self._machine.hold(fetch)
        parked = _Parked(fetch, follower, now, now + longest, self._loop.create_future())
        parked_here.append(parked)
        self._alarm.ring_by(parked.due)
        self._tell_news(parked, now)
        try:
            await parked.answered
        finally:
            parked_here.remove(parked)
            self._machine.release(follower, fetch.log, self._clock.monotonic())

    def look(self, log: int) -> None:
        """Answer the fetches of a log that there are entries for."""
        progress = self._machine.logs[log]
        for parked in self._parked[log]:
            if progress.end > parked.fetch.offset:
                _answer(parked)
            elif not parked.is_behind:
                self._tell_news(parked, self._clock.monotonic())

    def _tell_news(self, parked: _Parked, now: float) -> None:
        """Let the follower know of the watermark and of the log's start soon, if they have moved."""
        progress, fetch = self._machine.logs[parked.fetch.log], parked.fetch
        begins_earlier = fetch.start is not None and fetch.start < progress.start
        if progress.watermark > fetch.watermark or begins_earlier:
            parked.is_behind = True
            parked.due = min(parked.due, now + self._settings.watermark_delay_s)
            self._alarm.ring_by(parked.due)

    def doubt(self) -> None:
        """The lease is not being renewed: let followers ask again, which proves the epoch."""
        now = self._clock.monotonic()
        longest = self._machine.wait_s_max(now)
        for parked in self._all():
            parked.due = min(parked.due, parked.began + longest)
        self._ring()

    def answer_forgotten(self) -> None:
        """Let followers ask again that left the in-sync set: they have to, before they may join."""
        for parked in self._all():
            if not self._machine.knows(parked.fetch.node, parked.follower):
                _answer(parked)

    def answer_all(self) -> None:
        """This node leads no more."""
        self._alarm.cancel()
        for parked in self._all():
            _answer(parked)

    def _ring(self) -> None:
        """Answer what has waited long enough, and set the alarm for the rest."""
        now, following = self._clock.monotonic(), float("inf")
        for parked in self._all():
            if parked.due <= now + _EARLY_S:
                _answer(parked)
            else:
                following = min(following, parked.due)
        if following < float("inf"):
            self._alarm.ring_by(following)

    def _all(self) -> list[_Parked]:
        return [parked for parked_here in self._parked for parked in parked_here]


def _answer(parked: _Parked) -> None:
    if not parked.answered.done():
        parked.answered.set_result(None)
