"""The ways to consume, behind one face: the blocking client, the async one, an embedded broker, a WebSocket.

A driver has ``q``, a client for everything else. A ``Loop`` is what a program does with its messages.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

import quiver
from tests.integration.client_node import ThreadNode
from tests.integration.consumer.waiting import SECONDS_MAX

T = TypeVar("T")


class Got(NamedTuple):
    text: str
    deliveries: int
    handle: Any


class Loop(Protocol):
    late: list[str]
    """What was settled too late, as it is told."""

    def take(self) -> Got:
        """The next message, when there is one."""

    def ack(self, got: Got) -> None: ...

    def ack_stored(self, got: Got) -> None:
        """Acknowledge, and wait until that is durable; the default of ``exactly-once``."""

    def nack(self, got: Got, *, delay: float | None = None, error: str | None = None) -> None: ...

    def reject(self, got: Got, *, error: str) -> None: ...

    def flush(self) -> None:
        """Wait until all that was settled is durable."""


class Driver(Protocol):
    q: quiver.Client

    def consumer(self, queue: str) -> AbstractContextManager[Loop]:
        """A loop that is left in order at the end of the block."""


# ------------------------------------------------------------------ clients


class BlockingLoop:
    def __init__(self, messages: quiver.Consumer, late: list[str]) -> None:
        self._messages = messages
        self.late = late

    def take(self) -> Got:
        message = next(self._messages)
        return Got(message.text(), message.deliveries, message)

    def ack(self, got: Got) -> None:
        got.handle.ack()

    def ack_stored(self, got: Got) -> None:
        got.handle.ack()
        self.flush()

    def nack(self, got: Got, *, delay: float | None = None, error: str | None = None) -> None:
        got.handle.nack(delay=delay, error=error)

    def reject(self, got: Got, *, error: str) -> None:
        got.handle.reject(error=error)

    def flush(self) -> None:
        self._messages.flush()


class BlockingDriver:
    def __init__(self, q: quiver.Client) -> None:
        self.q = q

    @contextmanager
    def consumer(self, queue: str) -> Iterator[Loop]:
        late: list[str] = []
        with self.q.consumer(queue, on_stale=late.extend) as messages:
            yield BlockingLoop(messages, late)


class AsyncLoop:
    def __init__(
        self,
        messages: quiver.AsyncConsumer,
        late: list[str],
        run: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._messages = messages
        self._run = run
        self.late = late

    def take(self) -> Got:
        message = self._run(anext(self._messages))
        return Got(message.text(), message.deliveries, message)

    def ack(self, got: Got) -> None:
        self._run(_called(got.handle.ack))

    def ack_stored(self, got: Got) -> None:
        self._run(_awaited(got.handle.ack))

    def nack(self, got: Got, *, delay: float | None = None, error: str | None = None) -> None:
        self._run(_called(got.handle.nack, delay=delay, error=error))

    def reject(self, got: Got, *, error: str) -> None:
        self._run(_called(got.handle.reject, error=error))

    def flush(self) -> None:
        self._run(self._messages.flush())


async def _called(call: Callable[..., object], **arguments: Any) -> None:
    """Settle, and wait for nothing."""
    call(**arguments)


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()


class AsyncDriver:
    """The program's event loop is in a thread."""

    def __init__(self, q: quiver.Client) -> None:
        self.q = q

    @contextmanager
    def consumer(self, queue: str) -> Iterator[Loop]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        def run(work: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(work, loop).result(SECONDS_MAX)

        async def opened() -> tuple[quiver.AsyncClient, quiver.AsyncConsumer]:
            client = quiver.AsyncClient(self.q.url)
            return client, await client.consumer(queue, on_stale=late.extend).__aenter__()

        late: list[str] = []
        try:
            client, messages = run(opened())
            try:
                yield AsyncLoop(messages, late, run)
            finally:
                run(messages.close())
                run(client.close())
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(SECONDS_MAX)
            loop.close()


# ------------------------------------------------------------------ WebSocket


class WebSocketLoop:
    """Grants credit for one message when the program asks for it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.late: list[str] = []
        self._socket = socket
        self._messages: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._refs = count(1)
        self._unanswered: dict[int, str] = {}

    def take(self) -> Got:
        self._say(type="credit", messages=1)
        while not self._messages:
            self._hear()
        message = self._messages.pop(0)
        body = message["body"]
        text = base64.b64decode(body).decode() if "encoding" in message else str(body)
        return Got(text, message.get("deliveries", 1), message["receipt_handle"])

    def ack(self, got: Got) -> None:
        self._settle(got, type="ack")

    def ack_stored(self, got: Got) -> None:
        self.ack(got)
        self.flush()

    def nack(self, got: Got, *, delay: float | None = None, error: str | None = None) -> None:
        self._settle(got, type="nack", delay=delay, error=error)

    def reject(self, got: Got, *, error: str) -> None:
        self._settle(got, type="reject", error=error)

    def flush(self) -> None:
        while self._unanswered:
            self._hear()

    def _settle(self, got: Got, **frame: Any) -> None:
        ref = next(self._refs)
        self._unanswered[ref] = got.handle
        given = {name: value for name, value in frame.items() if value is not None}
        self._say(receipts=[got.handle], ref=ref, **given)

    def _say(self, **frame: Any) -> None:
        self._socket.send(json.dumps(frame))

    def _hear(self) -> None:
        frame = json.loads(self._socket.recv(SECONDS_MAX))
        if frame["type"] == "messages":
            self._messages += frame["messages"]
            return
        receipt = self._unanswered.pop(frame["ref"])
        if frame["type"] == "problem":
            assert frame["problem"]["code"] == "stale_receipt", frame
            self.late.append(receipt)


class WebSocketDriver:
    def __init__(self, q: quiver.Client, address: str) -> None:
        self.q = q
        self._address = address

    @contextmanager
    def consumer(self, queue: str) -> Iterator[Loop]:
        url = f"ws://{self._address}/subscriptions/{queue}/stream"
        protocols = [Subprotocol("quiver.json.v1")]
        with connect(url, subprotocols=protocols, compression=None, proxy=None) as socket:
            loop = WebSocketLoop(socket)
            yield loop
            loop.flush()


# ------------------------------------------------------------------ all of them

NAMES = ("Client", "AsyncClient", "embedded", "WebSocket")


@contextmanager
def driver_named(name: str, folder: Path) -> Iterator[Driver]:
    if name == "embedded":
        with quiver.open(folder / "data") as q:
            yield BlockingDriver(q)
        return
    node = ThreadNode(folder / "data", has_http=name == "WebSocket")
    try:
        node.start()
        with quiver.Client(node.url) as q:
            if name == "WebSocket":
                yield WebSocketDriver(q, node.http_address)
            else:
                yield BlockingDriver(q) if name == "Client" else AsyncDriver(q)
    finally:
        node.close()
