"""A message as a line: for people, or as one JSON object for programs.

A payload that is JSON is put into the object as it is, digit for digit; other text as a string;
anything else as base64. ``encoding`` says which. The line for people never steers their terminal.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from quiver.cli.text import harmless, shown_time
from quiver.model.message import PRIORITY_DEFAULT, Message


def json_line(message: Message) -> str:
    """One JSON object without line breaks; what is seldom set is in it only where it is."""
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
    return msgspec.json.encode(line | _seldom_set(message)).decode()


def text_line(message: Message) -> str:
    """Time, place, key, payload and headers, two spaces apart."""
    parts = [
        shown_time(message.timestamp_us),
        f"{message.partition}:{message.offset}",
        "-" if message.key is None else _shown(message.key),
        _shown(message.payload),
    ]
    if message.headers:
        pairs = " ".join(f"{name}={value}" for name, value in message.headers.items())
        parts.append(harmless(f"[{pairs}]"))
    return "  ".join(parts)


def _seldom_set(message: Message) -> dict[str, Any]:
    values: dict[str, Any] = {"dedup_id": message.dedup_id}
    if message.priority != PRIORITY_DEFAULT:
        values["priority"] = message.priority
    for name in ("event_time", "deliver_at", "expires_at"):
        time_us = getattr(message, f"{name}_us")
        values[name] = None if time_us is None else shown_time(time_us)
    return {name: value for name, value in values.items() if value is not None}


def _json_payload(payload: bytes) -> tuple[Any, str]:
    try:
        msgspec.json.decode(payload)
        return msgspec.Raw(msgspec.json.format(payload, indent=-1)), "json"
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _text_or_base64(payload)


def _shown(content: bytes) -> str:
    text, encoding = _text_or_base64(content)
    return harmless(text) if encoding == "text" else f"base64:{text}"


def _text_or_base64(content: bytes) -> tuple[str, str]:
    try:
        return content.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode(), "base64"
