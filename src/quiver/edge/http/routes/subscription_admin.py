"""Administration of subscriptions over HTTP: seek, peek, purge, redrive, and messages by id."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import UNSET

from quiver.client.api.subscription_admin import STATES
from quiver.client.consumer.peeked import MessageStatus, PeekedMessage
from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.off_loop import off_loop
from quiver.edge.http.operation import JSON, Operation, Reply
from quiver.edge.http.routes.receive import payload_bytes, seen
from quiver.edge.http.routes.topics import BODY_ERRORS
from quiver.edge.http.schemas.browse import MessageState, PeekQuery, Seen, SubscriptionState
from quiver.edge.http.schemas.subscription_admin import Count, PurgeOptions, RedriveOptions, Seek
from quiver.edge.messages.message_ids import message_ids
from quiver.errors import (
    InvalidFilter,
    InvalidRequest,
    InvalidSetting,
    MalformedBody,
    MessageNotFound,
    OffsetOutOfRange,
    PartitionNotFound,
    ReadOnlySubscription,
    ReadOnlyTopic,
    SubscriptionNotFound,
    TopicNotFound,
)

_seeks = msgspec.json.Decoder(Seek)
_purges = msgspec.json.Decoder(PurgeOptions)
_redrives = msgspec.json.Decoder(RedriveOptions)


async def seek(call: Call) -> Reply:
    given = await call.json(_seeks)
    if (given.to is None) == (given.places is None):
        raise InvalidRequest("to: give either to or places", field="to")
    if given.places is not None:
        places = {(place.topic, place.partition): place.offset for place in given.places}
        await call.client.seek(call.path["name"], places)
    else:
        assert given.to is not None
        await call.client.seek(call.path["name"], _position(given.to))
    return Reply(204)


def _position(to: int | str) -> int | str | datetime:
    try:
        return msgspec.convert(to, datetime) if isinstance(to, str) else to
    except msgspec.ValidationError:
        return to


async def peek(call: Call) -> Reply:
    query = call.query(PeekQuery)
    states = STATES if query.state is UNSET else (query.state,)
    found = await call.client.peek(call.path["name"], query.batch_size, states=states)
    return Reply(200, await off_loop(payload_bytes(found), _seen_text, found[: query.batch_size]))


def _seen_text(found: list[PeekedMessage]) -> bytes:
    ids = message_ids(found)
    return encode(Seen(messages=[seen(one, id) for one, id in zip(found, ids, strict=True)]))


async def purge(call: Call) -> Reply:
    given = await call.json(_purges) if call.has_body else PurgeOptions()
    count = await call.client.purge(call.path["name"], filter=given.filter)
    return Reply(200, encode(Count(messages=count)))


async def redrive(call: Call) -> Reply:
    """Redrive until done or until the client disconnects."""
    given = await call.json(_redrives) if call.has_body else RedriveOptions()
    count = await call.while_connected(
        call.client.redrive(
            call.path["name"],
            to=given.to,
            filter=given.filter,
            dry_run=given.dry_run,
            rate=given.rate,
            max_messages=given.max_messages,
        )
    )
    return Reply(200, encode(Count(messages=count)))


async def find_message(call: Call) -> Reply:
    found = await call.client.message_status(call.path["topic"], call.path["id"])
    size = 0 if found.message is None else len(found.message.payload)
    return Reply(200, await off_loop(size, _state_text, found))


def _state_text(found: MessageStatus) -> bytes:
    state = MessageState(
        topic=found.topic,
        partition=found.partition,
        offset=found.offset,
        message=None if found.message is None else seen(found.message, found.message.id),
        subscriptions=[
            SubscriptionState(
                subscription=one.subscription,
                state=one.state,
                deliveries=one.deliveries,
                consumer=one.consumer,
                until=one.until,
                at=one.at,
            )
            for one in found.subscriptions
        ],
    )
    return encode(state)


async def cancel_message(call: Call) -> Reply:
    call.require_no_body()
    count = await call.client.cancel(call.path["topic"], call.path["id"])
    return Reply(200, encode(Count(messages=count)))


_PATH = "/subscriptions/{name}"
_COUNTED = {200: ("The number of messages.", {JSON: Count})}
_ERRORS = (
    *BODY_ERRORS,
    InvalidRequest,
    InvalidSetting,
    InvalidFilter,
    SubscriptionNotFound,
    ReadOnlySubscription,
)
OPERATIONS = (
    Operation(
        method="POST",
        path=f"{_PATH}/seek",
        id="seek",
        handler=seek,
        summary="Move a subscription to another position. Earlier receipts become invalid.",
        tag="subscriptions",
        body={JSON: Seek},
        replies={204: ("The position is set.", {})},
        errors=(*_ERRORS, TopicNotFound, PartitionNotFound, OffsetOutOfRange),
    ),
    Operation(
        method="GET",
        path=f"{_PATH}/peek",
        id="peek",
        handler=peek,
        summary="Show pending messages without receiving them.",
        tag="subscriptions",
        query=PeekQuery,
        replies={200: ("The messages.", {JSON: Seen})},
        errors=(InvalidRequest, SubscriptionNotFound),
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/purge",
        id="purge",
        handler=purge,
        summary="Discard pending messages, all or those that match a filter.",
        tag="subscriptions",
        body={JSON: PurgeOptions},
        needs_body=False,
        replies=_COUNTED,
        errors=_ERRORS,
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/redrive",
        id="redrive",
        handler=redrive,
        summary="Send dead letters back to their queue or subscription, or count them.",
        tag="subscriptions",
        body={JSON: RedriveOptions},
        needs_body=False,
        replies=_COUNTED,
        errors=(*_ERRORS, TopicNotFound, ReadOnlyTopic),
    ),
    Operation(
        method="GET",
        path="/topics/{topic}/messages/{id}",
        id="find_message",
        handler=find_message,
        summary="Show a message by its id, and its state in each subscription.",
        tag="topics",
        replies={200: ("The message.", {JSON: MessageState})},
        errors=(InvalidRequest, TopicNotFound, MessageNotFound),
    ),
    Operation(
        method="DELETE",
        path="/topics/{topic}/messages/{id}",
        id="cancel_message",
        handler=cancel_message,
        summary="Cancel a delayed message. The count is 0 if it is already due.",
        tag="topics",
        replies=_COUNTED,
        errors=(MalformedBody, InvalidRequest, TopicNotFound, MessageNotFound, ReadOnlyTopic),
    ),
)
