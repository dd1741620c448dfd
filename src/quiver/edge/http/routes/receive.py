"""Receive and settle messages over HTTP, for queues and subscriptions."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET
from pyroaring import BitMap64

from quiver.client import AsyncClient
from quiver.client.consumer.peeked import PeekedMessage
from quiver.client.consumer.received import ReceivedMessage
from quiver.edge.http.arrow import receipts_in, stream_of
from quiver.edge.http.call import Call, ClientGone
from quiver.edge.http.edge import encode
from quiver.edge.http.json_text import as_json
from quiver.edge.http.off_loop import off_loop
from quiver.edge.http.operation import ARROW, JSON, Reply
from quiver.edge.http.routes.transaction_header import client_of
from quiver.edge.http.schemas.browse import SeenMessage
from quiver.edge.http.schemas.deliveries import (
    WAIT_S_MAX,
    Delivered,
    DeliveredMessage,
    ReceiveQuery,
)
from quiver.edge.http.schemas.settlements import Ack, Extend, Nack, Reject, Settled
from quiver.edge.messages.message_ids import message_ids
from quiver.errors import (
    InvalidRequest,
    MalformedBody,
    NotAcceptable,
    Overloaded,
    QuiverError,
    StaleReceipt,
    SubscriptionNotFound,
)
from quiver.model.message import PRIORITY_DEFAULT, Message, datetime_of
from quiver.model.receipt import receipt
from quiver.model.units import seconds

_acks = msgspec.json.Decoder(Ack)
_nacks = msgspec.json.Decoder(Nack)
_rejects = msgspec.json.Decoder(Reject)
_extends = msgspec.json.Decoder(Extend)
_moment = lru_cache(1024)(datetime_of)

REPLIES: dict[int, tuple[str, dict[str, Any]]] = {
    200: ("The messages; empty if there are none.", {JSON: Delivered, ARROW: None})
}
"""The replies of ``receive`` for OpenAPI; ``ERRORS`` are its errors."""
ERRORS = (InvalidRequest, MalformedBody, NotAcceptable, SubscriptionNotFound, Overloaded)


async def receive_by_get(call: Call, name: str) -> Reply:
    """The same as ``receive``. Any page can have a browser send a GET, so not every GET counts."""
    call.edge.access.check_receive(call.fields)
    return await receive(call, name)


async def receive(call: Call, name: str) -> Reply:
    """Receive messages. A wait ends with the connection; messages that arrive after it go back."""
    query = call.query(ReceiveQuery)
    call.require_no_body()
    kind = call.accepts(JSON, ARROW)
    visibility = None if query.visibility is UNSET else query.visibility
    wait_s = _wait_s(query)
    receiving: Any = (call.client.receive_batch if kind == ARROW else call.client.receive)(
        name, query.batch_size, wait=wait_s, visibility=visibility, consumer=query.consumer
    )
    got = await (call.while_connected(receiving) if wait_s else receiving)
    if call.is_gone:
        await release(call.client, name, got)
        raise ClientGone
    if kind == ARROW:
        return Reply(200, stream_of(got), ARROW)
    return Reply(200, await off_loop(payload_bytes(got), _delivered_text, got))


def _wait_s(query: ReceiveQuery) -> float:
    wait_s = seconds(query.wait)
    if wait_s > WAIT_S_MAX:
        raise InvalidRequest(
            f"wait: it must be 0 to {WAIT_S_MAX} seconds, not {query.wait!r}", field="wait"
        )
    return wait_s


async def release(client: AsyncClient, name: str, messages: Any) -> None:
    """Return messages that did not reach the client, without counting a delivery."""
    if len(messages):
        with contextlib.suppress(QuiverError):  # it comes back when its lease ends
            await client.give_back(name, messages)


def payload_bytes(messages: Iterable[Message]) -> int:
    return sum(len(message.payload) for message in messages)


def _delivered_text(messages: list[ReceivedMessage]) -> bytes:
    return encode(Delivered(messages=delivered(messages)))


def delivered(
    messages: list[ReceivedMessage], deadline_us: int | None = None
) -> list[DeliveredMessage]:
    """Messages as JSON. ``deadline_us``: when their leases end, if the messages do not say."""
    ids = message_ids(messages)
    return [_delivered(message, id, deadline_us) for message, id in zip(messages, ids, strict=True)]


def _delivered(message: ReceivedMessage, id: str, deadline_us: int | None) -> DeliveredMessage:
    body: Any = as_json(message.payload)
    answer = DeliveredMessage(
        id=id,
        body=body,
        receipt_handle=message.receipt,
        headers=message.headers,
        deliveries=message.deliveries,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        timestamp=_moment(message.timestamp_us),
        deadline=_moment(message.deadline_us if deadline_us is None else deadline_us),
        dedup_id=message.dedup_id,
        origin_identity=message.origin_identity,
        dead_letter=message.dead_letter,
    )
    if body is None:
        answer.body, answer.encoding = base64.b64encode(message.payload).decode(), "base64"
    if message.priority != PRIORITY_DEFAULT:
        answer.priority = message.priority
    if message.key is not None:
        _set_key(answer, message.key)
    if message.event_time_us is not None:
        answer.event_time = _time(message.event_time_us)
    if message.expires_at_us is not None:
        answer.expires_at = _time(message.expires_at_us)
    return answer


def seen(message: Message, id: str) -> SeenMessage:
    """A message that was not received, as JSON."""
    body: Any = as_json(message.payload)
    answer = SeenMessage(
        id=id,
        body=body,
        headers=message.headers,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        timestamp=_moment(message.timestamp_us),
        origin_identity=message.origin_identity,
        dead_letter=message.dead_letter,
    )
    if body is None:
        answer.body, answer.encoding = base64.b64encode(message.payload).decode(), "base64"
    if message.priority != PRIORITY_DEFAULT:
        answer.priority = message.priority
    if message.key is not None:
        _set_key(answer, message.key)
    if isinstance(message, PeekedMessage):
        answer.state, answer.deliveries = message.state, message.deliveries
    return answer


def _set_key(answer: DeliveredMessage | SeenMessage, key: bytes) -> None:
    try:
        answer.key = key.decode()
    except UnicodeDecodeError:
        answer.key, answer.key_encoding = base64.b64encode(key).decode(), "base64"


def _time(time_us: int) -> datetime | None:
    return datetime_of(time_us)


# ---------------------------------------------------------------------- settling


async def delete(call: Call, name: str) -> Reply:
    call.require_no_body()
    await settled(client_of(call).ack(name, [call.path["receipt_handle"]]))
    return Reply(204)


async def ack(call: Call, name: str) -> Reply:
    if call.media_type == ARROW:
        table = await receipts_in(await call.body(), call.edge.limits.body_bytes_max)
        await settled(client_of(call).ack(name, table))
        return _settled_reply(table.num_rows)
    given = await call.json(_acks)
    await settled(client_of(call).ack(name, given.receipts))
    return _settled_reply(len(given.receipts))


async def nack(call: Call, name: str) -> Reply:
    given = await call.json(_nacks)
    await settled(call.client.nack(name, given.receipts, delay=given.delay, error=given.error))
    return _settled_reply(len(given.receipts))


async def reject(call: Call, name: str) -> Reply:
    given = await call.json(_rejects)
    await settled(call.client.reject(name, given.receipts, error=given.error))
    return _settled_reply(len(given.receipts))


async def extend(call: Call, name: str) -> Reply:
    given = await call.json(_extends)
    await settled(call.client.extend(name, given.receipts, given.visibility))
    return _settled_reply(len(given.receipts))


def _settled_reply(count: int) -> Reply:
    return Reply(200, encode(Settled(settled=count)))


async def settled(work: Any) -> None:
    """Settle; an error lists stale receipts as the caller gave them."""
    try:
        await work
    except StaleReceipt as error:
        raise StaleReceipt(
            error.message, stale=list(stale_receipts(error.details.get("stale") or []))
        ) from None
    except UnicodeEncodeError:
        raise InvalidRequest("receipts: a receipt is not valid", field="receipts") from None


def stale_receipts(stale: Iterable[Any]) -> Iterable[str]:
    for lease, offsets in stale:
        for offset in BitMap64.deserialize(offsets):
            yield receipt(lease, offset)
