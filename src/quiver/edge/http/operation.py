"""The operations of the HTTP edge: declared once, then served and described from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from quiver.errors import QuiverError

if TYPE_CHECKING:
    from quiver.edge.http.call import Call

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
ANYTHING = "application/octet-stream"


class Reply(msgspec.Struct):
    """An answer; ``body`` is sent as it is."""

    status: int = 200
    body: bytes = b""
    media_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


Handler = Callable[["Call"], Awaitable[Reply]]


class Operation(msgspec.Struct, kw_only=True, frozen=True):
    """One method of one path."""

    method: str
    path: str
    id: str
    """The OpenAPI operation id. Generated clients use it as a method name, so it never changes."""
    handler: Handler
    summary: str
    tag: str
    query: type[msgspec.Struct] | None = None
    headers: dict[str, str] = {}
    """Request headers that the operation reads, each with its description."""
    body: dict[str, Any] = {}
    """By content type, the struct (or structs) to decode; ``None`` stands for bytes."""
    needs_body: bool = True
    replies: dict[int, tuple[str, dict[str, Any]]] = {}
    """By status, a description, and the struct by content type."""
    errors: tuple[type[QuiverError], ...] = ()
    is_open: bool = False
    """Needs no authentication."""
    may_cache: bool = False
    """A repeated GET may be answered with 304."""
