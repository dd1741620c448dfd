"""A WebSocket that was accepted: frames come in and go out, until one side ends it."""

from __future__ import annotations

from typing import Any

from starlette.types import Receive, Send

from quiver.edge.http.connection import NO_CLOSE_FRAME
from quiver.edge.http.edge import encode
from quiver.edge.http.stream.frames import Frame


class SocketGone(Exception):
    """The other side has hung up."""

    def __init__(self, *, is_closed: bool = False) -> None:
        super().__init__()
        self.is_closed = is_closed
        """Whether it said so with a close frame."""


class Socket:
    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def next(self) -> str | bytes:
        """The next frame; ``SocketGone`` after the last one."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise SocketGone(is_closed=message.get("code") != NO_CLOSE_FRAME)
        text: str | None = message.get("text")
        data: bytes = message.get("bytes") or b""
        return data if text is None else text

    async def send(self, frame: Frame) -> None:
        await self._put({"type": "websocket.send", "text": encode(frame).decode()})

    async def send_bytes(self, data: bytes) -> None:
        await self._put({"type": "websocket.send", "bytes": data})

    async def close(self, code: int, reason: str) -> None:
        await self._put({"type": "websocket.close", "code": code, "reason": reason[:100]})

    async def _put(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except (OSError, RuntimeError) as error:  # uvicorn's ways of saying that it is closed
            raise SocketGone from error
