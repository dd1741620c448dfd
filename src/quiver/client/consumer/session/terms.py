"""What a program asks of a session with a subscription, and what a session asks of the program."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol

import msgspec

from quiver.protocol import Settlement

OnStale = Callable[[list[str]], object]
AckMode = Literal["manual", "auto"]
"""Who acknowledges: the program, or the loop for it when it asks for the next message."""


class SessionTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a program asks for when it consumes."""

    subscription: str
    consumer: str
    prefetch: int | None = None
    """How many messages may wait for the program; as its pace allows if not given."""
    bytes_max: int = 16 << 20
    visibility_ms: int | None = None
    on_stale: OnStale | None = None
    ack: AckMode = "manual"


class Program(Protocol):
    """Whose messages these are."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run something in the session's event loop. Called from the program's thread."""


class Holder(Protocol):
    """A transaction that acknowledges messages of a session."""

    async def hold(self) -> None:
        """Have the nodes keep the messages for the transaction from now on."""


class OpenSession(Protocol):
    """A session of a client, which closes it at its own end."""

    def settled(self, settlements: Sequence[Settlement], *, is_nack: bool) -> None:
        """These were settled in another way."""

    def close(self) -> Coroutine[Any, Any, None]: ...
