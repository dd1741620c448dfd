"""The details of an audit line: what a request changes and what came of it, bounded and without secrets.

All fields of a request count that differ from their default, so a new field is in the line without
further work. A URL is cut down to its host: the rest of it may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import FieldInfo

from quiver import protocol

TEXT_MAX = 4000
"""About how many characters the details of one line have."""
_VALUE_MAX = 200
_DEPTH_MAX = 5
_CUT = "…"
_RESOURCES = ("name", "topic", "subscription", "token_id", "node")


def resource_of(request: protocol.AnyRequest) -> str:
    """What a request is about."""
    field = _resource_field(request)
    return "" if field is None else getattr(request, field)[:_VALUE_MAX]


def details_of(request: protocol.AnyRequest, reply: protocol.AnyReply | None) -> dict[str, Any]:
    """What a request asks for beside its resource, and what of its reply tells what was done."""
    left_out = {"id", _resource_field(request)}
    given = {name: value for name, value in _set(request).items() if name not in left_out}
    shown: dict[str, Any] = _Shown().value("", {**given, **_outcome(reply)}, 0)
    return {name: value for name, value in shown.items() if value != {}}


def _resource_field(request: protocol.AnyRequest) -> str | None:
    for field in _RESOURCES:
        if isinstance(getattr(request, field, None), str):
            return field
    return None


def _outcome(reply: protocol.AnyReply | None) -> dict[str, Any]:
    match reply:
        case protocol.TokenCreated(info=info):
            return {"token_id": info.id}
        case protocol.Redriven(count=count, by_topic=by_topic):
            return {"count": count, "by_topic": by_topic}
        case protocol.Counted(count=count):
            return {"count": count}
    return {}


def _set(struct: msgspec.Struct) -> dict[str, Any]:
    """The fields that differ from their default."""
    return {
        field.name: value
        for field in _fields(type(struct))
        if (value := getattr(struct, field.name)) != field.default
    }


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """To look at a type takes longer than all the rest."""
    return msgspec.structs.fields(kind)


class _Shown:
    """Values for the log. Those that come after ``TEXT_MAX`` characters are left out."""

    def __init__(self) -> None:
        self._left = TEXT_MAX

    def value(self, name: str, value: Any, depth: int) -> Any:
        if isinstance(value, msgspec.Struct):
            value = _set(value)
        if depth > _DEPTH_MAX or self._left <= 0:
            return _CUT
        if isinstance(value, Mapping):
            shown = {}
            for key, one in value.items():
                if self._left <= 0:
                    break
                key = self._text(str(key))  # noqa: PLW2901
                shown[key] = self.value(key, one, depth + 1)
            return shown
        if isinstance(value, list | tuple):
            some = []
            for one in value:
                if self._left <= 0:
                    break
                some.append(self.value(name, one, depth + 1))
            return some
        if value is None or isinstance(value, bool | int | float):
            self._left -= 8
            return value
        return self._text(_host(str(value)) if name == "url" else str(value))

    def _text(self, text: str) -> str:
        cut = text if len(text) <= _VALUE_MAX else text[:_VALUE_MAX] + _CUT
        self._left -= len(cut) + 4
        return cut


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    except ValueError:
        return _CUT
