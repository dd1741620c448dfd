"""The audit log: a line for each administrative act and each refusal, and never a secret in it.

Lines are the node's log lines with ``audit`` as their message. A refusal that repeats within a second
is counted, and the count is on the next line of its kind, so that a caller who is refused cannot fill
the disk.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
import structlog

from quiver.errors import QuiverError
from quiver.model import wire

_REPEAT_S = 1.0
_KINDS_MAX = 1000
_TEXT_MAX = 200

logger = structlog.get_logger()


class _Repeats(msgspec.Struct):
    since: float
    count: int = 0


class Audit:
    def __init__(self) -> None:
        self._refused: OrderedDict[tuple[str, str, str, str], _Repeats] = OrderedDict()

    def act(
        self, principal: str, request: wire.AnyRequest, address: str, error: QuiverError | None
    ) -> None:
        """An administrative call was carried out, or failed."""
        logger.info(
            "audit",
            act=_call(request),
            resource=resource_of(request),
            principal=principal,
            address=address,
            outcome="done" if error is None else "failed",
            **({} if error is None else {"code": error.code}),
        )

    def refusal(
        self, principal: str, what: str, resource: str, address: str, error: QuiverError, now: float
    ) -> None:
        """Somebody was not let in, or not allowed something."""
        kind = (principal, what, resource, error.code)
        known = self._refused.get(kind)
        if known is not None and now - known.since < _REPEAT_S:
            known.count += 1
            return
        repeated = known.count if known is not None else 0
        self._refused[kind] = _Repeats(now)
        self._refused.move_to_end(kind)
        if len(self._refused) > _KINDS_MAX:
            self._refused.popitem(last=False)
        logger.warning(
            "audit",
            act=what,
            resource=resource,
            principal=principal,
            address=address,
            outcome="refused",
            code=error.code,
            **({"repeated": repeated} if repeated else {}),
        )


def resource_of(request: wire.AnyRequest) -> str:
    """What a request is about."""
    for field in ("name", "topic", "subscription", "token_id"):
        value = getattr(request, field, None)
        if isinstance(value, str):
            return value[:_TEXT_MAX]
    return ""


def _call(request: wire.AnyRequest) -> str:
    return str(request.__struct_config__.tag)
