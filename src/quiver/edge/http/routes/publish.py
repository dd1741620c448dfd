"""Publish over HTTP: a message, a list of messages, an Arrow stream, or raw bytes."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET

from quiver.client.producer.delivery import Published
from quiver.client.producer.outgoing import OutgoingMessage
from quiver.edge.http.arrow import messages_in
from quiver.edge.http.call import CURL_DEFAULT, Call
from quiver.edge.http.edge import encode
from quiver.edge.http.json_text import (
    DEPTH_MAX,
    bracket_count,
    check_depth,
    check_utf8,
    decode,
    is_too_deep,
)
from quiver.edge.http.message_columns import rows_of
from quiver.edge.http.off_loop import IN_A_THREAD_BYTES, off_loop
from quiver.edge.http.operation import ARROW, JSON, Reply
from quiver.edge.http.problems import problem_of
from quiver.edge.http.routes.transaction_header import client_of
from quiver.edge.http.schemas.messages import (
    ArrowResult,
    Messages,
    NewMessage,
    PlainMessage,
    PlainMessages,
    PublishQuery,
    RawQuery,
    Result,
    Results,
    Stored,
)
from quiver.edge.http.schemas.values import DedupId
from quiver.edge.messages.message_ids import message_ids
from quiver.errors import InvalidRequest, InvalidSetting, QuiverError
from quiver.model.topic import Acks
from quiver.tracing import tracer

STORED, PARTLY = 201, 207
_messages: msgspec.json.Decoder[NewMessage | list[NewMessage]] = msgspec.json.Decoder(
    NewMessage | Messages
)
_plain_lists = msgspec.json.Decoder(PlainMessages)
_text = msgspec.json.Decoder(str)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_ROWS_MIN = 16
"""From so many messages on, a list is a batch of its own."""
_OPTIONS = (
    "headers",
    "priority",
    "ttl",
    "delay",
    "deliver_at",
    "event_time",
    "dedup_id",
    "partition",
)


async def publish(call: Call, topic: str) -> Reply:
    """Publish the body according to its content type."""
    if call.edge.is_single:
        call.edge.require_space()  # else another node may lead before the caller gives up
    kind = call.media_type
    dedup_id = _idempotency_key(call)
    if kind == ARROW:
        return await _publish_arrow(call, topic, _acks(call.query(PublishQuery)))
    body = await call.body()
    if kind in (JSON, "", CURL_DEFAULT) or kind.endswith("+json"):
        acks = _acks(call.query(PublishQuery))
        if dedup_id is None and b"traceparent" not in call.fields:
            payloads = await off_loop(len(body), _plain_payloads, body)
            if payloads is not None:
                return await _publish_each(call, topic, payloads, acks)
        given = await off_loop(len(body), decode, _messages, body)
        if isinstance(given, list):
            rows = None if dedup_id is not None else await _rows(call, topic, given, body)
            if rows is not None:
                return await _publish_each(call, topic, rows, acks)
            messages = await off_loop(len(body), _outgoing_list, call, given, dedup_id)
            return await _publish_each(call, topic, messages, acks)
        bytes_max = await _message_bytes_max(call, topic, len(body))
        payload, options = await off_loop(len(body), outgoing, given, bytes_max)
        key = given.key
    else:
        query = call.query(RawQuery)
        payload, acks = body, _acks(query)
        key, options = _raw_options(call, query)
    if dedup_id is not None:
        options["dedup_id"] = dedup_id
    if b"traceparent" in call.fields:
        _carry_trace(call, options)
    published = await client_of(call).publish(topic, payload, key=key, acks=acks, **options)
    return Reply(STORED, encode(_stored(published)))


def _plain_payloads(body: bytes) -> list[bytes] | None:
    """The payloads of a list whose messages have nothing else; ``None`` if the body is not one.

    Such lists are the common ones, and worth a decoder that does not look for more.
    """
    if not body.startswith(b"["):
        return None
    check_utf8(body)
    try:
        given = _plain_lists.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _shallow(given, body)


async def _message_bytes_max(call: Call, topic: str, size: int) -> int | None:
    """The topic's bound for a message; ``None`` if it need not be known for a body of this size."""
    if size < IN_A_THREAD_BYTES:
        return None
    layout = await call.client.cluster.layout(topic)
    return layout.info.settings.message_bytes_max


def outgoing(new: NewMessage, bytes_max: int | None = None) -> tuple[bytes, dict[str, Any]]:
    """The payload, and whatever else was given. What is larger than ``bytes_max`` is refused later."""
    payload = bytes(new.message)
    if bytes_max is None or len(payload) <= bytes_max:
        check_depth(payload)
    if new.encoding == "base64":
        payload = _from_base64(payload)
    return payload, _given(new)


def _given(new: NewMessage) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name in _OPTIONS:
        value = getattr(new, name)
        if value is not None:
            options[name] = value
    return options


def _from_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(_text.decode(text), validate=True)
    except (msgspec.DecodeError, msgspec.ValidationError, binascii.Error, ValueError):
        raise InvalidRequest("message: the text is not base64", field="message") from None


async def _rows(
    call: Call, topic: str, given: list[NewMessage], body: bytes
) -> pa.RecordBatch | None:
    """The messages of a long list as a batch; ``None`` if each has to be looked at on its own.

    The messages of short lists share batches with those of other requests.
    """
    is_traced = b"traceparent" in call.fields or tracer() is not None
    if len(given) < _ROWS_MIN or is_traced or any(new.encoding != "json" for new in given):
        return None
    layout = await call.client.cluster.layout(topic)
    return await off_loop(
        len(body), _shallow_rows, given, body, layout.info.settings.message_bytes_max
    )


def _shallow_rows(given: list[NewMessage], body: bytes, bytes_max: int) -> pa.RecordBatch | None:
    payloads = _shallow(given, body)
    return None if payloads is None else rows_of(given, payloads, bytes_max)


def _shallow(given: Sequence[NewMessage | PlainMessage], body: bytes) -> list[bytes] | None:
    """The payloads of a list; ``None`` if one is nested too deep."""
    payloads = [bytes(new.message) for new in given]
    brackets = bracket_count(body) - 1 - len(given)
    if brackets > DEPTH_MAX and any(is_too_deep(payload) for payload in payloads):
        return None
    return payloads


def _outgoing_list(
    call: Call, given: list[NewMessage], dedup_id: str | None
) -> list[OutgoingMessage]:
    messages = []
    is_traced = b"traceparent" in call.fields
    for place, new in enumerate(given):
        try:
            payload, options = outgoing(new)
        except InvalidRequest as error:
            field = f"[{place}].{error.details.get('field', 'message')}"
            raise InvalidRequest(f"[{place}].{error.message}", field=field) from None
        if dedup_id is not None:
            options["dedup_id"] = f"{dedup_id}/{place}"
        if is_traced:
            _carry_trace(call, options)
        messages.append(OutgoingMessage(payload=payload, key=new.key, **options))
    return messages


async def _publish_each(
    call: Call, topic: str, messages: Sequence[Any] | pa.RecordBatch, acks: Acks | None
) -> Reply:
    results = await client_of(call).publish_each(topic, messages, acks=acks)
    stored = [one for one in results if isinstance(one, Published)]
    if not stored:
        raise next(one for one in results if isinstance(one, QuiverError))
    ids = iter(published_ids(stored))
    answer = Results(
        results=[
            Result(error=problem_of(one))
            if isinstance(one, QuiverError)
            else Result(
                id=next(ids),
                topic=one.topic,
                partition=one.partition,
                offset=one.offset,
                duplicate=one.duplicate,
            )
            for one in results
        ]
    )
    return Reply(STORED if len(stored) == len(results) else PARTLY, encode(answer))


def published_ids(stored: list[Published]) -> list[str | None]:
    """The ids of many messages; ``None`` where it is not known where a message is."""
    if any(one.offset is None or one.timestamp_us is None for one in stored):
        return [one.id for one in stored]
    return list(message_ids(stored))  # type: ignore[arg-type]


def _stored(published: Published) -> Stored:
    return Stored(
        id=published.id,
        topic=published.topic,
        partition=published.partition,
        offset=published.offset,
        duplicate=published.duplicate,
    )


async def _publish_arrow(call: Call, topic: str, acks: Acks | None) -> Reply:
    table: pa.Table = await messages_in(await call.body(), call.edge.limits.body_bytes_max)
    if table.num_rows:
        await client_of(call).publish_table(topic, table, acks=acks)
    return Reply(STORED, encode(ArrowResult(stored=table.num_rows)))


def _acks(query: PublishQuery) -> Acks | None:
    return None if query.acks is UNSET else query.acks


def _raw_options(call: Call, query: RawQuery) -> tuple[str | None, dict[str, Any]]:
    options: dict[str, Any] = {"headers": {"content-type": call.header(b"content-type")[:1000]}}
    for name in ("priority", "delay", "deliver_at", "ttl", "partition"):
        value = getattr(query, name)
        if value is not UNSET:
            options[name] = value
    return None if query.key is UNSET else query.key, options


def _carry_trace(call: Call, options: dict[str, Any]) -> None:
    """Give a message the trace of its request, unless it has its own."""
    headers = options.get("headers") or {}
    trace = {name: call.header(name.encode()) for name in ("traceparent", "tracestate")}
    if "traceparent" in headers or not _TRACEPARENT.fullmatch(trace["traceparent"]):
        return
    options["headers"] = headers | {name: text for name, text in trace.items() if text}


def _idempotency_key(call: Call) -> str | None:
    given = call.fields.get(b"idempotency-key")
    if given is None:
        return None
    try:
        return msgspec.convert(given.decode("latin-1"), DedupId)
    except msgspec.ValidationError as error:
        raise InvalidSetting(f"Idempotency-Key: {error}", field="Idempotency-Key") from None
