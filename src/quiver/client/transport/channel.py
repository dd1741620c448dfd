"""A connection to one node, over any transport.

The rest of the client uses only these two protocols and knows nothing of sockets: an embedded broker has
its own ``Channel``. A channel belongs to the event loop that dialled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from quiver.errors import QuiverError
from quiver.model.batch import Bytes
from quiver.protocol import AnyReply, AnyRequest

Answer = tuple[AnyReply, memoryview]
"""A reply and its body, which is empty for most."""
CALL_TIMEOUT_S = 30.0


class StreamListener(Protocol):
    """What gets the replies of a request that has many."""

    def received(self, reply: AnyReply, body: memoryview) -> None: ...

    def ended(self, error: QuiverError) -> None:
        """There are no more: the node or the connection ended the stream."""


class Channel(Protocol):
    """Requests go out in the order they are started; answers come in any order."""

    @property
    def is_open(self) -> bool:
        """Whether a request can be started. Once false, it stays false."""

    @property
    def is_congested(self) -> bool:
        """Whether a sender that has more to send should await ``drain`` first."""

    def start(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> asyncio.Future[Answer]:
        """Send a request, whose ``id`` is assigned here, without waiting for anything.

        The future has the answer; or the error that a ``Failed`` reply describes; or
        ``RequestTimeout``; or ``ConnectionLost`` if the conversation ends first.
        """

    def tell(self, request: AnyRequest) -> None:
        """Send a request that gets no answer. It is lost with the connection."""

    def open_stream(
        self, request: AnyRequest, listener: StreamListener, timeout_s: float = CALL_TIMEOUT_S
    ) -> asyncio.Future[Answer]:
        """``start`` a request that has many replies: the future has the first, the listener the rest."""

    def close_stream(self, request_id: int) -> None:
        """Listen no more. What comes is ignored."""

    async def call(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Answer:
        """``start``, and wait for the answer."""

    async def drain(self) -> None:
        """Return when the channel is not congested. Raises ``ConnectionLost`` if it closes first."""

    async def close(self) -> None:
        """Close the connection. Unanswered requests fail with ``ConnectionLost``."""


class Dialer(Protocol):
    """Opens channels."""

    async def dial(self, address: str) -> Channel:
        """Open a channel to the node at ``address``. Raises ``ConnectionLost`` if it is unreachable."""

    async def close(self) -> None:
        """Called when the client closes, after its channels are closed."""
