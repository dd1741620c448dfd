"""Bugs to plant in the sessions of consumers: what they promise is taken away, one thing at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quiver import protocol
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.records import AnyRecord
from quiver.broker.delivery.session_delivery import SessionDelivery
from quiver.broker.subscription.consumer import Consumer, SessionEnd
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.session.session import ConsumerSession
from quiver.client.consumer.session.settlements import Settlements
from quiver.edge.messages import consumer_stream
from quiver.model.ids import Microseconds


def _end_counting_all(
    self: DeliveryMachine, lease_id: int, now: Microseconds, *, is_silent: bool, reason: str
) -> list[AnyRecord]:
    """What was only pushed counts as if a program had had it."""
    pushed = self.state.reserved.of(lease_id)
    _, records = self.start(lease_id, pushed, now, consumer="", visibility_us=0)
    return records + _end_session(self, lease_id, now, is_silent=is_silent, reason=reason)


_end_session = DeliveryMachine.end_session


async def _allowed_at_once(
    self: ConsumerSession, messages: list[ReceivedMessage], answers: Sequence[Any]
) -> list[ReceivedMessage]:
    return messages


def _end_without_returning(self: Consumer, how: SessionEnd) -> None:
    self.window = 0
    self._leases = {}


def _extend_nothing(self: SessionDelivery, *_: Any) -> bool:
    return True


async def _flush_without_waiting(self: Settlements) -> None:
    self.send_buffered()


def _end_as_closed(request: protocol.Progress) -> SessionEnd:
    return SessionEnd.SILENT if request.is_silent else SessionEnd.CLOSED


SESSION_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "count what was only pushed": [(DeliveryMachine, "end_session", _end_counting_all)],
    "hand out a message before its start is answered": [
        (ConsumerSession, "_allowed", _allowed_at_once)
    ],
    "keep messages for a consumer that is gone": [(Consumer, "end", _end_without_returning)],
    "never keep a lease alive": [(SessionDelivery, "keep_alive", _extend_nothing)],
    "confirm settlements that are on their way": [(Settlements, "flush", _flush_without_waiting)],
    "return what a consumer works on when it moves": [(consumer_stream, "_end_of", _end_as_closed)],
}
"""Those that only seeds with consumer sessions find."""
