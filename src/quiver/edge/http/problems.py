"""Errors as RFC 9457 problem documents with Quiver's stable code.

One table maps codes to statuses. A code that is not in it has the status of its parent class.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from quiver.edge.http import text_forms
from quiver.errors import InvalidRequest, QuiverError

PROBLEM = "application/problem+json"
RETRY_AFTER_S = 1
STATUSES = {
    "error": 500,
    "invalid_request": 422,
    "message_too_large": 413,
    "topic_full": 429,
    "read_only_topic": 409,
    "read_only_subscription": 409,
    "mirror_not_found": 404,
    "mirror_exists": 409,
    "mirror_loop": 409,
    "mirror_diverged": 409,
    "topic_not_found": 404,
    "partition_not_found": 404,
    "subscription_not_found": 404,
    "token_not_found": 404,
    "node_not_found": 404,
    "not_a_cluster": 409,
    "message_not_found": 404,
    "topic_exists": 409,
    "subscription_exists": 409,
    "stale_receipt": 409,
    "stale_layout": 503,
    "access_refused": 403,
    "unauthenticated": 401,
    "permission_denied": 403,
    "quota_exceeded": 429,
    "http_error": 400,
    "path_not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "unsupported_media_type": 415,
    "body_too_large": 413,
    "headers_too_large": 431,
    "body_timeout": 408,
    "protocol_error": 502,
    "unknown_call": 501,
    "producer_error": 503,
    "transaction_error": 409,
    "transaction_in_doubt": 503,
    "transaction_too_large": 413,
    "transaction_not_found": 404,
    "unavailable": 503,
    "request_timeout": 504,
    "offset_out_of_range": 422,
    "log_error": 500,
    "log_failed": 503,
    "log_closed": 503,
    "metadata_error": 500,
    "metadata_conflict": 409,
    "metadata_unavailable": 503,
}
_ASKS_TO_RETRY = {429, 503, 504}
_AT = re.compile(r"(.*?) - at `\$(.*?)`$", re.DOTALL)
_STEP = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")
_NAMED = re.compile(r"(?:unknown|missing required) field `(.*?)`")


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An error (RFC 9457) with Quiver's stable ``code``."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    """The field of the request that is wrong."""
    stale: list[str] | None = None
    """Receipts whose lease has ended. The other receipts of the request are settled."""
    retry_after: int | None = None
    """Seconds after which to try again."""


def status_of(kind: type[QuiverError]) -> int:
    for parent in kind.__mro__:
        status = STATUSES.get(getattr(parent, "code", ""))
        if status is not None:
            return status
    return 500


def problem_of(error: QuiverError) -> Problem:
    status = status_of(type(error))
    stale = error.details.get("stale")
    return Problem(
        type=f"urn:quiver:error:{error.code}",
        title=(type(error).__doc__ or "").strip().partition(". ")[0].rstrip("."),
        status=status,
        code=error.code,
        detail=error.message[:2000],
        field=_field_of(error.details),
        stale=stale if stale and isinstance(stale[0], str) else None,
        retry_after=_retry_after(error) if status in _ASKS_TO_RETRY else None,
    )


def _field_of(details: dict[str, Any]) -> str | None:
    field = details.get("field") or details.get("setting")
    return field if isinstance(field, str) else None


def _retry_after(error: QuiverError) -> int:
    wait_s = error.details.get("retry_after_s")
    return max(RETRY_AFTER_S, round(wait_s)) if isinstance(wait_s, int | float) else RETRY_AFTER_S


def _value_at(document: Any, path: str) -> Any:
    """The value at a path of msgspec, such as ``[1].retention.age``; ``None`` if it is not known."""
    for name, index in _STEP.findall(path):
        try:
            document = document[int(index)] if index else document[name]
        except (LookupError, TypeError, ValueError):
            return None
    return document


def invalid(
    error: msgspec.ValidationError, within: str = "", *, document: Any = None
) -> InvalidRequest:
    """A validation error of msgspec, with the name of the field.

    ``document`` is what was not valid, for the value as it was given.
    """
    text = str(error)
    at = _AT.fullmatch(text)
    reason, path = (at[1], at[2].lstrip(".")) if at else (text, "")
    reason = text_forms.explained(reason, _value_at(document, path))
    named = _NAMED.search(reason)
    if named:
        path = f"{path}.{named[1]}" if path else named[1]
    field = within if not path else f"{within}.{path}" if within else path
    return InvalidRequest(f"{field}: {reason}" if field else reason, field=field or None)
