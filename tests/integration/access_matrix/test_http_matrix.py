"""Every HTTP operation and every WebSocket by every kind of caller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from quiver.config import NodeConfig
from quiver.edge.http.app import OPERATIONS, edge_of
from quiver.edge.http.operation import JSON, Operation
from quiver.edge.http.routes.console import PROTOCOL
from tests.integration.access_matrix import http_cases
from tests.integration.access_matrix.callers import UNKNOWN, grant_sets, unknown_token
from tests.integration.access_matrix.grants import suffice
from tests.integration.access_matrix.http_cases import SOCKETS, HttpCase
from tests.integration.access_matrix.world import World, leaks, world
from tests.integration.edge_node import edge_test

REFUSED = (401, 403)
EDGE = edge_of(NodeConfig(), None)  # type: ignore[arg-type]
GUARDED = [operation for operation in EDGE.operations if not operation.is_open]


def test_every_operation_and_every_socket_has_a_case() -> None:
    assert {one.id for one in GUARDED} == set(http_cases.OPERATIONS)
    assert {one.id for one in OPERATIONS if one.is_open} == http_cases.OPEN
    routes = [one.path for one in EDGE._routes.routes if isinstance(one, WebSocketRoute)]
    assert sorted(routes) == sorted(SOCKETS)


def client(made: World, source: str = "127.0.0.1") -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(local_address=source)
    url = f"http://{made.node.http_address}"
    return httpx.AsyncClient(base_url=url, transport=transport, timeout=30, trust_env=False)


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


async def asked(
    made: World, http: httpx.AsyncClient, operation: Operation, case: HttpCase, token: str | None
) -> tuple[httpx.Response, bytes]:
    """The reply, and what was asked."""
    path, content = case.path(operation, made.message_id), case.content(operation)
    headers = bearer(token) | ({"Content-Type": JSON} if content else {})
    reply = await http.request(operation.method, path, content=content, headers=headers)
    return reply, path.encode() + content


@pytest.mark.parametrize("kind", UNKNOWN)
@edge_test
async def test_nothing_is_answered_to_whoever_is_not_known(kind: str, tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        token = await unknown_token(made, kind)
        # From several addresses: after too many wrong tokens one is not listened to for a while.
        for first in range(0, len(GUARDED), 20):
            async with client(made, f"127.0.2.{1 + first // 20}") as http:
                for operation in GUARDED[first : first + 20]:
                    case = http_cases.OPERATIONS[operation.id]
                    reply, said = await asked(made, http, operation, case, token)
                    assert reply.status_code == 401, f"{operation.id}: {reply.text}"
                    assert leaks(reply.content, (), said) == []
        for path in SOCKETS:
            status, frame = await opened(made, path, token)
            assert (status, leaks(frame, (), SOCKETS[path].name.encode())) == (401, [])
        async with client(made) as http:
            for operation in OPERATIONS:
                if operation.is_open:
                    reply = await http.get(operation.path, headers=bearer(token))
                    assert reply.status_code == 200
                    assert leaks(reply.content, (), b"") == []


@edge_test
async def test_each_operation_is_answered_to_those_who_may_and_tells_nothing_else(
    tmp_path: Path,
) -> None:
    tokens: dict[tuple[str, ...], str] = {}
    async with world(tmp_path) as made, client(made) as http:
        for operation in GUARDED:
            case = http_cases.OPERATIONS[operation.id]
            for grants in grant_sets(case.needs):
                if grants not in tokens:
                    tokens[grants] = await made.token(*grants)
                await made.prepare(case.prepare)
                reply, said = await asked(made, http, operation, case, tokens[grants])
                is_allowed = suffice(grants, case.needs)
                what = f"{operation.id} with {grants}: {reply.text[:300]}"
                assert (reply.status_code not in REFUSED) == is_allowed, what
                if operation.id in http_cases.TELLS_ALL and is_allowed:
                    continue
                assert leaks(reply.content, grants, said) == [], what


async def opened(made: World, path: str, token: str | None) -> tuple[int, bytes]:
    """How a WebSocket was answered, and its first frame if it sends one by itself."""
    place = f"ws://{made.node.http_address}{path.replace('{name}', SOCKETS[path].name)}"
    is_live = path == "/console/live"
    protocols: Any = [PROTOCOL] if is_live else None
    try:
        async with connect(
            place, proxy=None, additional_headers=bearer(token), subprotocols=protocols
        ) as socket:
            frame = await socket.recv() if is_live else b""
            return 101, frame.encode() if isinstance(frame, str) else frame
    except InvalidStatus as refused:
        return refused.response.status_code, refused.response.body or b""


@pytest.mark.parametrize("path", SOCKETS)
@edge_test
async def test_each_socket_opens_for_those_who_may_and_tells_nothing_else(
    path: str, tmp_path: Path
) -> None:
    case = SOCKETS[path]
    async with world(tmp_path) as made:
        sets = grant_sets(case.needs)
        answers = await asyncio.gather(
            *[opened(made, path, await made.token(*grants)) for grants in sets]
        )
        for grants, (status, frame) in zip(sets, answers, strict=True):
            what = f"{path} with {grants}: {status} {frame[:300]!r}"
            assert (status == 101) == suffice(grants, case.needs), what
            assert leaks(frame, grants, case.name.encode()) == [], what
