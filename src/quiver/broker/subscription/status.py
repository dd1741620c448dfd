"""The state of a message in a subscription, as users read it."""

from __future__ import annotations

from quiver.broker.delivery.machine.view import DeliveryView
from quiver.model.ids import Offset
from quiver.protocol import Status

_WORDS = {
    "ready": "pending",
    "delayed": "delayed",
    "leased": "leased",
    "dead_letter_pending": "dead-lettered",
    "dead": "dead-lettered",
    "finished": "acknowledged",
}


def status_of(subscription: str, view: DeliveryView, offset: Offset) -> Status:
    """What was filtered out, expired or cancelled counts as acknowledged."""
    lease = view.holder(offset)
    return Status(
        subscription=subscription,
        state=_WORDS[view.state_of(offset)],
        deliveries=view.deliveries(offset),
        consumer=None if lease is None else lease.consumer,
        until_us=view.due_of(offset) if lease is None else lease.deadline,
    )
