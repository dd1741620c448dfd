"""Publishes on their way into the log, and what becomes of each.

They end in the order in which they were given an offset, so the newest ends when all have. A repeat of one
ends as the original does.
"""

from __future__ import annotations

import asyncio
import errno
from functools import partial

import msgspec

from quiver.aio import forward_outcome
from quiver.broker.partition.producers.dedup import Seen
from quiver.broker.partition.producers.sessions import StoredRange
from quiver.errors import DiskFull, LogClosed, LogFailed, PartitionUnavailable
from quiver.log.log import Log
from quiver.model.batch import StoredBatch
from quiver.model.ids import Microseconds, Offset

UNKNOWN_OFFSET = Offset(-1)
"""Of a repeat so old that where it was stored is forgotten."""


class StoredOnce(msgspec.Struct, frozen=True):
    """Where a publish is stored of which some messages were stored before."""

    base_offset: Offset
    """Of the first that was stored now; the others follow. Below zero if none was."""
    append_time: Microseconds
    repeats: dict[int, Seen]
    """By its place in the batch: where each message is that was stored before."""


Placed = StoredBatch | StoredRange | StoredOnce
"""Where a publish is stored; a ``StoredRange`` if it was a repeat."""


class InFlight:
    """The publishes to one log that are not acknowledged yet."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._placed: dict[Offset, asyncio.Future[Placed]] = {}

    def add(self, base_offset: Offset, placed: asyncio.Future[Placed]) -> None:
        self._placed[base_offset] = placed
        placed.add_done_callback(lambda _: self._placed.pop(base_offset, None))

    def at(self, base_offset: Offset) -> asyncio.Future[Placed] | None:
        """The publish that got this offset; ``None`` once it has ended."""
        return self._placed.get(base_offset)

    def _newest(self) -> asyncio.Future[Placed] | None:
        return next(reversed(self._placed.values()), None)

    async def settle(self) -> None:
        """Wait until it is known of everything published so far whether it is stored."""
        newest = self._newest()
        if newest is not None:
            await asyncio.wait([newest])

    def acknowledge_again(self, stored: StoredRange | None) -> asyncio.Future[Placed]:
        """Done when the original is; when everything is, if which it was is forgotten."""
        again: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        place = stored or StoredRange(0, 0, UNKNOWN_OFFSET, Microseconds(0))
        last = Offset(self._log.staged_offset - 1) if stored is None else stored.base_offset
        if last < self._log.next_offset:
            again.set_result(place)
        elif original := self._placed.get(last) or self._newest():
            original.add_done_callback(partial(forward_outcome, again, place))
        elif self._log.failure is not None:
            again.set_exception(unavailable(self._log.failure))
        else:
            again.set_result(place)  # whoever published it asked for no more than it has
        return again


def unopened(folder: str, error: OSError) -> PartitionUnavailable | DiskFull:
    """What a client is told of a partition that the disk does not let be opened."""
    reason = f"{folder} could not be opened: {error.strerror or error}"
    return unavailable(LogFailed(reason, errno=error.errno))


def unavailable(error: LogFailed | LogClosed) -> PartitionUnavailable | DiskFull:
    """What a client is told of a log that takes no appends."""
    if error.details.get("errno") in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("the node's disk is full: publishing resumes by itself when there is space")
    return PartitionUnavailable(error.message)
