"""The shipped client's way to simulated nodes: a ``Dialer`` whose channels are wires of the simulator.

At the node's end of a wire is a session of the edge, as behind a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple, Protocol

import msgspec

from quiver.aio import failed_future
from quiver.client.transport.channel import CALL_TIMEOUT_S, Answer, StreamListener
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import ANONYMOUS
from quiver.edge.services import NodeServices
from quiver.edge.session import Session
from quiver.errors import ConnectionLost, QuiverError, RequestTimeout, error_from
from quiver.model.batch import Bytes
from quiver.protocol import AnyReply, AnyRequest, Failed
from quiver.testing.simulator.loop import Process, VirtualLoop
from quiver.testing.simulator.network import SimulatedNetwork
from quiver.testing.simulator.sessions.wires import Side, Wire

_CONNECT_SECONDS = 2.0


class Frame(NamedTuple):
    """What is on a wire, and when it was sent."""

    message: AnyReply | AnyRequest
    body: bytes
    sent: float


class Observer(Protocol):
    """Whoever writes down what a client and its nodes say."""

    def sent(self, node: str, request: AnyRequest) -> None: ...

    def answered(self, node: str, request: AnyRequest, reply: AnyReply) -> None: ...

    def pushed(self, node: str, reply: AnyReply, sent: float) -> None: ...


class Dial:
    """A request for a connection. It may arrive twice."""

    def __init__(self, network: SimulatedNetwork, loop: VirtualLoop, client: Side) -> None:
        self.wire: Wire | None = None
        self._network = network
        self._loop = loop
        self._client = client

    def accept(self, name: str, process: Process, services: NodeServices) -> Session | None:
        """The node's side, in its own process."""
        if self.wire is not None:
            return None
        node = Side(name, process)
        self.wire = Wire(self._network, self._loop, self._client, node)
        end = NodeEnd(self.wire, services)
        node.end = end
        return end.session


class NodeEnd:
    def __init__(self, wire: Wire, services: NodeServices) -> None:
        self._wire = wire
        caller = Caller(services.authority, services.clock, ANONYMOUS)
        self.session = Session(services, self._send, caller)

    def _send(self, reply: AnyReply, body: Sequence[Bytes] = ()) -> None:
        self._wire.send(self._wire.node, _frame(reply, body))

    def received(self, what: Frame) -> None:
        self.session.receive(what.message, memoryview(what.body))  # type: ignore[arg-type]

    def broken(self) -> None:
        self.session.close()


class WireDialer:
    """Wires of one life of a client's process."""

    def __init__(
        self,
        network: SimulatedNetwork,
        loop: VirtualLoop,
        name: str,
        process: Process,
        observer: Observer,
    ) -> None:
        self._network = network
        self._loop = loop
        self._name = name
        self._process = process
        self._observer = observer
        self._wires: list[Wire] = []

    async def dial(self, address: str) -> WireChannel:
        client = Side(self._name, self._process)
        dial = Dial(self._network, self._loop, client)
        await self._network.call(self._name, address, dial, _CONNECT_SECONDS)
        assert dial.wire is not None
        channel = WireChannel(dial.wire, self._observer)
        client.end = channel
        self._wires.append(dial.wire)
        if not client.is_open:  # the node has died meanwhile
            channel.broken()
        return channel

    async def close(self) -> None:
        """Nothing is left: each channel has its own wire."""

    def die(self, *, silently: bool) -> None:
        """The process is gone; ``silently``: with its machine."""
        for wire in self._wires:
            (wire.lose if silently else wire.close)(wire.client)


class WireChannel:
    """A ``Channel`` at the client's end of a wire."""

    def __init__(self, wire: Wire, observer: Observer) -> None:
        self.is_congested = False
        self._wire = wire
        self._observer = observer
        self._ids = count(1)
        self._waiting: dict[int, tuple[AnyRequest, asyncio.Future[Answer]]] = {}
        self._streams: dict[int, StreamListener] = {}
        self._is_broken = False

    @property
    def is_open(self) -> bool:
        return self._wire.client.is_open and not self._is_broken

    def start(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> asyncio.Future[Answer]:
        request.id = next(self._ids)
        return self._begin(request, body, timeout_s)

    def tell(self, request: AnyRequest) -> None:
        request.id = next(self._ids)
        if self.is_open:
            self._observer.sent(self._wire.node.name, request)
            self._wire.send(self._wire.client, _frame(request))

    def open_stream(
        self, request: AnyRequest, listener: StreamListener, timeout_s: float = CALL_TIMEOUT_S
    ) -> asyncio.Future[Answer]:
        request.id = next(self._ids)
        if self.is_open:
            self._streams[request.id] = listener
        return self._begin(request, (), timeout_s)

    def close_stream(self, request_id: int) -> None:
        self._streams.pop(request_id, None)

    async def call(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Answer:
        return await self.start(request, body, timeout_s)

    async def drain(self) -> None:
        """There is always room."""

    async def close(self) -> None:
        self._wire.close(self._wire.client)
        self.broken()

    def _begin(
        self, request: AnyRequest, body: Sequence[Bytes], timeout_s: float
    ) -> asyncio.Future[Answer]:
        if not self.is_open:
            answer: asyncio.Future[Answer] = failed_future(ConnectionLost())
            answer.exception()
            return answer
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._waiting[request.id] = (request, answer)
        timer = loop.call_later(timeout_s, self._settle, request.id, RequestTimeout())
        answer.add_done_callback(lambda _: timer.cancel())
        self._observer.sent(self._wire.node.name, request)
        self._wire.send(self._wire.client, _frame(request, body))
        return answer

    def _settle(self, request_id: int, error: QuiverError) -> None:
        _, answer = self._waiting.pop(request_id, (None, None))
        if answer is not None and not answer.done():
            answer.set_exception(error)
            answer.exception()  # a process may die before it looks

    # ------------------------------------------------------------------ from the node

    def received(self, what: Frame) -> None:
        reply, body = what.message, what.body
        request, answer = self._waiting.pop(reply.id, (None, None))
        if request is None or answer is None:
            self._pass_on(reply, body, what.sent)  # type: ignore[arg-type]
            return
        self._observer.answered(self._wire.node.name, request, reply)  # type: ignore[arg-type]
        if answer.done():
            return
        if isinstance(reply, Failed):
            self._streams.pop(reply.id, None)
            answer.set_exception(error_from(reply.code, reply.message, reply.details))
            answer.exception()
        else:
            answer.set_result((reply, memoryview(body)))  # type: ignore[arg-type]

    def _pass_on(self, reply: AnyReply, body: bytes, sent: float) -> None:
        listener = self._streams.get(reply.id)
        if listener is None:
            return
        if isinstance(reply, Failed):
            del self._streams[reply.id]
            listener.ended(error_from(reply.code, reply.message, reply.details))
            return
        self._observer.pushed(self._wire.node.name, reply, sent)
        listener.received(reply, memoryview(body))

    def broken(self) -> None:
        if self._is_broken:
            return
        self._is_broken = True
        for request_id in list(self._waiting):
            self._settle(request_id, ConnectionLost())
        streams, self._streams = self._streams, {}
        for listener in streams.values():
            listener.ended(ConnectionLost())


def _frame(message: AnyReply | AnyRequest, body: Sequence[Bytes] = ()) -> Frame:
    sent = asyncio.get_running_loop().time()
    return Frame(msgspec.structs.replace(message), b"".join(map(bytes, body)), sent)
