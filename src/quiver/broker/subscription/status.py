"""The state of a message in a subscription, as users read it."""

from __future__ import annotations

from quiver.broker.delivery.look_ahead import passes
from quiver.broker.delivery.machine.outcome import DEAD, FINISHED, Outcome
from quiver.broker.delivery.partition_delivery import PartitionDelivery
from quiver.model.batch import StoredBatch
from quiver.model.ids import Microseconds, Offset
from quiver.protocol import Status

BEFORE_SUBSCRIPTION, FILTERED = "before-subscription", "filtered"
_PENDING = {
    "ready": "pending",
    "delayed": "delayed",
    "leased": "leased",
    "dead_letter_pending": DEAD,
}


async def status_of(
    subscription: str,
    delivery: PartitionDelivery,
    offset: Offset,
    published: Microseconds,
    *,
    start: Offset,
    entry: StoredBatch | None,
) -> Status:
    """``start`` is where the subscription began; ``entry`` is the message, if it is still there."""
    view = delivery.view
    state = view.state_of(offset)
    if state in _PENDING:
        lease = view.holder(offset)
        return Status(
            subscription=subscription,
            state=_PENDING[state],
            deliveries=view.deliveries(offset),
            consumer=None if lease is None else lease.consumer,
            until_us=view.due_of(offset) if lease is None else lease.deadline,
        )
    outcome = await delivery.outcome(offset, published) or _unrecorded(
        delivery, offset, start, entry, is_dead=state == "dead"
    )
    return Status(
        subscription=subscription,
        state=outcome.state,
        deliveries=outcome.deliveries,
        consumer=outcome.consumer,
        at_us=outcome.time,
    )


def _unrecorded(
    delivery: PartitionDelivery,
    offset: Offset,
    start: Offset,
    entry: StoredBatch | None,
    *,
    is_dead: bool,
) -> Outcome:
    """The end of a message of which no record tells, or none any more."""
    if is_dead:
        return Outcome(DEAD)
    if offset < start:
        return Outcome(BEFORE_SUBSCRIPTION)
    if entry is not None and not passes(delivery.machine, entry):
        return Outcome(FILTERED)
    return Outcome(FINISHED)
