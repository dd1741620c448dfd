"""Checks a message that the user gives, before anything is sent.

An error is raised where the message is given. A message that passes is accepted by every node, as far as
the topic's settings allow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from quiver.errors import InvalidRequest, InvalidSetting
from quiver.model.builder import encode_payload
from quiver.model.guard import DEDUP_ID_MAX, PRIORITY_MAX, PRIORITY_MIN, TIME_MAX, TIME_MIN
from quiver.model.message import time_us_of
from quiver.model.units import Duration, microseconds

_DAY_US = 86_400 * 1_000_000
_DURATION_US_MAX = {"delay": 366 * _DAY_US, "ttl": 36_525 * _DAY_US}
_INT64 = 1 << 63
_SCALAR_BYTES = 8


class MessageOptions(TypedDict, total=False):
    """The options of a message beside its payload and key."""

    headers: Mapping[str, str] | None
    priority: int | None
    """0 to 9; 9 is delivered first. Default: 4."""
    delay: Duration | None
    """Time until the message may be delivered, up to a year."""
    deliver_at: datetime | int | None
    """When the message may be delivered, instead of ``delay``; at once if that is past. A number is
    microseconds since 1970."""
    ttl: Duration | None
    """Time until the message expires."""
    event_time: datetime | int | None
    """When the event happened; a number is microseconds since 1970."""
    dedup_id: str | None
    """A message with the same id within the topic's ``dedup_window`` is not stored again."""
    partition: int | None
    sequence: int | None
    """With a named producer: your own number, which must increase with every message."""


class OutgoingMessage(msgspec.Struct, kw_only=True, frozen=True):
    """A message for ``publish_many``; the fields are those of ``publish``."""

    payload: Any
    key: str | bytes | None = None
    headers: Mapping[str, str] | None = None
    priority: int | None = None
    delay: Duration | None = None
    deliver_at: datetime | int | None = None
    ttl: Duration | None = None
    event_time: datetime | int | None = None
    dedup_id: str | None = None
    partition: int | None = None
    sequence: int | None = None

    def options(self) -> MessageOptions:
        given: dict[str, Any] = {}
        for name in _OPTIONS:
            value = getattr(self, name)
            if value is not None:
                given[name] = value
        return given  # type: ignore[return-value]


_OPTIONS = tuple(MessageOptions.__annotations__)
_FIELDS = frozenset(OutgoingMessage.__struct_fields__)


def outgoing(message: Any) -> OutgoingMessage:
    """A message of ``publish_many``.

    A dict with a ``payload`` and nothing but fields of ``OutgoingMessage`` is a message; any other
    value is a payload itself.
    """
    if isinstance(message, OutgoingMessage):
        return message
    if isinstance(message, dict) and "payload" in message and message.keys() <= _FIELDS:
        return OutgoingMessage(**message)
    return OutgoingMessage(payload=message)


def parts_of(message: Any) -> tuple[Any, str | bytes | None, MessageOptions]:
    """Payload, key and options of a message of ``publish_many``."""
    if type(message) is bytes:
        return message, None, {}
    one = outgoing(message)
    return one.payload, one.key, one.options()


def checked_key(key: str | bytes | None) -> bytes | None:
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, str):
        return _utf8("a key", key)
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise InvalidRequest(f"key must be text or bytes, not {_kind(key)}")


def checked_payload(payload: Any) -> bytes:
    """The payload as bytes; see ``encode_payload``."""
    return _utf8("a payload", payload) if isinstance(payload, str) else encode_payload(payload)


def checked_columns(options: MessageOptions, now_us: int) -> tuple[dict[str, Any], int]:
    """The columns that these options fill, and the bytes that they add to the message."""
    unknown = options.keys() - set(_OPTIONS)
    if unknown:
        known = ", ".join(_OPTIONS)
        raise TypeError(f"a message has no option {min(unknown)!r}; its options are {known}")
    columns: dict[str, Any] = {}
    size = 0
    headers = options.get("headers")
    if headers:
        columns["headers"], size = _checked_headers(headers)
    for name, check in _CHECKS.items():
        value = options.get(name)
        if value is not None:
            columns[name] = check(value)
    if (moment := options.get("deliver_at")) is not None:
        if options.get("delay") is not None:
            raise InvalidRequest("give delay or deliver_at, not both")
        due = _checked_deliver_at(moment, now_us)
        if due > now_us:
            columns["deliver_at"] = due
    for name, option in (("deliver_at", "delay"), ("expires_at", "ttl")):
        duration = options.get(option)
        if duration is not None:
            columns[name] = now_us + _checked_duration(option, duration)  # type: ignore[arg-type]
    return columns, size


def columns_size(columns: dict[str, Any]) -> int:
    """About the bytes that columns other than headers take in a batch."""
    return sum(
        len(value) if isinstance(value, str) else _SCALAR_BYTES
        for name, value in columns.items()
        if name != "headers"
    )


def _checked_headers(headers: Mapping[str, str]) -> tuple[list[tuple[str, str]], int]:
    if not isinstance(headers, Mapping):
        raise InvalidRequest(f"headers must map text to text, not {_kind(headers)}")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest(f"headers must map text to text; {name!r} is {_kind(value)}")
        size += len(_utf8("a header", name)) + len(_utf8("a header", value))
    return list(headers.items()), size


def _checked_priority(priority: Any) -> int:
    if _is_int(priority) and PRIORITY_MIN <= priority <= PRIORITY_MAX:
        return int(priority)
    raise InvalidRequest(f"priority must be {PRIORITY_MIN} to {PRIORITY_MAX}, not {priority!r}")


def _checked_event_time(moment: Any) -> int:
    return _checked_time("event_time", moment)


def _checked_deliver_at(moment: Any, now_us: int) -> int:
    due = _checked_time("deliver_at", moment)
    if due - now_us > _DURATION_US_MAX["delay"]:
        days = _DURATION_US_MAX["delay"] // _DAY_US
        raise InvalidRequest(f"deliver_at may be {days:,} days from now, not {moment!r}")
    return due


def _checked_time(option: str, moment: Any) -> int:
    if isinstance(moment, datetime):
        return time_us_of(moment)
    if _is_int(moment) and TIME_MIN <= moment <= TIME_MAX:
        return int(moment)
    raise InvalidRequest(
        f"{option} must be a datetime, or microseconds since 1970 in the years 1 to 9999, "
        f"not {moment!r}"
    )


def _checked_dedup_id(dedup_id: Any) -> str:
    if not isinstance(dedup_id, str):
        raise InvalidRequest(f"dedup_id must be text, not {_kind(dedup_id)}")
    size = len(_utf8("a dedup id", dedup_id))
    if size > DEDUP_ID_MAX:
        raise InvalidRequest(f"dedup_id may have {DEDUP_ID_MAX} bytes, not {size:,}")
    return dedup_id


def _checked_sequence(sequence: Any) -> int:
    if _is_int(sequence) and 0 <= sequence < _INT64:
        return int(sequence)
    raise InvalidRequest(f"sequence must be 0 to 2**63 - 1, not {sequence!r}")


def _checked_duration(option: str, duration: Duration) -> int:
    try:
        duration_us = microseconds(duration)
    except InvalidSetting as error:
        raise InvalidSetting(f"{option}: {error.message}", setting=option) from None
    if not 0 <= duration_us <= _DURATION_US_MAX[option]:
        days = _DURATION_US_MAX[option] // _DAY_US
        raise InvalidRequest(f"{option} must be 0 s to {days:,} days, not {duration!r}")
    return duration_us


_CHECKS = {
    "priority": _checked_priority,
    "event_time": _checked_event_time,
    "dedup_id": _checked_dedup_id,
    "sequence": _checked_sequence,
}


def is_partition(partition: Any) -> bool:
    return _is_int(partition) and partition >= 0


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what} must be valid UTF-8 text: {error}") from error


def _kind(value: Any) -> str:
    return type(value).__name__
