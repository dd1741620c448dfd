"""What the records of a state log tell of messages that are finished: how each ended, and when.

A search begins where the message was published. It ends with the message's end, unless a seek may
have brought the message back after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from quiver.broker.delivery.machine.outcome import Outcome, OutcomeSearch
from quiver.broker.delivery.machine.records import Sought, StateEntry, decode_entries
from quiver.broker.delivery.snapshots import SNAPSHOT_ENTRY
from quiver.log.log import Log
from quiver.model.ids import Microseconds, Offset

_SEARCH_BYTES = 256 << 10
"""So little that a look through it takes a few milliseconds."""


class History:
    """``sought``, by subscription: no seek is in the records from this offset of the log on."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.sought: dict[int, Offset] = {}

    def note(self, entries: Iterable[StateEntry], end: Offset) -> None:
        """These are in the log, below ``end``."""
        for entry in entries:
            if Sought in map(type, entry.records):
                self.sought[entry.subscription] = end

    def forget(self, subscription: int) -> None:
        self.sought.pop(subscription, None)

    async def outcome(
        self, subscription: int, offset: Offset, since: Microseconds
    ) -> Outcome | None:
        """How a message ended that was published at ``since``, if the records still tell."""
        search = OutcomeSearch(offset)
        at = max(await self._log.offset_at(since), self._log.start_offset)
        while at < self._log.next_offset:
            for entry in await self._log.read(at, _SEARCH_BYTES):
                at = entry.next_offset
                if entry.columns == SNAPSHOT_ENTRY:
                    continue
                for change in decode_entries(bytes(entry.body)):
                    for record in change.records if change.subscription == subscription else ():
                        search.apply(record, entry.append_time)
                if search.outcome is not None and at >= self.sought.get(subscription, Offset(0)):
                    return search.outcome
            await asyncio.sleep(0)  # others have their turn
        return search.outcome
