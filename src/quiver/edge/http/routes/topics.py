"""Topics over HTTP."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.operation import ANYTHING, ARROW, JSON, Operation, Reply
from quiver.edge.http.problems import invalid
from quiver.edge.http.routes.publish import publish
from quiver.edge.http.routes.transaction_header import TRANSACTION_HEADERS
from quiver.edge.http.schemas.messages import (
    ArrowResult,
    Messages,
    NewMessage,
    RawQuery,
    Results,
    Stored,
)
from quiver.edge.http.schemas.topics import (
    OpenTransactionView,
    PartitionView,
    TopicFields,
    TopicList,
    TopicView,
)
from quiver.errors import (
    BodyTimeout,
    BodyTooLarge,
    DiskFull,
    InvalidBatch,
    InvalidRequest,
    InvalidSetting,
    MalformedBody,
    MessageTooLarge,
    PartitionNotFound,
    ReadOnlyTopic,
    TopicExists,
    TopicFull,
    TopicNotFound,
    TransactionAborted,
    TransactionNotFound,
    UnsupportedMediaType,
)
from quiver.model.message import datetime_of
from quiver.model.setting_names import own_names
from quiver.model.topic import TopicSettings, topic_name
from quiver.protocol import TopicInfo

S = TypeVar("S")
BODY_ERRORS = (MalformedBody, BodyTooLarge, BodyTimeout, UnsupportedMediaType)
PUBLISH_ERRORS = (
    *BODY_ERRORS,
    InvalidRequest,
    InvalidBatch,
    MessageTooLarge,
    PartitionNotFound,
    TopicFull,
    ReadOnlyTopic,
    DiskFull,
    TransactionNotFound,
    TransactionAborted,
)
PUBLISH_BODY: dict[str, Any] = {JSON: (NewMessage, Messages), ARROW: None, ANYTHING: None}
PUBLISH_REPLIES: dict[int, tuple[str, dict[str, Any]]] = {
    201: ("All messages are stored.", {JSON: (Stored, Results, ArrowResult)}),
    207: ("Some messages of the list are not stored: see the results.", {JSON: Results}),
}
PUBLISH_HEADERS = {
    **TRANSACTION_HEADERS,
    "Idempotency-Key": "Dedup id of the message. In a list, each message's position is appended.",
    "traceparent": "W3C trace context, added to the headers of each message that has none.",
}
_documents = msgspec.json.Decoder(dict[str, Any])


async def settings_in(call: Call, kind: type[S], *structs: type[msgspec.Struct]) -> S:
    """The settings in a body, under any name that they have. ``structs`` define them."""
    body: dict[str, Any] = await call.json(_documents)
    document = own_names(structs, body)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise invalid(error, document=document) from None


def given(body: msgspec.Struct) -> dict[str, Any]:
    """The settings that a body gives."""
    return dict(msgspec.to_builtins(body))


async def list_topics(call: Call) -> Reply:
    topics = await call.client.list_topics()
    return Reply(200, encode(TopicList(topics=[_view(topic) for topic in topics])))


async def create_topic(call: Call) -> Reply:
    settings = given(await settings_in(call, TopicFields, TopicSettings)) if call.has_body else {}
    name = topic_name(call.path["topic"])
    try:
        made = await call.client.create_topic(name, **settings)
    except TopicExists:
        same = await call.client.create_topic(name, exist_ok=True, **settings)
        return Reply(200, encode(_view(same)))
    return Reply(201, encode(_view(made)), headers=((b"location", f"/topics/{name}".encode()),))


async def describe_topic(call: Call) -> Reply:
    return Reply(200, encode(_view(await call.client.describe_topic(call.path["topic"]))))


async def alter_topic(call: Call) -> Reply:
    changes = given(await settings_in(call, TopicFields, TopicSettings))
    return Reply(200, encode(_view(await call.client.alter_topic(call.path["topic"], **changes))))


async def delete_topic(call: Call) -> Reply:
    call.require_no_body()
    await call.client.delete_topic(call.path["topic"])
    return Reply(204)


async def publish_to_topic(call: Call) -> Reply:
    return await publish(call, call.path["topic"])


def _view(info: TopicInfo) -> TopicView:
    return TopicView(
        name=info.name,
        created=datetime_of(info.created_us),
        settings=info.settings,
        partitions=[
            PartitionView(
                index=one.index,
                leader=one.leader,
                start_offset=one.start_offset,
                next_offset=one.next_offset,
                bytes=one.bytes,
                dedup_forgotten=one.dedup_forgotten,
                open_transactions=[
                    OpenTransactionView(
                        id=str(opened.transaction),
                        since=datetime_of(opened.since_us),
                        first_offset=opened.first_offset,
                    )
                    for opened in one.open_transactions
                ],
            )
            for one in info.partitions
        ],
        origin=info.origin,
        moved_to=info.moved_to,
        diverged_to=info.diverged_to,
    )


_TOPIC = {200: ("The topic.", {JSON: TopicView})}
_PATH = "/topics/{topic}"
OPERATIONS = (
    Operation(
        method="POST",
        path=f"{_PATH}/messages",
        id="publish_to_topic",
        handler=publish_to_topic,
        summary="Publish a message, a list of messages, an Arrow stream or raw bytes.",
        tag="topics",
        query=RawQuery,
        headers=PUBLISH_HEADERS,
        body=PUBLISH_BODY,
        replies=PUBLISH_REPLIES,
        errors=(*PUBLISH_ERRORS, TopicNotFound),
    ),
    Operation(
        method="GET",
        path="/topics",
        id="list_topics",
        handler=list_topics,
        summary="List topics.",
        tag="topics",
        replies={200: ("All topics.", {JSON: TopicList})},
        may_cache=True,
    ),
    Operation(
        method="PUT",
        path=_PATH,
        id="create_topic",
        handler=create_topic,
        summary="Create a topic. If it exists with the same settings, nothing changes.",
        tag="topics",
        body={JSON: TopicFields},
        needs_body=False,
        replies={201: ("The new topic.", {JSON: TopicView}), **_TOPIC},
        errors=(*BODY_ERRORS, InvalidRequest, InvalidSetting, TopicExists),
    ),
    Operation(
        method="GET",
        path=_PATH,
        id="describe_topic",
        handler=describe_topic,
        summary="Show a topic's settings and partitions.",
        tag="topics",
        replies=_TOPIC,
        errors=(TopicNotFound,),
        may_cache=True,
    ),
    Operation(
        method="PATCH",
        path=_PATH,
        id="alter_topic",
        handler=alter_topic,
        summary="Change settings of a topic.",
        tag="topics",
        body={JSON: TopicFields},
        replies=_TOPIC,
        errors=(*BODY_ERRORS, InvalidRequest, InvalidSetting, TopicNotFound, ReadOnlyTopic),
    ),
    Operation(
        method="DELETE",
        path=_PATH,
        id="delete_topic",
        handler=delete_topic,
        summary="Delete a topic and all its messages.",
        tag="topics",
        replies={204: ("The topic is deleted.", {})},
        errors=(MalformedBody, InvalidRequest, TopicNotFound),
    ),
)
