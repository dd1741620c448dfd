"""JSON from outside: checks its depth and its UTF-8, which msgspec does not.

Messages are stored as the bytes that came. Nothing parses them again.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
import numpy as np

from quiver.edge.http.problems import invalid
from quiver.errors import InvalidRequest, MalformedBody

DEPTH_MAX = 128
_SHORT = 4096
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_raw = msgspec.json.Decoder(msgspec.Raw)

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """The value in a body; a mistake is told with its place."""
    check_utf8(text)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except msgspec.DecodeError as error:
        raise MalformedBody(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise too_deep() from None


def check_utf8(text: bytes) -> None:
    if text.isascii():
        return
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8: {error.reason} at {error.start}") from None


def check_depth(text: bytes) -> None:
    """Refuse a value that is nested deeper than readers can be expected to follow."""
    if is_too_deep(text):
        raise too_deep()


def is_too_deep(text: bytes) -> bool:
    return bracket_count(text) > DEPTH_MAX and _depth(text) > DEPTH_MAX


def bracket_count(text: bytes) -> int:
    """How many brackets and braces are opened, counting those in strings."""
    if len(text) < _SHORT:
        return text.count(b"[") + text.count(b"{")
    # They differ in one bit. ``bytes.count`` takes several times as long.
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) | 0x20 == 0x7B))


def too_deep() -> InvalidRequest:
    return InvalidRequest(f"JSON may be nested {DEPTH_MAX} levels deep", field="message")


def _depth(text: bytes) -> int:
    marks = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    opens = np.isin(marks, (0x5B, 0x7B)).astype(np.int32)
    closes = np.isin(marks, (0x5D, 0x7D)).astype(np.int32)
    return int(np.cumsum(opens - closes).max(initial=0))


def as_json(payload: bytes) -> msgspec.Raw | None:
    """The payload as it can stand inside a JSON document; ``None`` if it is not JSON."""
    if not payload:
        return None
    try:
        if not payload.isascii():
            payload.decode()
        check_depth(payload)
        return _raw.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidRequest):
        return None
