"""Queues over HTTP. A queue is a topic with a subscription of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from quiver.client.api.settings import setting_values
from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.operation import JSON, Operation, Reply
from quiver.edge.http.routes import receive
from quiver.edge.http.routes.publish import publish
from quiver.edge.http.routes.subscriptions import made, view
from quiver.edge.http.routes.topics import (
    BODY_ERRORS,
    PUBLISH_BODY,
    PUBLISH_ERRORS,
    PUBLISH_HEADERS,
    PUBLISH_REPLIES,
    given,
    settings_in,
)
from quiver.edge.http.routes.transaction_header import TRANSACTION_HEADERS
from quiver.edge.http.schemas.deliveries import ReceiveQuery
from quiver.edge.http.schemas.messages import RawQuery
from quiver.edge.http.schemas.subscriptions import (
    QueueChanges,
    QueueFields,
    QueueList,
    SubscriptionView,
)
from quiver.errors import (
    InvalidReceipt,
    InvalidRequest,
    InvalidSetting,
    MalformedBody,
    ReadOnlySubscription,
    ReadOnlyTopic,
    StaleReceipt,
    SubscriptionExists,
    SubscriptionNotFound,
    TopicExists,
    TopicNotFound,
    TransactionAborted,
    TransactionNotFound,
)
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings, topic_name
from quiver.protocol import SubscriptionInfo

_TOPIC_SETTINGS = frozenset(TopicSettings.__struct_fields__)


async def publish_to_queue(call: Call) -> Reply:
    with _asked_for_queue(call) as name:
        return await publish(call, name)


async def receive_from_queue(call: Call) -> Reply:
    with _asked_for_queue(call) as name:
        return await receive.receive_by_get(call, name)


async def delete_message(call: Call) -> Reply:
    with _asked_for_queue(call) as name:
        return await receive.delete(call, name)


async def list_queues(call: Call) -> Reply:
    found = await call.client.list_subscriptions()
    return Reply(200, encode(QueueList(queues=[view(one) for one in found if one.is_queue])))


async def create_queue(call: Call) -> Reply:
    settings = (
        given(await settings_in(call, QueueFields, TopicSettings, SubscriptionSettings))
        if call.has_body
        else {}
    )
    name = topic_name(call.path["queue"])
    return await made(partial(call.client.create_queue, name, **settings), f"/queues/{name}")


async def describe_queue(call: Call) -> Reply:
    return Reply(200, encode(view(await _queue(call))))


async def alter_queue(call: Call) -> Reply:
    changes = given(await settings_in(call, QueueChanges, TopicSettings, SubscriptionSettings))
    of_topic = {name: changes.pop(name) for name in _TOPIC_SETTINGS & changes.keys()}
    setting_values(TopicSettings, of_topic)  # both are right, or nothing changes
    queue = await _queue(call)
    if changes or not of_topic:
        queue = await call.client.alter_subscription(queue.name, **changes)
    if of_topic:
        await call.client.alter_topic(queue.name, **of_topic)
    return Reply(200, encode(view(queue)))


async def delete_queue(call: Call) -> Reply:
    call.require_no_body()
    queue = await _queue(call)
    await call.client.delete_subscription(queue.name)
    return Reply(204)


async def _queue(call: Call) -> SubscriptionInfo:
    with _asked_for_queue(call) as name:
        info = await call.client.describe_subscription(name)
        if not info.is_queue:
            raise SubscriptionNotFound
    return info


@contextmanager
def _asked_for_queue(call: Call) -> Iterator[str]:
    """The queue's name from the path. A name that is not found is reported as a queue's."""
    name = call.path["queue"]
    try:
        yield name
    except (SubscriptionNotFound, TopicNotFound):
        raise SubscriptionNotFound(f"there is no queue named {name[:200]!r}") from None


_QUEUE = {200: ("The queue.", {JSON: SubscriptionView})}
_PATH = "/queues/{queue}"
OPERATIONS = (
    Operation(
        method="POST",
        path=f"{_PATH}/messages",
        id="publish_to_queue",
        handler=publish_to_queue,
        summary="Publish a message, a list of messages, an Arrow stream or raw bytes.",
        tag="queues",
        query=RawQuery,
        headers=PUBLISH_HEADERS,
        body=PUBLISH_BODY,
        replies=PUBLISH_REPLIES,
        errors=(*PUBLISH_ERRORS, SubscriptionNotFound),
    ),
    Operation(
        method="GET",
        path=f"{_PATH}/messages",
        id="receive_from_queue",
        handler=receive_from_queue,
        summary="Receive messages.",
        tag="queues",
        query=ReceiveQuery,
        replies=receive.REPLIES,
        errors=receive.ERRORS,
    ),
    Operation(
        method="DELETE",
        path=f"{_PATH}/messages/{{receipt_handle}}",
        id="delete_message",
        handler=delete_message,
        summary="Acknowledge a message.",
        tag="queues",
        headers=TRANSACTION_HEADERS,
        replies={204: ("The message is acknowledged.", {})},
        errors=(
            MalformedBody,
            InvalidRequest,
            InvalidReceipt,
            StaleReceipt,
            SubscriptionNotFound,
            TransactionAborted,
            TransactionNotFound,
        ),
    ),
    Operation(
        method="GET",
        path="/queues",
        id="list_queues",
        handler=list_queues,
        summary="List queues.",
        tag="queues",
        replies={200: ("All queues.", {JSON: QueueList})},
        may_cache=True,
    ),
    Operation(
        method="PUT",
        path=_PATH,
        id="create_queue",
        handler=create_queue,
        summary="Create a queue. If it exists with the same settings, nothing changes.",
        tag="queues",
        body={JSON: QueueFields},
        needs_body=False,
        replies={201: ("The new queue.", {JSON: SubscriptionView}), **_QUEUE},
        errors=(*BODY_ERRORS, InvalidRequest, InvalidSetting, SubscriptionExists, TopicExists),
    ),
    Operation(
        method="GET",
        path=_PATH,
        id="describe_queue",
        handler=describe_queue,
        summary="Show a queue's settings and its messages by state.",
        tag="queues",
        replies=_QUEUE,
        errors=(SubscriptionNotFound,),
        may_cache=True,
    ),
    Operation(
        method="PATCH",
        path=_PATH,
        id="alter_queue",
        handler=alter_queue,
        summary="Change settings of a queue: how it delivers, and how its topic stores messages.",
        tag="queues",
        body={JSON: QueueChanges},
        replies=_QUEUE,
        errors=(
            *BODY_ERRORS,
            InvalidRequest,
            InvalidSetting,
            SubscriptionNotFound,
            ReadOnlyTopic,
            ReadOnlySubscription,
        ),
    ),
    Operation(
        method="DELETE",
        path=_PATH,
        id="delete_queue",
        handler=delete_queue,
        summary="Delete a queue and all its messages.",
        tag="queues",
        replies={204: ("The queue is deleted.", {})},
        errors=(MalformedBody, InvalidRequest, SubscriptionNotFound),
    ),
)
