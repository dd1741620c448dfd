"""What every request and reply has, and the two replies that any call may get."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from quiver.errors import LogError, MetadataError, QuiverError, Unavailable
from quiver.formats import PROTOCOL

PROTOCOL_VERSION = PROTOCOL.newest


class Request(msgspec.Struct, kw_only=True, tag_field="call"):
    id: int = 0


class Reply(msgspec.Struct, kw_only=True, tag_field="reply"):
    id: int = 0


class Done(Reply, tag="done"):
    """The call was carried out, and there is nothing more to say."""


_PATHS = {"file", "path", "folder"}
"""Details that are paths."""
_PATH = re.compile(r"(?:(?<=\s)|^)\.{0,2}/[^\s:;,'\"]+|[^\s/:;,'\"]+(?:/[^\s/:;,'\"]+){2,}")


class Failed(Reply, tag="failed"):
    code: str
    message: str
    details: dict[str, Any] = {}
    retryable: bool = False


def failure(request_id: int, error: QuiverError) -> Failed:
    """An error for a client: without the paths of the node's files."""
    message, details = error.message, error.details
    if isinstance(error, LogError | MetadataError | Unavailable):
        for name in _PATHS & details.keys():
            message = message.replace(str(details[name]), _inside(str(details[name])))
            details = {**details, name: _inside(str(details[name]))}
        message = _PATH.sub(lambda path: _inside(path[0]), message)
    return Failed(
        id=request_id,
        code=error.code,
        message=message,
        details=details,
        retryable=error.retryable,
    )


def _inside(path: str) -> str:
    """A path as it is inside the data folder."""
    _, topics, rest = f"/{path}".rpartition("/topics/")
    return f"topics/{rest}" if topics else path.rpartition("/")[2]
