"""What a program does with messages that it got, and the request that does it."""

from __future__ import annotations

import msgspec

from quiver.protocol import Ack, AnyRequest, Extend, Nack, Reject, Return, Settlement


class Kind(msgspec.Struct, frozen=True):
    """What is done with messages: ``ack``, ``nack``, ``reject`` or ``extend``, and with what options."""

    name: str
    delay_ms: int | None = None
    error: str | None = None
    visibility_ms: int | None = None

    def request(self, subscription: str, settlements: list[Settlement]) -> AnyRequest:
        """The request that does it."""
        if self.name == "nack":
            return Nack(
                subscription=subscription,
                settlements=settlements,
                delay_ms=self.delay_ms,
                error=self.error,
            )
        if self.name == "reject":
            return Reject(subscription=subscription, settlements=settlements, error=self.error)
        if self.name == "extend":
            return Extend(
                subscription=subscription,
                settlements=settlements,
                visibility_ms=self.visibility_ms or 0,
            )
        kind = Return if self.name == "return" else Ack
        return kind(subscription=subscription, settlements=settlements)


ACK, RETURN = Kind("ack"), Kind("return")
