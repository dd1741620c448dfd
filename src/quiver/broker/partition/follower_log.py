"""A partition's log as a follower has it: everything that it knows to be committed can be read.

That may be less than the leader has, but it is never taken back. Messages of transactions are left to
the leader.
"""

from __future__ import annotations

from itertools import takewhile

from quiver.cluster.replica.replica import Replica
from quiver.errors import CorruptLog
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import Offset

_LOOK_S = 0.05
"""How often a reader that waits looks for more."""


class FollowerLog:
    """The log with this ``index`` of a replica that is in sync."""

    def __init__(self, replica: Replica, index: int, clock: Clock) -> None:
        self._replica = replica
        self._held = replica.logs[index]
        self._clock = clock

    @property
    def start_offset(self) -> Offset:
        return self._held.log.start_offset

    @property
    def next_offset(self) -> Offset:
        return self._held.watermark

    async def read(self, offset: Offset, bytes_max: int = 1 << 20) -> list[StoredBatch]:
        """Committed entries from the one that holds ``offset`` on; none if it is not that far.

        They end before the first that belongs to a transaction: the leader knows what became of it.
        """
        if offset >= self.next_offset:
            return []
        try:
            entries = await self._held.log.read(offset, bytes_max)
        except CorruptLog as error:
            self._replica.met_damage(error)
            raise
        end = self.next_offset
        return list(takewhile(lambda entry: entry.next_offset <= end and not entry.flags, entries))

    async def wait_beyond(self, offset: Offset, timeout_s: float) -> bool:
        deadline = self._clock.monotonic() + timeout_s
        while self.next_offset <= offset:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                return False
            await self._clock.sleep(min(left_s, _LOOK_S))
        return True
