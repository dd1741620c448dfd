"""JSON from outside: checks its depth and its UTF-8, which msgspec does not.

Each check is linear in the bytes, and most of it is in numpy, which leaves the interpreter to other threads.
Messages are stored as the bytes that came. Nothing parses them again.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from quiver.edge.http.problems import invalid
from quiver.errors import InvalidRequest, MalformedBody

DEPTH_MAX = 128
_SHORT = 4096
_SLICE_BYTES = 64 << 10
_raw = msgspec.json.Decoder(msgspec.Raw)

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """The value in a body; a mistake is told with its place."""
    check_utf8(text)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise invalid(error, document=_document(text)) from None
    except msgspec.DecodeError as error:
        raise MalformedBody(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise too_deep() from None


def _document(text: bytes) -> object:
    """The whole body, for the value that was not valid. It is JSON as far as it was read."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


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
    return bracket_count(text) > DEPTH_MAX and _depth(text, DEPTH_MAX) > DEPTH_MAX


def bracket_count(text: bytes) -> int:
    """How many brackets and braces are opened, counting those in strings."""
    if len(text) < _SHORT:
        return text.count(b"[") + text.count(b"{")
    # They differ in one bit. ``bytes.count`` takes several times as long.
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) | 0x20 == 0x7B))


def too_deep() -> InvalidRequest:
    return InvalidRequest(f"JSON may be nested {DEPTH_MAX} levels deep", field="message")


def _depth(text: bytes, most: int | None = None) -> int:
    """How deep a value is nested. Above ``most`` the rest is not looked at."""
    scan = _DepthScan()
    for begin in range(0, len(text), _SLICE_BYTES):
        scan.take(np.frombuffer(text, np.uint8, min(_SLICE_BYTES, len(text) - begin), begin))
        if most is not None and scan.deepest > most:
            break
    return scan.deepest


class _DepthScan:
    """Takes a document in slices, each in a few passes over its bytes, and keeps where it is."""

    def __init__(self) -> None:
        self.deepest = 0
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def take(self, marks: npt.NDArray[np.uint8]) -> None:
        folded = marks | 0x20  # brackets differ from braces in this bit alone
        steps = (folded == 0x7B).astype(np.int8) - (folded == 0x7D).astype(np.int8)
        steps[self._strings(marks)] = 0
        levels = np.cumsum(steps, dtype=np.int32)
        self.deepest = max(self.deepest, self._depth + int(levels.max(initial=0)))
        self._depth += int(levels[-1])

    def _strings(self, marks: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Which bytes are within a string."""
        quotes = marks == 0x22
        slashes = marks == 0x5C
        if self._is_escaped:
            quotes[0] = slashes[0] = False
        self._is_escaped = False
        if slashes.any():
            places = np.arange(len(marks))
            run_lengths = places - np.maximum.accumulate(np.where(slashes, -1, places))
            escapes = (run_lengths & 1).astype(np.bool_)
            quotes[1:] &= ~escapes[:-1]
            self._is_escaped = bool(escapes[-1])
        inside = (np.cumsum(quotes, dtype=np.uint8) & 1).view(np.bool_)
        if self._is_in_string:
            inside = ~inside
        self._is_in_string = bool(inside[-1])
        return inside


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
