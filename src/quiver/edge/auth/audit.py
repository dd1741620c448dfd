"""The audit log: a line for each administrative act and each refusal, and never a secret in it.

Lines are the node's log lines with ``audit`` as their message. A refusal that repeats within a second
is counted, and a line of its own tells the count, so that a caller who is refused cannot fill the disk.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import msgspec
import structlog

from quiver import protocol
from quiver.edge.auth.audit_details import details_of, resource_of
from quiver.errors import QuiverError

_REPEAT_S = 1.0
_KINDS_MAX = 1000

logger = structlog.get_logger()


class _Repeats(msgspec.Struct):
    since: float
    count: int = 0


class _Refusal(NamedTuple):
    principal: str
    act: str
    resource: str
    code: str
    address: str


class Audit:
    def __init__(self) -> None:
        self._refused: OrderedDict[_Refusal, _Repeats] = OrderedDict()

    def act(
        self,
        principal: str,
        request: protocol.AnyRequest,
        address: str,
        outcome: protocol.AnyReply | QuiverError,
    ) -> None:
        """An administrative call was carried out, or failed."""
        error = outcome if isinstance(outcome, QuiverError) else None
        reply = None if isinstance(outcome, QuiverError) else outcome
        details = details_of(request, reply)
        logger.info(
            "audit",
            act=_call(request),
            resource=resource_of(request),
            **({"details": details} if details else {}),
            principal=principal,
            outcome="done" if error is None else "failed",
            **({} if error is None else {"code": error.code}),
            **_where(address),
        )

    def refusal(
        self, principal: str, what: str, resource: str, address: str, error: QuiverError, now: float
    ) -> None:
        """Somebody was not let in, or not allowed something."""
        refused = _Refusal(principal, what, resource, error.code, address)
        known = self._refused.get(refused)
        if known is not None and now - known.since < _REPEAT_S:
            known.count += 1
            return
        self._refused[refused] = _Repeats(now)
        self._refused.move_to_end(refused)
        _tell(refused, known.count if known is not None else 0)
        if len(self._refused) > _KINDS_MAX:
            oldest, repeats = self._refused.popitem(last=False)
            if repeats.count:
                _tell(oldest, repeats.count)

    def flush(self, now: float) -> None:
        """Tell of refusals that were counted and have not come again."""
        for refused, repeats in list(self._refused.items()):
            if now - repeats.since >= _REPEAT_S:
                del self._refused[refused]
                if repeats.count:
                    _tell(refused, repeats.count)


def _tell(refused: _Refusal, repeated: int) -> None:
    logger.warning(
        "audit",
        act=refused.act,
        resource=refused.resource,
        principal=refused.principal,
        outcome="refused",
        code=refused.code,
        **({"repeated": repeated} if repeated else {}),
        **_where(refused.address),
    )


def _where(address: str) -> dict[str, str]:
    """From where, if the session knows: else whoever carried the request has bound it to its lines."""
    return {"address": address} if address else {}


def _call(request: protocol.AnyRequest) -> str:
    return str(request.__struct_config__.tag)
