"""A wire of the simulator as a transport of asyncio: the shipped connections run over it, byte by byte."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from quiver.model.batch import Bytes
from quiver.testing.simulator.sessions.wires import Side, Wire


class WireTransport:
    """The part of ``asyncio.Transport`` that connections use, at one end of a wire."""

    def __init__(self, wire: Wire, side: Side, connection: asyncio.BufferedProtocol) -> None:
        self._wire = wire
        self._side = side
        self._connection = connection
        self._unread: deque[bytes] = deque()
        self._is_paused = False
        self._is_closing = False
        side.end = self
        connection.connection_made(self)  # type: ignore[arg-type]

    def write(self, data: Bytes) -> None:
        if not self._is_closing:
            self._wire.send(self._side, bytes(data))

    def writelines(self, buffers: Sequence[Bytes]) -> None:
        self.write(b"".join(buffers))

    def set_write_buffer_limits(self, **_: int) -> None:
        """There is always room."""

    def get_extra_info(self, _: str) -> Any:
        return None

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._wire.close(self._side)
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    abort = close

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read()

    # ------------------------------------------------------------------ from the wire

    def received(self, what: bytes) -> None:
        self._unread.append(what)
        self._read()

    def broken(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._connection.connection_lost(ConnectionResetError())

    def _read(self) -> None:
        while self._unread and not self._is_paused and not self._is_closing:
            data = self._unread.popleft()
            buffer = memoryview(self._connection.get_buffer(len(data)))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            if count < len(data):
                self._unread.appendleft(data[count:])
            self._connection.buffer_updated(count)
