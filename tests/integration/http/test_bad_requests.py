"""Whatever is sent, the node answers as documented, and goes on as if nothing had happened."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.integration.http.bad_requests import (
    BAD_REQUESTS,
    BODY_MAX,
    HEADERS_MAX,
    Bad,
    posted,
    raw,
)
from tests.serving import Served, served

pytestmark = pytest.mark.process

_SECONDS_MAX = 50.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {
        "limits.body_bytes_max": BODY_MAX,
        "limits.header_bytes_max": HEADERS_MAX,
        "limits.handshake_timeout_s": 0.5,
        "limits.frame_timeout_s": 0.5,
    }
    flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with served(tmp_path_factory.mktemp("bad"), *flags) as node:
        assert _status(node, raw("PUT", "/queues/emails")) == 201
        assert _status(node, raw("PUT", "/queues/small", b'{"message_bytes_max": 1000}')) == 201
        yield node


def connect(node: Served) -> socket.socket:
    host, _, port = node.ready["http"].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=_SECONDS_MAX)


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes] | None:
    """The one response on a connection, or ``None`` if it ended without one."""
    file = connection.makefile("rb")
    try:
        line = file.readline()
        if not line:
            return None
        headers = {}
        while (field := file.readline().strip()) != b"":
            name, _, value = field.decode().partition(":")
            headers[name.lower()] = value.strip()
        return int(line.split()[1]), headers, file.read(int(headers.get("content-length", 0)))
    except ConnectionResetError:
        return None


def _sent(node: Served, data: bytes) -> tuple[int, dict[str, str], bytes] | None:
    with connect(node) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
            connection.sendall(data)
        return answer(connection)


def _status(node: Served, data: bytes) -> int:
    told = _sent(node, data)
    assert told is not None
    return told[0]


def test_there_are_enough_of_them() -> None:
    assert len(BAD_REQUESTS) >= 150
    assert len({bad.name for bad in BAD_REQUESTS}) == len(BAD_REQUESTS)


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.name)
def test_a_bad_request_gets_its_documented_error(node: Served, bad: Bad) -> None:
    told = _sent(node, bad.data)
    assert told is not None
    status, headers, body = told
    assert status == bad.status, body
    assert headers["content-type"] == "application/problem+json"
    problem = json.loads(body)
    assert problem["status"] == status
    if bad.code is not None:
        assert problem["code"] == bad.code
    if bad.field is not None:
        assert problem["field"] == bad.field


def test_nothing_that_is_refused_is_stored(node: Served) -> None:
    for bad in BAD_REQUESTS:
        if bad.data.startswith(b"POST") and b"/messages" in bad.data[:60]:
            _sent(node, bad.data)
    told = _sent(node, raw("GET", "/queues/emails/messages"))
    assert told is not None
    assert json.loads(told[2]) == {"messages": []}


def test_the_node_s_memory_does_not_grow(node: Served) -> None:
    def memory() -> int:
        with open(f"/proc/{node.pid}/status") as status:
            line = next(line for line in status if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024

    for bad in BAD_REQUESTS:
        _sent(node, bad.data)
    before = memory()
    for bad in BAD_REQUESTS * 3:
        _sent(node, bad.data)
    assert memory() - before < 16 << 20


def test_others_are_served_meanwhile(node: Served) -> None:
    stop = threading.Event()

    def misbehave() -> None:
        while not stop.is_set():
            for bad in BAD_REQUESTS:
                _sent(node, bad.data)
                if stop.is_set():
                    return

    troublemaker = threading.Thread(target=misbehave)
    troublemaker.start()
    try:
        for _ in range(50):
            assert _status(node, raw("GET", "/queues/emails")) == 200
            assert _status(node, posted(b"{}", "/queues/emails/messages")) == 422
    finally:
        stop.set()
        troublemaker.join()


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"G",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /healthz HTTP/1.1\r\nX: yyyy",
    ],
    ids=["nothing", "a letter", "no end of headers", "half a header"],
)
def test_whoever_does_not_finish_the_headers_is_hung_up_on(node: Served, begun: bytes) -> None:
    with connect(node) as connection:
        connection.sendall(begun)
        assert answer(connection) is None


def test_whoever_sends_headers_a_byte_at_a_time_is_hung_up_on(node: Served) -> None:
    with connect(node) as connection:
        connection.settimeout(0.05)
        deadline = time.monotonic() + _SECONDS_MAX
        try:
            for byte in raw("GET", "/healthz", b"", "X: " + "y" * 4000):
                connection.sendall(bytes([byte]))
                try:
                    if connection.recv(1) == b"":
                        return
                except TimeoutError:
                    assert time.monotonic() < deadline
        except (BrokenPipeError, ConnectionResetError):
            return
    raise AssertionError("it was never hung up on")


def test_a_second_request_that_is_begun_and_not_finished_is_hung_up_on(node: Served) -> None:
    with connect(node) as connection:
        connection.sendall(raw("GET", "/healthz"))
        told = answer(connection)
        assert told is not None
        connection.sendall(b"GET /hea")
        assert connection.recv(1) == b""


def test_a_body_that_does_not_arrive_is_timed_out(node: Served) -> None:
    with connect(node) as connection:
        connection.sendall(posted(b'{"message": 1}')[:-5])
        told = answer(connection)
        assert told is not None
        assert (told[0], json.loads(told[2])["code"]) == (408, "body_timeout")


def test_a_half_closed_connection_is_let_go(node: Served) -> None:
    with connect(node) as connection:
        connection.sendall(posted(b'{"message": 1}')[:-5])
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_a_smuggled_request_is_not_carried_out(node: Served) -> None:
    hidden = raw("DELETE", "/queues/small")
    outer = raw("POST", "/queues/emails/messages", b"", "Transfer-Encoding: chunked").replace(
        b"Content-Length: 0", b"Content-Length: %d" % len(hidden)
    )
    assert _status(node, outer + hidden) == 400
    assert _status(node, raw("GET", "/queues/small")) == 200


def test_requests_sent_without_waiting_are_answered_in_order(node: Served) -> None:
    with connect(node) as connection:
        connection.sendall(raw("GET", "/healthz") + raw("GET", "/nope") + raw("GET", "/readyz"))
        file = connection.makefile("rb")
        statuses = []
        for _ in range(3):
            statuses.append(int(file.readline().split()[1]))
            length = 0
            while (field := file.readline().strip()) != b"":
                name, _, value = field.decode().lower().partition(":")
                length = int(value) if name == "content-length" else length
            file.read(length)
        assert statuses == [200, 404, 200]


def test_a_flood_of_requests_on_one_connection_waits_outside_the_node(node: Served) -> None:
    flood = raw("GET", "/queues/emails/messages?wait=20") * 1_000_000
    with connect(node) as connection:
        connection.settimeout(1)
        sent = 0
        with suppress(TimeoutError):
            while sent < len(flood):
                sent += connection.send(flood[sent : sent + (1 << 20)])
        assert sent < len(flood), "the node reads no more than it can handle"
        assert _status(node, raw("GET", "/healthz")) == 200
