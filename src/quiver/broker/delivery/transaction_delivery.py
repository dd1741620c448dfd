"""The delivery of one partition to consumers that acknowledge in transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyroaring import BitMap64

from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.session_delivery import Commit
from quiver.broker.delivery.state_log import DeliveryStateLog
from quiver.metrics.traffic import SubscriptionCounts
from quiver.model.clock import Clock
from quiver.model.transaction import TransactionId


class TransactionDelivery:
    """The state log ends transactions, for all subscriptions of the partition at once."""

    def __init__(
        self,
        machine: DeliveryMachine,
        state: DeliveryStateLog,
        commit: Commit,
        clock: Clock,
        counts: SubscriptionCounts,
        count_time: Callable[[BitMap64], None],
    ) -> None:
        self._machine = machine
        self._state = state
        self._commit = commit
        self._clock = clock
        self._counts = counts
        self._count_time = count_time

    def hold(
        self, lease_id: int, offsets: BitMap64, transaction: TransactionId
    ) -> tuple[BitMap64, asyncio.Future[None] | None]:
        """Let messages wait for a transaction; those that the lease still held, and when it is durable.

        What was held before is not confirmed again sooner than it is the first time.
        """
        now = self._clock.time_us()
        held, records = self._machine.hold(lease_id, offsets, transaction, now)
        if not records:
            return held, self._state.underway() if held else None
        return held, self._commit(records)

    def acked(self, offsets: BitMap64) -> None:
        """Their transaction is committed: count them."""
        self._counts.acked += len(offsets)
        self._count_time(offsets)
