"""Who may do what over HTTP and WebSocket: every operation asks, with TLS and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from quiver import AsyncClient
from quiver.config import NodeConfig, Security
from quiver.edge.forwarder import Forwarder
from quiver.edge.http.app import OPERATIONS
from quiver.edge.http.operation import JSON, Operation
from quiver.edge.http.schemas.examples import EXAMPLES
from tests.integration.certificates import Authority
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import LOOPBACK, HttpNode, http_node, problem

ASKED = Security(authentication=True)
GUARDED = [operation for operation in OPERATIONS if not operation.is_open]
FOR_ANYBODY_KNOWN = {
    *("list_topics", "list_queues", "list_subscriptions", "describe_cluster", "list_alerts")
}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def admin_token(folder: Path) -> str:
    return (folder / "data" / "admin.token").read_text().strip()


async def made_token(node: HttpNode, folder: Path, *grants: str, is_revoked: bool = False) -> str:
    native = node.node.native
    assert native is not None
    host, port = native._servers[0].sockets[0].getsockname()[:2]  # type: ignore[union-attr]
    async with AsyncClient(f"quiver://{host}:{port}", token=admin_token(folder)) as client:
        info, token = await client.create_token("someone", list(grants))
        if is_revoked:
            await client.revoke_token(info.id)
    assert token is not None
    return token


async def asked(node: HttpNode, operation: Operation, headers: dict[str, str]) -> Any:
    """A valid request for the operation, about the queue ``emails``."""
    path = operation.path.replace("{receipt_handle}", EXAMPLES["Ack"]["receipts"][0])
    path = path.replace("{id}", EXAMPLES["Stored"]["id"])
    for name in ("{queue}", "{topic}", "{name}", "{token}"):
        path = path.replace(name, "emails")
    body = operation.body.get(JSON)
    kind = body[0] if isinstance(body, tuple) else body
    content = b"" if kind is None else json.dumps(EXAMPLES[kind.__name__]).encode()
    if content:
        headers = {**headers, "Content-Type": JSON}
    return await node.http.request(operation.method, path, content=content, headers=headers)


@edge_test
async def test_every_operation_refuses_whoever_is_not_known(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        over = await made_token(node, tmp_path, "admin:*", is_revoked=True)
        for first in range(0, len(GUARDED), 20):
            # From several addresses: after too many failures one is not listened to for a while.
            place = httpx.AsyncHTTPTransport(local_address=f"127.0.3.{1 + first // 20}")
            url = f"http://{node.address}"
            async with httpx.AsyncClient(base_url=url, transport=place, timeout=30) as http:
                stranger = HttpNode(node.node, http)
                for operation in GUARDED[first : first + 20]:
                    reply = await asked(stranger, operation, {})
                    problem(reply, 401, "unauthenticated")
                    assert reply.headers["www-authenticate"].startswith("Bearer")
        for headers in ({"Authorization": "Basic YTpi"}, bearer("qv_wrong"), bearer(over)):
            problem(await asked(node, GUARDED[0], headers), 401, "unauthenticated")


@edge_test
async def test_guessing_tokens_is_slowed_down(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        for number in range(100):
            reply = await node.http.get("/queues", headers=bearer(f"qv_guess{number}"))
            if reply.status_code == 429:
                assert int(reply.headers["retry-after"]) >= 1
                return
            problem(reply, 401, "unauthenticated")
        raise AssertionError("it was never slowed down")


@edge_test
async def test_every_operation_refuses_whoever_may_do_other_things(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        created = await node.http.put("/queues/emails", headers=bearer(admin_token(tmp_path)))
        assert created.status_code == 201
        other = await made_token(
            node, tmp_path, "admin:other.*", "publish:other.*", "consume:other.*"
        )
        for operation in GUARDED:
            reply = await asked(node, operation, bearer(other))
            if operation.tag == "transactions":
                assert reply.status_code in (201, 404)  # what it may do in one is another matter
            elif operation.id in FOR_ANYBODY_KNOWN:
                assert reply.status_code == 200
                assert "emails" not in reply.text
            else:
                problem(reply, 403, "permission_denied")
        described = await node.http.get("/queues/emails", headers=bearer(admin_token(tmp_path)))
        assert described.json()["unseen"] == 0


@edge_test
async def test_whoever_may_publish_may_not_consume(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        await node.http.put("/queues/emails", headers=bearer(admin_token(tmp_path)))
        publisher = bearer(await made_token(node, tmp_path, "publish:emails"))
        consumer = bearer(await made_token(node, tmp_path, "consume:emails"))
        url = "/queues/emails/messages"
        sent = await node.http.post(url, json={"message": 1}, headers=publisher)
        assert sent.status_code == 201
        problem(await node.http.get(url, headers=publisher), 403, "permission_denied")
        problem(
            await node.http.post(url, json={"message": 1}, headers=consumer),
            403,
            "permission_denied",
        )
        got = await node.http.get(url, headers=consumer)
        [message] = got.json()["messages"]
        gone = await node.http.delete(f"{url}/{message['receipt_handle']}", headers=consumer)
        assert gone.status_code == 204


@edge_test
async def test_what_is_open_to_anybody_stays_open(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
            assert (await node.http.get(path)).status_code == 200


@edge_test
async def test_the_cluster_is_told_without_topics_that_the_caller_does_not_see(
    tmp_path: Path,
) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        ours = bearer(await made_token(node, tmp_path, "admin:a.*"))
        theirs = bearer(await made_token(node, tmp_path, "consume:b.*"))
        assert (await node.http.put("/topics/a.orders", json={}, headers=ours)).is_success
        told = (await node.http.get("/cluster", headers=ours)).json()
        assert [one["topic"] for one in told["partitions"]] == ["a.orders"]
        told = (await node.http.get("/cluster", headers=theirs)).json()
        assert (len(told["nodes"]), told["partitions"]) == (1, [])


@edge_test
async def test_figures_are_for_whoever_may_watch_the_cluster(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        watcher = bearer(await made_token(node, tmp_path, "consume:cluster:*"))
        assert (await node.http.get("/metrics", headers=watcher)).status_code == 200
        consumer = bearer(await made_token(node, tmp_path, "consume:emails"))
        reply = await node.http.get("/metrics", headers=consumer)
        problem(reply, 403, "permission_denied")


@edge_test
async def test_a_stream_asks_too(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        await node.http.put("/queues/emails", headers=bearer(admin_token(tmp_path)))
        url = f"ws://{node.address}/subscriptions/emails/stream"
        publisher = await made_token(node, tmp_path, "publish:emails")
        for headers, status in (({}, 401), (bearer("qv_wrong"), 401), (bearer(publisher), 403)):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(url, proxy=None, additional_headers=headers):
                    pass
            assert refused.value.response.status_code == status
        token = bearer(admin_token(tmp_path))
        async with connect(url, proxy=None, additional_headers=token) as socket:
            await socket.send('{"type": "ping"}')
            assert json.loads(await socket.recv()) == {"type": "pong"}


@edge_test
async def test_http_and_streams_go_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusted = authority.trusting().context()
    async with http_node(tmp_path, security=authority.node(), trusted=trusted) as node:
        await node.queue()
        await node.http.post("/queues/emails/messages", json={"message": "secret"})
        [message] = await node.received()
        assert message["body"] == "secret"
        url = f"wss://{node.address}/subscriptions/emails/stream"
        async with connect(url, proxy=None, ssl=trusted) as socket:
            await socket.send('{"type": "ping"}')
            assert json.loads(await socket.recv()) == {"type": "pong"}


@edge_test
async def test_a_forwarder_passes_tokens_on_and_adds_none(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        native = node.node.native
        assert native is not None
        host, port = native._servers[0].sockets[0].getsockname()[:2]  # type: ignore[union-attr]
        config = NodeConfig(
            role="forwarder", upstream=f"quiver://{host}:{port}", native=LOOPBACK, http=LOOPBACK
        )
        forwarder = Forwarder(config)
        try:
            await forwarder.start()
            url = f"http://{forwarder.http_address}/queues/emails"
            problem(await node.http.put(url), 401, "unauthenticated")
            made = await node.http.put(url, headers=bearer(admin_token(tmp_path)))
            assert made.status_code == 201
            problem(await node.http.get(url), 401, "unauthenticated")
        finally:
            await forwarder.stop()


@edge_test
async def test_wrong_tokens_through_http_do_not_lock_out_a_valid_one(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=Security(authentication=True)) as node:
        token = (tmp_path / "data" / "admin.token").read_text().strip()
        forwarder = Forwarder(
            NodeConfig(
                role="forwarder",
                upstream=f"quiver://{node.node.native_address}",
                http=LOOPBACK,
                native=LOOPBACK,
            )
        )
        await forwarder.start()
        try:
            for url in (f"http://{node.address}", f"http://{forwarder.http_address}"):
                statuses = set()
                for number in range(60):
                    wrong = {"authorization": f"Bearer qv_{number:016x}_{'0' * 64}"}
                    statuses.add((await node.http.get(f"{url}/topics", headers=wrong)).status_code)
                assert statuses == {401, 429}
                right = {"authorization": f"Bearer {token}"}
                reply = await node.http.get(f"{url}/topics", headers=right)
                assert reply.status_code == 200, reply.text
        finally:
            await forwarder.stop()
