"""What every request and reply has, and the two replies that any call may get."""

from __future__ import annotations

from typing import Any

import msgspec

from quiver.errors import QuiverError

PROTOCOL_VERSION = 1


class Request(msgspec.Struct, kw_only=True, tag_field="call"):
    id: int = 0


class Reply(msgspec.Struct, kw_only=True, tag_field="reply"):
    id: int = 0


class Done(Reply, tag="done"):
    """The call was carried out, and there is nothing more to say."""


class Failed(Reply, tag="failed"):
    code: str
    message: str
    details: dict[str, Any] = {}
    retryable: bool = False


def failure(request_id: int, error: QuiverError) -> Failed:
    return Failed(
        id=request_id,
        code=error.code,
        message=error.message,
        details=error.details,
        retryable=error.retryable,
    )
