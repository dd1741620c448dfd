"""No request of a publish-only or an unauthenticated caller holds up others or takes much memory.

A bounded search over the ways in, with sizes and shapes of requests: whatever the request, another
client's latency and the node's memory stay under a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import quiver
from quiver import protocol
from quiver.config import Address
from quiver.config.address import parse_address
from quiver.edge.http.arrow import stream_of
from quiver.edge.http.operation import ARROW
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import encode_record_batch
from quiver.model.guard import DEDUP_IDS_MAX
from quiver.model.topic import Compression
from quiver.protocol.frames import PREFACE, frame
from tests.integration.native_peer import Peer
from tests.serving import Served, served

pytestmark = pytest.mark.process
LATENCY_S_MAX = 0.25
MEMORY_MAX = 400 << 20
"""How much more memory the node may have used at its peak than when it started."""
_TRIES = 4
_PARTS = [b'"["', b'"\\\\"', b"[]", b"{}", b"1", b'"\\u0041"', b'"x"', b"[[[[[[]]]]]]"]
_TYPES = [pa.binary(), pa.string(), pa.large_string(), pa.binary(8), pa.int64(), pa.null()]
_COLUMNS = ["payload", "key", "headers", "dedup_id", "priority", "event_time", "colour"]


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"{self.path} {self.headers}: {len(self.body):,} bytes, {self.body[:60]!r}…"


@st.composite
def json_bodies(draw: st.DrawFn) -> bytes:
    part = draw(st.sampled_from(_PARTS))
    size = draw(st.sampled_from([1 << 10, 1 << 17, 1 << 20, 15 << 20]))
    many = b"[" + (part + b",") * (size // (len(part) + 1)) + b"1]"
    if draw(st.booleans()):
        return b'{"message": ' + many + b"}"
    one = b'{"message": ' + part + b', "key": "k", "headers": {"a": "b"}},'
    return b"[" + one * min(9_999, size // len(one)) + one[:-1] + b"]"


def _column(kind: pa.DataType, rows: int, size: int) -> pa.Array:
    if kind in (pa.binary(), pa.string(), pa.large_string()):
        return pa.array(["x" * size] * rows, kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([b"x" * kind.byte_width] * rows, kind)
    return pa.nulls(rows) if pa.types.is_null(kind) else pa.array([1] * rows, kind)


def _views(kind: pa.DataType, rows: int) -> pa.Array:
    view = struct.pack("<i4sii", 50_000, b"xxxx", 0, 0)
    buffers = [None, pa.py_buffer(view * rows), pa.py_buffer(b"x" * 50_000)]
    return pa.Array.from_buffers(kind, rows, buffers)


@st.composite
def arrow_bodies(draw: st.DrawFn) -> bytes:
    rows = draw(st.sampled_from([1, 1_000, 8_000, 200_000]))
    columns = {"payload": _column(pa.binary(), rows, draw(st.sampled_from([0, 50])))}
    for name in draw(st.lists(st.sampled_from(_COLUMNS), max_size=3)):
        shape = draw(st.sampled_from([*_TYPES, "views", "texts", "runs", "dictionary"]))
        if shape == "views":
            columns[name] = _views(pa.binary_view(), rows)
        elif shape == "texts":
            columns[name] = _views(pa.string_view(), rows)
        elif shape == "runs":
            ends, values = pa.array([rows], pa.int32()), pa.array(["x" * 50_000])
            columns[name] = pa.RunEndEncodedArray.from_arrays(ends, values)
        elif shape == "dictionary":
            columns[name] = pa.array(["x" * 100] * rows).dictionary_encode()
        else:
            columns[name] = _column(shape, rows, 10)
    return stream_of(pa.record_batch(columns))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    path = draw(st.sampled_from(["/queues/jobs/messages", "/topics/jobs/messages"]))
    kind = draw(st.sampled_from(["application/json", ARROW, "application/octet-stream"]))
    body = {
        "application/json": json_bodies(),
        ARROW: arrow_bodies(),
        "application/octet-stream": st.sampled_from([bytes(15 << 20), b"x"]),
    }[kind]
    data = draw(body)
    headers = {"content-type": kind}
    if draw(st.integers(0, 3)) == 0:
        data, headers["content-encoding"] = gzip.compress(data, 1), "gzip"
    return Request(path, headers, data)


@st.composite
def batches(draw: st.DrawFn) -> UnstoredBatch:
    rows = draw(st.sampled_from([1, 1_000, DEDUP_IDS_MAX, 1 << 20]))
    size = draw(st.sampled_from([0, 10]))
    columns: dict[str, pa.Array] = {"payload": _column(pa.binary(), rows, size)}
    for name in draw(st.lists(st.sampled_from(["key", "dedup_id", "priority", "ids"]), max_size=3)):
        if name == "priority":
            columns[name] = pa.array([7] * rows, pa.int8())
        elif name == "ids":
            columns["dedup_id"] = pa.array(map(str, range(rows)), pa.string())
        else:
            columns[name] = _column(pa.binary() if name == "key" else pa.string(), rows, 10)
    compression = draw(st.sampled_from(list(Compression)))
    return encode_record_batch(pa.record_batch(columns), compression)


@st.composite
def greetings(draw: st.DrawFn) -> bytes:
    """What somebody may send first who has no token."""
    size = draw(st.sampled_from([1 << 10, 1 << 20, 15 << 20]))
    name = draw(st.sampled_from(["x", "\u00e4", "\\"])) * size
    hello = protocol.Hello(versions=[1], client=draw(st.sampled_from(["", name])), token="qv_x")
    body = draw(st.sampled_from([b"", bytes(size)]))
    sent = b"".join(frame(protocol.encode(hello), [body] if body else []))
    return PREFACE + draw(st.sampled_from([sent, sent[:-1], b"[" * size, bytes(size)]))


class Witness:
    """Another client: it asks all the while, and notes how long the node kept it waiting at most.

    Time in which the node did not run does not count: other processes may have had the cores.
    """

    def __init__(self, address: str, token: str, pid: int) -> None:
        self._address = address
        self._pid = pid
        self._headers = {"authorization": f"Bearer {token}"}
        self._is_done = False
        self.longest_s = 0.0
        self.peak_before = _peak_bytes(pid)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.longest_s, self._is_done = 0.0, False
        asking = threading.Thread(target=self._ask)
        asking.start()
        try:
            yield
        finally:
            self._is_done = True
            asking.join()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=30)
        while not self._is_done:
            began, ran_s = time.perf_counter(), _ran_s(self._pid)
            connection.request("GET", "/queues", headers=self._headers)
            assert connection.getresponse().read()
            waited_s = time.perf_counter() - began
            self.longest_s = max(self.longest_s, min(waited_s, _ran_s(self._pid) - ran_s))
            time.sleep(0.002)
        connection.close()


def _send(address: str, request: Request, token: str | None) -> int:
    path, headers, body = request
    if token is not None:
        headers = {**headers, "authorization": f"Bearer {token}"}
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("POST", path, body, headers)
        return connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):
        return 401  # it was refused before it was sent
    finally:
        connection.close()


async def _publish(address: Address, batch: UnstoredBatch, token: str) -> str:
    """How a batch is answered over the native protocol."""
    peer = await Peer.connect(address, token=token)
    try:
        reply, _ = await peer.answer(peer.publish("jobs", batch))
        return reply.code if isinstance(reply, protocol.Failed) else "stored"
    finally:
        await peer.close()


async def _greet(address: Address, sent: bytes) -> str:
    """What bytes of a stranger come to."""
    peer = await Peer.connect(address, greet=False)
    try:
        peer.write(sent)
        await peer.hangup()
        return "closed"
    finally:
        await peer.close()


def _ran_s(pid: int) -> float:
    """How long the threads of a process have had a core, all together."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the system does not report VmHWM")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("cost")
    settings = {
        "QUIVER_SECURITY_AUTHENTICATION": "true",
        "QUIVER_LIMITS_HANDSHAKE_TIMEOUT_S": "0.5",
    }
    with served(folder, synced=False, **settings) as running:
        yield running


class Target(NamedTuple):
    """A node under watch, and the token of somebody who may publish to one queue."""

    node: Served
    publisher: str
    witness: Witness

    def require_cheap(self, send: Callable[[], object], allowed: Collection[object]) -> None:
        """Whatever is sent, others are not held up and memory is bounded."""
        pid, longest = self.node.pid, []
        for _ in range(_TRIES):
            with self.witness.watching():
                outcome = send()
            longest.append(self.witness.longest_s)
            if longest[-1] < LATENCY_S_MAX:
                break
        assert outcome in allowed
        assert min(longest) < LATENCY_S_MAX, longest
        assert _peak_bytes(pid) - self.witness.peak_before < MEMORY_MAX


@pytest.fixture(scope="module")
def target(node: Served) -> Target:
    admin = (node.data / "admin.token").read_text().strip()
    with quiver.Client(node.url, token=admin) as client:
        client.create_queue("jobs", partitions=4, exist_ok=True)
        _, publisher = client.create_token("publisher", ["publish:jobs"])
    return Target(node, publisher, Witness(node.http.removeprefix("http://"), admin, node.pid))


SEARCH = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("is_known", [True, False], ids=["publish-only", "unauthenticated"])
def test_no_http_request_holds_up_another_client_or_takes_much_memory(
    is_known: bool, target: Target
) -> None:
    address = target.node.http.removeprefix("http://")
    token = target.publisher if is_known else None
    allowed = (201, 207, 400, 413, 422) if is_known else (401,)

    @SEARCH
    @given(requests())
    def search(request: Request) -> None:
        target.require_cheap(lambda: _send(address, request, token), allowed)

    search()


def test_no_batch_over_the_native_protocol_holds_up_another_client(target: Target) -> None:
    address = parse_address(target.node.url.removeprefix("quiver://"))
    allowed = ("stored", "invalid_batch", "message_too_large")

    @SEARCH
    @given(batches())
    def search(batch: UnstoredBatch) -> None:
        target.require_cheap(
            lambda: asyncio.run(_publish(address, batch, target.publisher)), allowed
        )

    search()


def test_no_greeting_of_a_stranger_holds_up_another_client(target: Target) -> None:
    address = parse_address(target.node.url.removeprefix("quiver://"))

    @SEARCH
    @given(greetings())
    def search(sent: bytes) -> None:
        target.require_cheap(lambda: asyncio.run(_greet(address, sent)), ("closed",))

    search()
