"""Settling messages of a subscription: whoever shows a lease says what becomes of its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from pyroaring import BitMap64

from quiver.broker.delivery.lease_token import LeaseToken, TokenSigner
from quiver.broker.delivery.partition_delivery import PartitionDelivery, Portion
from quiver.broker.group.coordinator import GroupCoordinator
from quiver.broker.subscription.catalog import SubscriptionRecord
from quiver.broker.subscription.sessions import ConsumerSessions
from quiver.broker.subscription.settlement import Settlement, visibility_us_of
from quiver.errors import InvalidReceipt, InvalidRequest, NotLeader
from quiver.model.subscription import Guarantee, Ordering
from quiver.model.transaction import TransactionId

Change = Callable[[PartitionDelivery, int, BitMap64], tuple[BitMap64, asyncio.Future[None] | None]]


class Host(Protocol):
    """The subscription whose messages are settled."""

    record: SubscriptionRecord
    membership: GroupCoordinator | None
    sessions: ConsumerSessions
    deliveries: dict[tuple[int, int], PartitionDelivery]

    def notify(self) -> None:
        """Something may be ready."""

    async def wait_for_dead_letters(self) -> None:
        """Wait until pending dead letters are stored, as far as they can be now."""


class Settler:
    """``delivers`` says of a topic's number and a partition whether the subscription delivers that, on
    whatever node."""

    def __init__(
        self, subscription: Host, signer: TokenSigner, delivers: Callable[[int, int], bool]
    ) -> None:
        self._subscription = subscription
        self._signer = signer
        self._delivers = delivers

    def ack(
        self, settlements: Iterable[Settlement]
    ) -> tuple[list[Settlement], list[asyncio.Future[None]]]:
        """Acknowledge messages; those whose lease had ended, and what makes the others durable."""
        stale, stored = self._change(settlements, PartitionDelivery.ack)
        if self._subscription.record.settings.ordering is not Ordering.NONE:
            for durable in stored:  # others may come after these
                durable.add_done_callback(lambda _: self._subscription.notify())
        return stale, stored

    def hold(
        self, settlements: Iterable[Settlement], transaction: TransactionId
    ) -> tuple[list[Settlement], list[asyncio.Future[None]]]:
        """Acknowledge messages if a transaction is committed, and return them if it is aborted.

        Those whose lease had ended, and what makes it durable that the others wait.
        """
        record = self._subscription.record
        if record.settings.guarantee is Guarantee.AT_MOST_ONCE:
            raise InvalidRequest(
                f"{record.name!r} delivers at most once: its messages are finished when they are "
                "delivered, and no transaction can return them. Use another guarantee."
            )
        return self._change(
            settlements,
            lambda delivery, lease_id, offsets: delivery.transactions.hold(
                lease_id, offsets, transaction
            ),
        )

    async def nack(
        self, settlements: Iterable[Settlement], *, delay_s: float | None, error: str | None
    ) -> list[Settlement]:
        """Give messages back to be tried again; those whose lease had ended."""
        delay_us = None if delay_s is None else visibility_us_of(delay_s)
        stale = await self._settle(
            settlements,
            lambda delivery, lease_id, offsets: delivery.nack(lease_id, offsets, delay_us, error),
        )
        self._subscription.notify()
        await self._subscription.wait_for_dead_letters()
        return stale

    async def reject(
        self, settlements: Iterable[Settlement], *, error: str | None
    ) -> list[Settlement]:
        """Make messages dead letters now; those whose lease had ended."""
        stale = await self._settle(
            settlements,
            lambda delivery, lease_id, offsets: delivery.reject(lease_id, offsets, error),
        )
        await self._subscription.wait_for_dead_letters()
        self._subscription.notify()  # others may come after these
        return stale

    async def return_unread(self, settlements: Iterable[Settlement]) -> list[Settlement]:
        """Nobody has looked at these: they are ready again; those whose lease had ended."""
        stale = await self._settle(
            settlements,
            lambda delivery, lease_id, offsets: delivery.return_unread(lease_id, offsets),
        )
        self._subscription.notify()
        return stale

    async def extend(
        self, settlements: Iterable[Settlement], *, visibility_s: float
    ) -> list[Settlement]:
        """Hold messages for longer, from now on; those whose lease had ended."""
        visibility_us = visibility_us_of(visibility_s)
        return await self._settle(
            settlements,
            lambda delivery, lease_id, offsets: delivery.extend(lease_id, offsets, visibility_us),
        )

    async def _settle(self, settlements: Iterable[Settlement], change: Change) -> list[Settlement]:
        stale, stored = self._change(settlements, change)
        await all_stored(stored)
        return stale

    def _change(
        self, settlements: Iterable[Settlement], change: Change
    ) -> tuple[list[Settlement], list[asyncio.Future[None]]]:
        """Settle messages; those whose lease had ended, and what makes the change durable."""
        stale: list[Settlement] = []
        stored: set[asyncio.Future[None]] = set()
        found = [self._find(one) for one in settlements]
        for state in {delivery.state for _, _, delivery in found if delivery is not None}:
            state.require_current()
        for settlement, token, delivery in found:
            if delivery is None:
                stale.append(settlement)
                continue
            held, durable = change(delivery, token.lease_id, settlement.offsets)
            if durable is not None:
                stored.add(durable)
            if len(held) < len(settlement.offsets):
                stale.append(Settlement(settlement.token, settlement.offsets - held))
        if self._subscription.membership is not None:
            self._subscription.membership.hand_over()
        if any(box.sessions.view.has_suspects for _, _, box in found if box is not None):
            self._subscription.notify()  # the next of them may come
        self._subscription.sessions.settled()
        return stale, list(stored)

    def find_lease(self, lease: bytes) -> tuple[LeaseToken, PartitionDelivery | None]:
        """What a lease says, and the delivery that it is of, if this node has it."""
        token = self._signer.verify(lease)
        if token.subscription != self._subscription.record.number:
            raise InvalidReceipt(
                f"the receipt does not belong to {self._subscription.record.name!r}"
            )
        return token, self._subscription.deliveries.get((token.topic, token.partition))

    def _find(
        self, settlement: Settlement
    ) -> tuple[Settlement, LeaseToken, PartitionDelivery | None]:
        token, delivery = self.find_lease(settlement.token)
        if delivery is None and self._delivers(token.topic, token.partition):
            raise NotLeader("the leader of the receipt's partition is changing; try again")
        return settlement, token, delivery

    def token(self, portion: Portion) -> bytes:
        """What the consumer shows to settle this portion."""
        return self._signer.sign(
            LeaseToken(
                self._subscription.record.number,
                portion.topic_number,
                portion.partition,
                portion.taken.lease_id,
            )
        )


async def all_stored(stored: Iterable[asyncio.Future[None] | None]) -> None:
    for durable in stored:
        if durable is not None:
            await asyncio.shield(durable)  # others wait for it too
