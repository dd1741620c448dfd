"""A partition of a copied subscription: how far it is at its source, as the last snapshot says.

Nothing is delivered from it here. What it shows is what would be delivered after a promote.
"""

from __future__ import annotations

import msgspec

from quiver.broker.delivery.machine.view import DeliveryView
from quiver.broker.delivery.progress import Progress, progress_of
from quiver.broker.delivery.state_log import DeliveryStateLog


class CopiedPartition(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    state: DeliveryStateLog
    subscription: int

    @property
    def is_open(self) -> bool:
        """Whether the partition is still the one that this was made for."""
        is_known = self.subscription in self.state.machines
        return is_known and self.state.is_open and self.state.failure is None

    @property
    def view(self) -> DeliveryView:
        """Of the last snapshot: each puts another machine in the place of the one before."""
        return self.state.machines[self.subscription].view

    @property
    def progress(self) -> Progress:
        return progress_of(self.view, self.state.data)
