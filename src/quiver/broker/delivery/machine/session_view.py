"""Questions about what consumers with a session have. Nothing changes here."""

from __future__ import annotations

from pyroaring import BitMap64

from quiver.broker.delivery.machine.leases import Lease
from quiver.broker.delivery.machine.state import DeliveryState


class SessionView:
    """Read-only, like ``DeliveryView``."""

    def __init__(self, state: DeliveryState) -> None:
        self._state = state

    def reserved(self, lease_id: int) -> BitMap64:
        """What was pushed under the lease and has not been started."""
        return self._state.reserved.of(lease_id)

    def lease(self, lease_id: int) -> list[Lease]:
        """What was started under the lease and is not settled, in parts, each with its deadline."""
        return self._state.leases.of(lease_id)

    def has_messages(self, consumer: str) -> bool:
        """Whether a consumer has messages, be it that they were only pushed to it."""
        state = self._state
        return bool(state.reserved.of_consumer(consumer) or state.leases.of_consumer(consumer))

    @property
    def has_suspects(self) -> bool:
        """Whether a consumer ended without a word while it had messages that are still pending."""
        return bool(self._state.suspects)

    def has_suspect(self, consumer: str) -> bool:
        """Whether the consumer has a message that another one had when it ended without a word."""
        suspects = self._state.suspects
        if not suspects:
            return False
        reserved = self._state.reserved.of_consumer(consumer).values()
        leased = [lease.offsets for lease in self._state.leases.of_consumer(consumer)]
        return any(suspects.intersect(offsets) for offsets in (*reserved, *leased))
