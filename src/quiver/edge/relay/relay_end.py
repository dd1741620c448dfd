"""One end of a relayed connection: to the client, or to the node.

It hands out its first frame, the greeting. From ``join`` on, whatever comes is written to the other end.
While the other end does not take it, nothing is read, so an end keeps a bounded number of bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from quiver.errors import ConnectionLost, ProtocolError, QuiverError
from quiver.protocol.frames import first_frame

GREETING_BYTES_MAX = 64 << 10
_WRITE_HIGH_WATER = 1 << 20
_CLOSE_TIMEOUT_S = 10.0
"""How long what was written may take to be sent when the connection is closed."""


class RelayEnd(asyncio.Protocol):
    """``preface`` comes before the first frame. ``relayed`` is told how many bytes came.

    ``made`` and ``lost`` are called when the connection begins and ends.
    """

    def __init__(
        self,
        preface: bytes,
        relayed: Callable[[int], object],
        made: Callable[[RelayEnd], object] = lambda _: None,
        lost: Callable[[RelayEnd], object] = lambda _: None,
    ) -> None:
        self._preface = preface
        self._relayed = relayed
        self._made = made
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._other: RelayEnd | None = None
        self._received = bytearray()
        self._greeting: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._is_reading = True
        self._is_drained = False
        self._closing: asyncio.TimerHandle | None = None
        self.has_failed = False

    # ------------------------------------------------------------------ asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._relayed(len(data))
            self._other.write(data)
            return
        self._received += data
        if not self._greeting.done():
            self._look_for_greeting()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._closing is not None:
            self._closing.cancel()
        self.has_failed = error is not None
        self._fail(ConnectionLost("the connection was closed before the greeting"))
        if self._other is not None:
            self._other.close(is_cut=self.has_failed)
        self._lost(self)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.pause()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.resume()

    # ------------------------------------------------------------------ the greeting

    async def greeting(self) -> memoryview:
        """The header of the first frame. Nothing more is read until ``join``."""
        return await self._greeting

    def _look_for_greeting(self) -> None:
        try:
            begin = len(self._preface)
            if self._received[:begin] != self._preface[: len(self._received)]:
                raise ProtocolError(
                    "this is Quiver's native port, and the bytes are not the native protocol"
                )
            found = first_frame(bytes(self._received[begin:]), GREETING_BYTES_MAX)
        except QuiverError as error:
            self._fail(error)
            return
        if found is not None:
            header, rest = found
            self._received = bytearray(rest)
            self._greeting.set_result(header)
            self.pause()

    def _fail(self, error: QuiverError) -> None:
        if not self._greeting.done():
            self._greeting.set_exception(error)
            self._greeting.exception()  # whoever waited for it may have left

    # ------------------------------------------------------------------ afterwards

    def join(self, other: RelayEnd) -> None:
        """Write all that comes to the other end from now on, beginning with what has come already."""
        self._other = other
        if self._received:
            self.data_received(bytes(self._received))
            self._received.clear()
        if self._transport is None:
            other.close(is_cut=self.has_failed)
        else:
            self.resume()

    def pause(self) -> None:
        """Read no more for now."""
        if self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        is_open = self._transport is not None and not self._transport.is_closing()
        if not self._is_reading and is_open and not self._is_drained:
            self._is_reading = True
            cast(asyncio.Transport, self._transport).resume_reading()

    def drain(self) -> None:
        """Read nothing more at all."""
        self.pause()
        self._is_drained = True

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self, *, is_cut: bool = False) -> None:
        """Close, after what was written is sent, within a bound; at once if the connection is cut."""
        if self._transport is None:
            return
        if is_cut:
            self._transport.abort()
        elif self._closing is None:
            self._transport.close()
            loop = asyncio.get_running_loop()
            self._closing = loop.call_later(_CLOSE_TIMEOUT_S, self._transport.abort)

    @property
    def address(self) -> str:
        """The host at the other side."""
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""
