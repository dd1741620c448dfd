"""The answer of an endpoint to a request with several messages: 207 says which of them failed.

The body is ``{"failed": [{"id", "error", "reject", "delay"}]}``. Messages that are not listed were
handled. An answer that cannot be read fails the whole request, so that no message is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.settlement_kind import ACK, Kind
from quiver.edge.http.schemas.values import Rest
from quiver.edge.messages.message_ids import message_ids
from quiver.errors import QuiverError
from quiver.model.subscription import VISIBILITY_S_MAX
from quiver.model.units import seconds

PARTIAL = 207
ANSWER_BYTES_MAX = 4 << 20
_ERROR_DEFAULT = "the endpoint reported it as failed"


class Failed(Struct, forbid_unknown_fields=True):
    """A message of the request that was not handled."""

    id: Annotated[str, Meta(min_length=1, max_length=100)]
    error: Annotated[str, Meta(max_length=4000)] = _ERROR_DEFAULT
    reject: bool = False
    """Whether it can never succeed: it becomes a dead letter at once."""
    delay: Rest | None = None
    """Time until the next delivery; the subscription's back-off if not given."""


class PartialAnswer(Struct, forbid_unknown_fields=True):
    failed: list[Failed]


_decode = msgspec.json.Decoder(PartialAnswer).decode


class UnreadableAnswer(Exception):
    """The body of a 207 does not say which messages failed."""


def settlements_in(
    body: bytes, messages: Sequence[ReceivedMessage]
) -> list[tuple[Kind, list[ReceivedMessage]]]:
    """What is done with the messages: those that are not named are acknowledged."""
    try:
        failed = {one.id: _kind(one) for one in _decode(body).failed}
    except (msgspec.MsgspecError, QuiverError, ValueError, RecursionError) as error:
        raise UnreadableAnswer(str(error)) from None
    by_id = dict(zip(message_ids(messages), messages, strict=True))
    unknown = next((one for one in failed if one not in by_id), None)
    if unknown is not None:
        raise UnreadableAnswer(f"{unknown[:100]!r} is not the id of a message in the request")
    kept = [message for id, message in by_id.items() if id not in failed]
    return [(ACK, kept), *((kind, [by_id[id]]) for id, kind in failed.items())]


def _kind(failed: Failed) -> Kind:
    if failed.reject:
        return Kind("reject", error=failed.error)
    if failed.delay is None:
        return Kind("nack", error=failed.error)
    delay_s = min(seconds(failed.delay), VISIBILITY_S_MAX)
    return Kind("nack", delay_ms=round(delay_s * 1000), error=failed.error)
