"""The context of a request: the node's services, the caller, and the state of the client's session.

A session gives each request a context of its own. An edge without sessions uses ``DirectContext``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from quiver import protocol
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import PEER
from quiver.edge.messages.consumer_stream import ConsumerStreams
from quiver.edge.services import NodeServices
from quiver.errors import InvalidRequest
from quiver.model.batch import Bytes

Answer = tuple[protocol.AnyReply, Sequence[Bytes]]
"""A reply and the buffers of its body."""


class Context(Protocol):
    @property
    def services(self) -> NodeServices: ...

    @property
    def caller(self) -> Caller: ...

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for the answer."""

    @property
    def went_well(self) -> bool:
        """Whether the requests went well that this one was to come after."""

    @property
    def reply_turn(self) -> AbstractAsyncContextManager[object]:
        """Hold it while a large reply is built: one at a time, and only while the client reads."""

    async def until_writable(self) -> None:
        """Wait until the client has read its replies."""

    def abandon(self, request_id: int) -> None:
        """End another request of the same client, if it only waits."""

    @property
    def streams(self) -> ConsumerStreams:
        """The client's consumer sessions."""


class ReplyTurn:
    """A lock for building a reply. It is granted only while the client reads its replies."""

    def __init__(self, writable: asyncio.Event) -> None:
        self._writable = writable
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        if self._writable.is_set():
            return
        try:
            await self._writable.wait()
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class DirectContext:
    """The context of a single request without a session. Its caller waits for the answer."""

    is_wanted = True
    went_well = False
    """There is no other request."""

    def __init__(self, services: NodeServices, caller: Caller) -> None:
        self.services = services
        self.caller = caller

    @property
    def reply_turn(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    async def until_writable(self) -> None:
        return

    def abandon(self, request_id: int) -> None:
        """There is no other request."""

    @property
    def streams(self) -> ConsumerStreams:
        raise InvalidRequest("a consumer session needs a connection of its own")


def may_ask_others(context: Context) -> bool:
    """Whether this node may pass a call on: in a cluster, if the call did not come from a node."""
    return context.services.peers is not None and context.caller.principal is not PEER
