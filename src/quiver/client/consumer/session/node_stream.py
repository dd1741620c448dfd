"""A consumer's session at one node: messages come in, and what the consumer does goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from quiver.aio import retrieve_exception
from quiver.client.consumer.session.leases import Leases, leases_from
from quiver.client.transport.channel import Answer, Channel
from quiver.client.transport.cluster import expect
from quiver.errors import QuiverError
from quiver.protocol import (
    AnyReply,
    AnyRequest,
    Consume,
    Consuming,
    Progress,
    Received,
    Settled,
    Settlement,
)


class StreamOwner(Protocol):
    """The streams that a stream is one of."""

    def arrived(self, stream: NodeStream, reply: Received, body: memoryview) -> None: ...

    def told(self, stream: NodeStream, consuming: Consuming) -> None:
        """Which nodes lead the partitions now."""

    def lost(self, stream: NodeStream, error: QuiverError) -> None: ...


class NodeStream:
    """Open from ``open`` until ``lost`` is called, or ``close``."""

    def __init__(self, owner: StreamOwner, address: str, channel: Channel) -> None:
        self.address = address
        self.channel = channel
        self._owner = owner
        self._id = 0
        self._error: QuiverError | None = None
        self.is_open = False
        self.window = 0
        """What the node was told last."""

    async def open(self, request: Consume) -> Consuming:
        self.window = request.window
        answer = self.channel.open_stream(request, self)
        self._id = request.id
        try:
            reply, _ = await asyncio.shield(answer)
        except BaseException:
            answer.add_done_callback(self._give_up)
            raise
        if self._error is not None:
            raise self._error
        self.is_open = True
        return expect(Consuming, reply)

    def _give_up(self, opened: asyncio.Future[Answer]) -> None:
        """Nobody waits for the stream any more: end it at once if the node has opened it."""
        if retrieve_exception(opened) is None and not opened.cancelled():
            self.channel.tell(Progress(session=self._id, is_over=True, answer=False))
        self.channel.close_stream(self._id)

    def received(self, reply: AnyReply, body: memoryview) -> None:
        if isinstance(reply, Received):
            self._owner.arrived(self, reply, body)
        elif isinstance(reply, Consuming):
            self._owner.told(self, reply)

    def ended(self, error: QuiverError) -> None:
        was_open, self.is_open = self.is_open, False
        self._error = error
        if was_open:
            self._owner.lost(self, error)

    def send(self, request: AnyRequest) -> asyncio.Future[Answer]:
        """A request to the same node."""
        return self.channel.start(request)

    def start(self, started: Sequence[Settlement], window: int | None) -> asyncio.Future[Answer]:
        """A program is about to get these; the answer says which of them it may not have."""
        self._note(window)
        answer = self.channel.start(
            Progress(session=self._id, started=list(started), window=window)
        )
        answer.add_done_callback(retrieve_exception)  # where it matters somebody waits for it
        return answer

    def tell(
        self,
        *,
        started: Sequence[Settlement] = (),
        held: Sequence[Settlement] = (),
        released: Sequence[Settlement] = (),
        window: int | None = None,
        partitions: list[str] | None = None,
    ) -> None:
        """Tell the node what the consumer does."""
        self._note(window)
        self.channel.tell(
            Progress(
                session=self._id,
                started=list(started),
                held=list(held),
                released=list(released),
                window=window,
                partitions=partitions,
                answer=False,
            )
        )

    def beat(self, held: Sequence[Settlement]) -> None:
        """Say that the consumer is there. That the node answers says that it is, too."""
        answer = self.channel.start(Progress(session=self._id, held=list(held)))
        answer.add_done_callback(retrieve_exception)

    def _note(self, window: int | None) -> None:
        if window is not None:
            self.window = window

    async def close(
        self, released: Sequence[Settlement], *, is_silent: bool = False, is_moved: bool = False
    ) -> None:
        """End the session at this node, and return what was not started.

        ``is_silent``: the program ended without a word. ``is_moved``: it goes on with what it has.
        """
        if self.is_open:
            self.is_open = False
            await self.channel.call(
                Progress(
                    session=self._id,
                    released=list(released),
                    is_over=True,
                    is_silent=is_silent,
                    is_moved=is_moved,
                )
            )
        self.channel.close_stream(self._id)


def stale_of(answer: Answer) -> list[Settlement]:
    return expect(Settled, answer[0]).stale


async def lost_in(answers: Iterable[asyncio.Future[Answer]]) -> Leases:
    """Of what was started, that which the nodes say the program may not have."""
    return leases_from([one for answer in answers for one in stale_of(await answer)])
