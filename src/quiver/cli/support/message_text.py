"""A message as a line: for people, or as one JSON object for programs.

A payload that is JSON is put into the object as it is, digit for digit; other text as a string;
anything else as base64. ``encoding`` says which. The line for people never steers their terminal.
"""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

import msgspec

from quiver.cli.support.text import harmless, plural, shown_time
from quiver.model.dead_letter import DeadLetter
from quiver.model.message import PRIORITY_DEFAULT, Message, time_us_of


def json_line(message: Message, **more: Any) -> str:
    """One JSON object without line breaks, which begins with whatever ``more`` there is to say."""
    return msgspec.json.encode(more | json_object(message)).decode()


def json_object(message: Message) -> dict[str, Any]:
    """The message as values for JSON; what is seldom set is in it only where it is."""
    payload, encoding = _json_payload(message.payload)
    line: dict[str, Any] = {
        "partition": message.partition,
        "offset": message.offset,
        "id": message.id,
        "timestamp": shown_time(message.timestamp_us),
        "key": None,
        "payload": payload,
        "encoding": encoding,
        "headers": message.headers,
    }
    if message.key is not None:
        line["key"], key_encoding = _text_or_base64(message.key)
        if key_encoding != "text":
            line["key_encoding"] = key_encoding
    return line | _seldom_set(message)


def text_line(message: Message, *more: str, names_topic: bool = False) -> str:
    """Time, place, ``more``, key, payload and headers, two spaces apart."""
    place = f"{message.partition}:{message.offset}"
    parts = [
        shown_time(message.timestamp_us),
        f"{message.topic}/{place}" if names_topic else place,
        *more,
        "-" if message.key is None else shown_content(message.key),
        shown_content(message.payload),
    ]
    if message.headers:
        parts.append(f"[{shown_headers(message)}]")
    if message.dead_letter is not None:
        parts.append(f"({shown_dead_letter(message.dead_letter)})")
    return "  ".join(parts)


def shown_dead_letter(letter: DeadLetter) -> str:
    """Where a dead letter comes from, how often it was delivered, and why it failed."""
    reason = letter.last_error or "no error was given"
    return harmless(
        f"dead letter of {letter.origin_subscription} from {shown_origin(letter)} "
        f"after {plural(letter.deliveries or 0, 'delivery')}: {reason}"
    )


def shown_origin(letter: DeadLetter) -> str:
    return harmless(f"{letter.origin_topic}/{letter.origin_partition}:{letter.origin_offset}")


def shown_headers(message: Message) -> str:
    return harmless(" ".join(f"{name}={value}" for name, value in message.headers.items()))


def shown_content(content: bytes) -> str:
    """A payload or key on one line."""
    text, encoding = _text_or_base64(content)
    return harmless(text) if encoding == "text" else f"base64:{text}"


def _seldom_set(message: Message) -> dict[str, Any]:
    values: dict[str, Any] = {
        "dedup_id": message.dedup_id,
        "origin_identity": message.origin_identity,
        "dead_letter": _dead_letter(message.dead_letter),
    }
    if message.priority != PRIORITY_DEFAULT:
        values["priority"] = message.priority
    for name in ("event_time", "deliver_at", "expires_at"):
        time_us = getattr(message, f"{name}_us")
        values[name] = None if time_us is None else shown_time(time_us)
    return {name: value for name, value in values.items() if value is not None}


def _dead_letter(letter: DeadLetter | None) -> dict[str, Any] | None:
    if letter is None:
        return None
    return {
        name: shown_time(time_us_of(value)) if isinstance(value, datetime) else value
        for name, value in msgspec.structs.asdict(letter).items()
    }


def _json_payload(payload: bytes) -> tuple[Any, str]:
    try:
        msgspec.json.decode(payload)
        return msgspec.Raw(msgspec.json.format(payload, indent=-1)), "json"
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _text_or_base64(payload)


def _text_or_base64(content: bytes) -> tuple[str, str]:
    try:
        return content.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode(), "base64"
