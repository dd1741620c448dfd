"""Subscriptions over HTTP. These paths also work for queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.operation import ARROW, JSON, Operation, Reply
from quiver.edge.http.routes import receive
from quiver.edge.http.routes.topics import BODY_ERRORS, given, settings_in
from quiver.edge.http.routes.transaction_header import TRANSACTION_HEADERS
from quiver.edge.http.schemas.deliveries import ReceiveQuery
from quiver.edge.http.schemas.settlements import Ack, Extend, Nack, Reject, Settled
from quiver.edge.http.schemas.subscriptions import (
    SubscriptionChanges,
    SubscriptionFields,
    SubscriptionList,
    SubscriptionView,
)
from quiver.errors import (
    InvalidFilter,
    InvalidReceipt,
    InvalidRequest,
    InvalidSetting,
    MalformedBody,
    ReadOnlySubscription,
    StaleReceipt,
    SubscriptionExists,
    SubscriptionNotFound,
    TopicExists,
    TopicNotFound,
    TransactionAborted,
    TransactionNotFound,
)
from quiver.model.message import datetime_of
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import checked_name
from quiver.protocol import SubscriptionInfo


def view(info: SubscriptionInfo) -> SubscriptionView:
    return SubscriptionView(
        name=info.name,
        created=datetime_of(info.created_us),
        is_queue=info.is_queue,
        settings=info.settings,
        mirror=info.mirror,
        ready=info.ready,
        delayed=info.delayed,
        leased=info.leased,
        dead=info.dead,
        unseen=info.unseen,
        members=info.members,
        consumers=info.consumers,
        partitions=info.partitions,
    )


async def list_subscriptions(call: Call) -> Reply:
    found = await call.client.list_subscriptions()
    return Reply(200, encode(SubscriptionList(subscriptions=[view(one) for one in found])))


async def create_subscription(call: Call) -> Reply:
    body = await settings_in(call, SubscriptionFields, SubscriptionSettings)
    settings = given(body)
    name = checked_name(call.path["name"], "subscription")
    if "topics" not in settings:
        raise InvalidRequest("topics: give at least one topic", field="topics")
    if settings.pop("start_time", None) is not None:
        settings["start"] = body.start_time  # type: ignore[attr-defined]
    create = partial(call.client.create_subscription, name, **settings)
    return await made(create, f"/subscriptions/{name}")


async def made(create: Callable[..., Awaitable[SubscriptionInfo]], path: str) -> Reply:
    """The answer to a create: 201 if it is new, 200 if it exists with the same settings."""
    try:
        info = await create()
    except (SubscriptionExists, TopicExists):
        return Reply(200, encode(view(await create(exist_ok=True))))
    return Reply(201, encode(view(info)), headers=((b"location", path.encode()),))


async def describe_subscription(call: Call) -> Reply:
    return Reply(200, encode(view(await call.client.describe_subscription(call.path["name"]))))


async def alter_subscription(call: Call) -> Reply:
    changes = given(await settings_in(call, SubscriptionChanges, SubscriptionSettings))
    info = await call.client.alter_subscription(call.path["name"], **changes)
    return Reply(200, encode(view(info)))


async def delete_subscription(call: Call) -> Reply:
    call.require_no_body()
    info = await call.client.describe_subscription(call.path["name"])
    if info.is_queue:
        raise InvalidRequest(f"{info.name!r} is a queue; delete it with DELETE /queues/{info.name}")
    await call.client.delete_subscription(info.name)
    return Reply(204)


async def receive_messages(call: Call) -> Reply:
    return await receive.receive_by_get(call, call.path["name"])


async def receive_by_post(call: Call) -> Reply:
    return await receive.receive(call, call.path["name"])


async def acknowledge(call: Call) -> Reply:
    return await receive.ack(call, call.path["name"])


async def nack(call: Call) -> Reply:
    return await receive.nack(call, call.path["name"])


async def reject(call: Call) -> Reply:
    return await receive.reject(call, call.path["name"])


async def extend(call: Call) -> Reply:
    return await receive.extend(call, call.path["name"])


_SUBSCRIPTION = {200: ("The subscription.", {JSON: SubscriptionView})}
_SETTLED = {200: ("The number of messages settled.", {JSON: Settled})}
_SETTLE_ERRORS = (
    *BODY_ERRORS,
    InvalidRequest,
    InvalidReceipt,
    StaleReceipt,
    SubscriptionNotFound,
)
_PATH = "/subscriptions/{name}"
OPERATIONS = (
    Operation(
        method="GET",
        path=f"{_PATH}/messages",
        id="receive_messages",
        handler=receive_messages,
        summary="Receive messages.",
        tag="subscriptions",
        query=ReceiveQuery,
        replies=receive.REPLIES,
        errors=receive.ERRORS,
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/receive",
        id="receive",
        handler=receive_by_post,
        summary="Receive messages, like the GET, which browsers may not use.",
        tag="subscriptions",
        query=ReceiveQuery,
        replies=receive.REPLIES,
        errors=receive.ERRORS,
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/ack",
        id="acknowledge",
        handler=acknowledge,
        summary="Acknowledge messages.",
        tag="subscriptions",
        headers=TRANSACTION_HEADERS,
        body={JSON: Ack, ARROW: None},
        replies=_SETTLED,
        errors=(*_SETTLE_ERRORS, TransactionAborted, TransactionNotFound),
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/nack",
        id="nack",
        handler=nack,
        summary="Report messages as failed, so that they are delivered again.",
        tag="subscriptions",
        body={JSON: Nack},
        replies=_SETTLED,
        errors=_SETTLE_ERRORS,
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/reject",
        id="reject",
        handler=reject,
        summary="Make messages dead letters now.",
        tag="subscriptions",
        body={JSON: Reject},
        replies=_SETTLED,
        errors=_SETTLE_ERRORS,
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/extend",
        id="extend",
        handler=extend,
        summary="Extend the leases of messages.",
        tag="subscriptions",
        body={JSON: Extend},
        replies=_SETTLED,
        errors=_SETTLE_ERRORS,
    ),
    Operation(
        method="GET",
        path="/subscriptions",
        id="list_subscriptions",
        handler=list_subscriptions,
        summary="List subscriptions, including those of queues.",
        tag="subscriptions",
        replies={200: ("All subscriptions.", {JSON: SubscriptionList})},
        may_cache=True,
    ),
    Operation(
        method="PUT",
        path=_PATH,
        id="create_subscription",
        handler=create_subscription,
        summary="Create a subscription. If it exists with the same settings, nothing changes.",
        tag="subscriptions",
        body={JSON: SubscriptionFields},
        replies={201: ("The new subscription.", {JSON: SubscriptionView}), **_SUBSCRIPTION},
        errors=(
            *BODY_ERRORS,
            InvalidRequest,
            InvalidSetting,
            InvalidFilter,
            SubscriptionExists,
            TopicNotFound,
        ),
    ),
    Operation(
        method="GET",
        path=_PATH,
        id="describe_subscription",
        handler=describe_subscription,
        summary="Show a subscription's settings and its messages by state.",
        tag="subscriptions",
        replies=_SUBSCRIPTION,
        errors=(SubscriptionNotFound,),
        may_cache=True,
    ),
    Operation(
        method="PATCH",
        path=_PATH,
        id="alter_subscription",
        handler=alter_subscription,
        summary="Change settings of a subscription.",
        tag="subscriptions",
        body={JSON: SubscriptionChanges},
        replies=_SUBSCRIPTION,
        errors=(
            *BODY_ERRORS,
            InvalidRequest,
            InvalidSetting,
            InvalidFilter,
            SubscriptionNotFound,
            TopicNotFound,
            ReadOnlySubscription,
        ),
    ),
    Operation(
        method="DELETE",
        path=_PATH,
        id="delete_subscription",
        handler=delete_subscription,
        summary="Delete a subscription. The messages stay in their topics.",
        tag="subscriptions",
        replies={204: ("The subscription is deleted.", {})},
        errors=(MalformedBody, InvalidRequest, SubscriptionNotFound),
    ),
)
