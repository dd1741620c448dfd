"""What a subscription offers, under the name of its queue: settling, peeking, seeking, redriving."""

from __future__ import annotations

import msgspec

from quiver.edge.http.call import Call
from quiver.edge.http.operation import Handler, Operation, Reply
from quiver.edge.http.routes import subscription_admin, subscriptions
from quiver.errors import SubscriptionNotFound

_SUBSCRIPTION, _QUEUE = "/subscriptions/{name}/", "/queues/{name}/"
_OWN = "/messages"
"""What queues have operations of their own for."""


def _of_queue(operation: Operation) -> Operation:
    return msgspec.structs.replace(
        operation,
        path=operation.path.replace(_SUBSCRIPTION, _QUEUE),
        id=f"queue_{operation.id}",
        handler=_told_as_queue(operation.handler),
        tag="queues",
    )


def _told_as_queue(handler: Handler) -> Handler:
    """A name that is not found is reported as a queue's."""

    async def handle(call: Call) -> Reply:
        try:
            return await handler(call)
        except SubscriptionNotFound:
            name = call.path["name"]
            raise SubscriptionNotFound(f"there is no queue named {name[:200]!r}") from None

    return handle


OPERATIONS = tuple(
    _of_queue(operation)
    for operation in (*subscriptions.OPERATIONS, *subscription_admin.OPERATIONS)
    if operation.path.startswith(_SUBSCRIPTION) and not operation.path.endswith(_OWN)
)
