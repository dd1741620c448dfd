"""How far one subscription has come in one partition. Descriptions and metrics both show this.

``committed <= end``, and ``lag`` counts what is stored and not finished, so it is 0 exactly if
``committed`` is ``end``. Messages that retention has removed count nowhere.
"""

from __future__ import annotations

import msgspec

from quiver.broker.delivery.machine.view import DeliveryView, Depth
from quiver.log.log import LogReader
from quiver.model.ids import Offset


class Progress(msgspec.Struct, frozen=True):
    committed: Offset
    """Every message before this offset is finished."""
    end: Offset
    """The offset of the next message that is stored."""
    depth: Depth
    unseen: int
    """Stored messages that the subscription has not read yet."""

    @property
    def first_unseen(self) -> Offset:
        return Offset(self.end - self.unseen)

    @property
    def lag(self) -> int:
        depth = self.depth
        known = depth.ready + depth.delayed + depth.leased + depth.dead_letter_pending
        return known + self.unseen


def progress_of(view: DeliveryView, log: LogReader) -> Progress:
    end, start = log.next_offset, log.start_offset
    return Progress(
        committed=min(end, max(view.floor, start)),
        end=end,
        depth=view.depth,
        unseen=max(0, end - max(view.observed_to, start)),
    )
