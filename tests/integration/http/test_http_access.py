"""Every operation over HTTP, by callers of every sort: nobody gets further than their grants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from quiver.config import Limits, NodeConfig, Quotas, Security
from quiver.edge.access.principal import INTERNAL
from quiver.edge.access.tokens import TokenStore
from quiver.edge.http.app import edge_of
from quiver.edge.http.clients import Credentials, OneClient
from quiver.edge.http.operation import Operation
from quiver.edge.in_process import InProcessChannel
from quiver.edge.node import Node
from quiver.model import wire
from quiver.model.ids import Microseconds, Offset, PartitionIndex
from quiver.model.message_id import MessageId
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.testing.clock import ManualClock
from tests.integration.certificates import Authority
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import LOOPBACK, problem

JSON = Subprotocol("quiver.json.v1")
ASKED = Security(authentication=True)
RECEIPT = "AQAAAAEAAAAAAAEAAABWyXxCb1dvZC2ngxA.0"
ID = str(MessageId(Microseconds(1), 1, PartitionIndex(0), Offset(0)))
BODIES: dict[str, Any] = {
    "publish_to_queue": {"message": 1},
    "publish_to_topic": {"message": 1},
    "alter_queue": {},
    "alter_topic": {},
    "alter_subscription": {},
    "create_queue": {},
    "create_topic": {},
    "create_subscription": {"topics": ["a.orders"]},
    "acknowledge": {"receipts": [RECEIPT]},
    "give_back": {"receipts": [RECEIPT]},
    "extend": {"receipts": [RECEIPT], "visibility": 30},
    "seek": {"to": "latest"},
    "purge": {},
    "redrive": {},
}
FOR_ANYBODY_KNOWN = {"list_queues", "list_topics", "list_subscriptions", "describe_cluster"}
FOR_READERS = FOR_ANYBODY_KNOWN | {
    *("receive_from_queue", "delete_message", "describe_queue", "describe_topic"),
    *("receive_messages", "acknowledge", "give_back", "extend", "describe_subscription"),
    *("peek", "find_message"),
}
LAST = {"delete_queue": 1, "delete_topic": 1, "delete_subscription": 1}


class Guarded:
    def __init__(self, node: Node, http: httpx.AsyncClient) -> None:
        self.http = http
        assert node.services is not None
        self.tokens: TokenStore = node.services.authority.tokens
        edge = edge_of(node.config, OneClient(None))  # type: ignore[arg-type]
        self.operations = sorted(
            (one for one in edge.operations if not one.is_open), key=lambda one: LAST.get(one.id, 0)
        )

    async def ask(self, operation: Operation, token: str | None) -> httpx.Response:
        path = operation.path.format(
            queue="a.emails", topic="a.orders", name="a.billing", receipt_handle=RECEIPT, id=ID
        )
        return await self.http.request(
            operation.method,
            path,
            json=BODIES.get(operation.id),
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
        )

    async def walk(self, token: str | None) -> dict[str, int]:
        answers = {}
        for operation in self.operations:
            reply = await self.ask(operation, token)
            answers[operation.id] = reply.status_code
            if reply.status_code == 401:
                problem(reply, 401, "unauthenticated")
                assert reply.headers["www-authenticate"].startswith("Bearer")
            if reply.status_code == 403:
                problem(reply, 403, "permission_denied")
        return answers

    async def token(self, *grants: str, name: str = "somebody") -> str:
        _, text = await self.tokens.create(name, list(grants))
        assert text is not None
        return text


@asynccontextmanager
async def guarded(
    folder: Path,
    *,
    security: Security = ASKED,
    quotas: Quotas = Quotas(),  # noqa: B008 - frozen
    clock: ManualClock | None = None,
    **client: Any,
) -> AsyncIterator[Guarded]:
    """A node with authentication, and team a's things on it."""
    node = Node(
        NodeConfig(
            data=str(folder / "data"),
            http=LOOPBACK,
            native=LOOPBACK,
            limits=Limits(free_bytes_min=0),
            security=security,
            quotas=quotas,
        ),
        clock=clock,
    )
    await node.start()
    assert node.services is not None
    inside = InProcessChannel(node.services, INTERNAL)
    await inside.call(wire.CreateTopic(name="a.orders", settings=TopicSettings()))
    await inside.call(wire.CreateQueue(name="a.emails", topic=TopicSettings()))
    settings = SubscriptionSettings(topics=["a.orders"])
    await inside.call(wire.CreateSubscription(name="a.billing", settings=settings))
    await inside.close()
    scheme = "https" if security.tls_certificate else "http"
    try:
        async with httpx.AsyncClient(
            base_url=f"{scheme}://{node.http_address}", timeout=30, trust_env=False, **client
        ) as http:
            yield Guarded(node, http)
    finally:
        await node.stop()


@edge_test
async def test_without_a_token_or_with_a_wrong_one_nothing_is_answered(tmp_path: Path) -> None:
    async with guarded(tmp_path) as run:
        for wrong in (None, "qv_0000000000000000_" + "0" * 64):
            # Who tries again and again is told to wait.
            assert set((await run.walk(wrong)).values()) <= {401, 429}
        assert (await run.http.get("/healthz")).status_code == 200


@edge_test
async def test_an_expired_token_is_as_good_as_none(tmp_path: Path) -> None:
    clock = ManualClock()
    async with guarded(tmp_path, clock=clock) as run:
        _, text = await run.tokens.create("a", ["admin:*"], expires_s=60)
        await clock.advance(60)
        assert set((await run.walk(text)).values()) == {401}


@edge_test
async def test_a_revoked_token_is_as_good_as_none(tmp_path: Path) -> None:
    async with guarded(tmp_path) as run:
        info, text = await run.tokens.create("a", ["admin:*"])
        headers = {"Authorization": f"Bearer {text}"}
        assert (await run.http.get("/topics", headers=headers)).status_code == 200
        await run.tokens.revoke(info.id)
        assert set((await run.walk(text)).values()) == {401}


@edge_test
async def test_a_reader_only_reads(tmp_path: Path) -> None:
    async with guarded(tmp_path) as run:
        answers = await run.walk(await run.token("consume:a.*"))
        assert {one for one, status in answers.items() if status != 403} == FOR_READERS


@edge_test
async def test_another_team_gets_at_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path) as run:
        theirs = await run.token("publish:b.*", "consume:b.*", "admin:b.*")
        answers = await run.walk(theirs)
        assert {one for one, status in answers.items() if status != 403} == FOR_ANYBODY_KNOWN


@edge_test
async def test_a_team_may_do_everything_with_its_own(tmp_path: Path) -> None:
    async with guarded(tmp_path) as run:
        ours = await run.token("publish:a.*", "consume:a.*", "admin:a.*")
        assert not {401, 403} & set((await run.walk(ours)).values())


@edge_test
async def test_who_is_over_a_rate_is_told_429_and_when_to_come_back(tmp_path: Path) -> None:
    async with guarded(tmp_path, quotas=Quotas(bytes_per_second=1000)) as run:
        headers = {"Authorization": f"Bearer {await run.token('publish:a.*')}"}
        sent = await run.http.post(
            "/topics/a.orders/messages", json={"message": "x" * 5000}, headers=headers
        )
        assert sent.status_code == 201, sent.text
        refused = await run.http.post(
            "/topics/a.orders/messages", json={"message": "y"}, headers=headers
        )
        problem(refused, 429, "quota_exceeded")
        assert int(refused.headers["retry-after"]) >= 1


@edge_test
async def test_a_certificate_is_as_good_as_a_token_over_https(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    security = authority.node(
        authentication=True, tls_client_ca=authority.file, admins="root.example"
    )
    tls = authority.trusting("root", "root.example").context()
    async with guarded(tmp_path, security=security, verify=tls) as run:
        assert (await run.http.put("/topics/made", json={})).status_code == 201
        assert (await run.http.get("/topics")).status_code == 200


def test_credentials_do_not_show_themselves() -> None:
    assert "qv_secret" not in repr(Credentials("Bearer qv_secret"))


def stream(run: Guarded, token: str | None) -> connect:
    base = str(run.http.base_url).replace("http", "ws", 1).rstrip("/")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    path = "/subscriptions/a.billing/stream"
    return connect(base + path, additional_headers=headers, proxy=None, subprotocols=[JSON])


@edge_test
async def test_a_stream_is_for_those_who_may_consume(tmp_path: Path) -> None:
    async with guarded(tmp_path) as run:
        theirs = await run.token("consume:b.*")
        for token, status in ((None, 401), ("qv_wrong", 401), (theirs, 403)):
            with pytest.raises(InvalidStatus) as refused:
                async with stream(run, token):
                    pass
            assert refused.value.response.status_code == status
        async with stream(run, await run.token("consume:a.*")) as socket:
            await socket.ping()


@edge_test
async def test_a_stream_ends_with_its_token(tmp_path: Path) -> None:
    async with guarded(tmp_path) as run:
        info, text = await run.tokens.create("a", ["consume:a.*"])
        async with stream(run, text) as socket:
            await socket.send('{"type": "credit", "messages": 10}')
            await run.tokens.revoke(info.id)
            async with asyncio.timeout(10):
                await socket.wait_closed()
