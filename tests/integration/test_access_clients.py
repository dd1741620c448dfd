"""Clients for whoever shows credentials: the principal's own, bounded in number, gone with the token."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from quiver.config import Quotas, Security
from quiver.edge.principal_clients import ForwarderClients, NodeClients, bearer_token
from quiver.errors import (
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    Unauthenticated,
)
from quiver.model.clock import SystemClock
from quiver.testing.clock import ManualClock
from tests.integration.certificates import Authority
from tests.integration.edge_node import Running, edge_test, running, until
from tests.integration.test_access_sessions import ASKED, token, tokens_of


class Shown(msgspec.Struct, frozen=True):
    authorization: str | None = None
    certificate: dict[str, Any] | None = None
    address: str = "192.0.2.1"


def bearer(text: str) -> Shown:
    return Shown(f"Bearer {text}")


def clients_of(run: Running, **rest: Any) -> NodeClients:
    return NodeClients(run.node.services, **rest)


@pytest.mark.parametrize(
    ("header", "token"),
    [(None, None), ("Bearer a", "a"), ("bearer  a ", "a"), ("BEARER a", "a")],
)
def test_a_token_is_taken_from_the_header(header: str | None, token: str | None) -> None:
    assert bearer_token(header) == token


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic YTpi", "a"])
def test_another_header_is_no_token(header: str) -> None:
    with pytest.raises(Unauthenticated, match="Bearer"):
        bearer_token(header)


class TestOfANode:
    @edge_test
    async def test_a_client_may_do_what_its_principal_may(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED) as run:
            clients = clients_of(run)
            root = await clients.of(bearer(await token(run, "root")))
            await root.create_topic("orders")
            text = await token(run, "a", "publish:orders")
            mine = await clients.of(bearer(text))
            assert await clients.of(bearer(text)) is mine
            await mine.publish("orders", b"1")
            with pytest.raises(PermissionDenied, match="a has no grant"):
                await mine.delete_topic("orders")
            for wrong in (Shown(), bearer("qv_wrong"), Shown(certificate={"subject": ()})):
                with pytest.raises(Unauthenticated):
                    await clients.of(wrong)
            await clients.close()

    @edge_test
    async def test_without_authentication_everybody_shares_one(self, tmp_path: Path) -> None:
        async with running(tmp_path) as run:
            clients = clients_of(run)
            assert await clients.of(Shown()) is await clients.of(bearer("whatever"))
            await (await clients.of(Shown())).create_topic("orders")
            await clients.close()

    @edge_test
    async def test_a_certificate_gets_its_principals_client(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path / "ca")
        certificate_file, key = authority.issue("node", "127.0.0.1")
        security = Security(
            authentication=True,
            admins="root.example",
            tls_certificate=certificate_file,
            tls_key=key,
            tls_client_ca=authority.file,
        )
        async with running(tmp_path, security=security) as run:
            clients = clients_of(run)
            certificate = {"subjectAltName": (("DNS", "root.example"),)}
            root = await clients.of(Shown(certificate=certificate))
            await root.create_topic("orders")
            assert [topic.name for topic in await root.list_topics()] == ["orders"]
            await clients.close()

    @edge_test
    async def test_what_waits_ends_when_the_token_is_revoked(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED) as run:
            clients = clients_of(run)
            info, text = await tokens_of(run).create("a", ["consume:*", "admin:*"])
            mine = await clients.of(bearer(text or ""))
            await mine.create_queue("emails")
            waiting = asyncio.create_task(mine.receive("emails", wait="20s"))
            await until(lambda: run.counter("quiver_requests_total{call=receive}") == 1)
            await tokens_of(run).revoke(info.id)
            with pytest.raises(Unauthenticated):
                await clients.of(bearer(text or ""))
            async with asyncio.timeout(15):
                with pytest.raises(Unauthenticated, match="expired or was revoked"):
                    await waiting
            await clients.close()

    @edge_test
    async def test_how_many_are_held_is_bounded_and_none_at_work_is_closed(
        self, tmp_path: Path
    ) -> None:
        async with running(tmp_path, security=ASKED) as run:
            clients = clients_of(run, clients_max=2)
            texts = [await token(run, name) for name in ("a", "b", "c")]
            first = await clients.of(bearer(texts[0]))
            await first.create_queue("emails")
            waiting = asyncio.create_task(first.receive("emails", wait="20s"))
            await until(lambda: run.counter("quiver_requests_total{call=receive}") == 1)
            idle = await clients.of(bearer(texts[1]))
            await clients.of(bearer(texts[2]))
            assert idle._closed
            assert not first._closed
            await (await clients.of(bearer(texts[2]))).publish("emails", b"1")
            assert len(await waiting) == 1
            await clients.close()

    @edge_test
    async def test_who_is_over_a_rate_is_told_at_once(self, tmp_path: Path) -> None:
        quotas = Quotas(bytes_per_second=1000)
        async with running(tmp_path, security=ASKED, quotas=quotas) as run:
            clients = clients_of(run)
            text = await token(run, "a")
            mine = await clients.of(bearer(text))
            await mine.create_topic("orders", durability="os")
            await mine.publish("orders", b"x" * 5000)
            with pytest.raises(QuotaExceeded) as refused:
                await clients.of(bearer(text))
            assert refused.value.details["retry_after_s"] > 1
            await clients.close()


class TestOfAForwarder:
    @edge_test
    async def test_a_token_is_passed_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with running(tmp_path, security=ASKED) as run:
            root = await token(run, "root")
            monkeypatch.setenv("QUIVER_TOKEN", root)  # the forwarder's own: nobody acts with it
            clients = ForwarderClients(f"quiver://{run.address}", SystemClock())
            await (await clients.of(bearer(root))).create_topic("orders")
            mine = await clients.of(bearer(await token(run, "a", "publish:orders")))
            await mine.publish("orders", b"1")
            with pytest.raises(PermissionDenied):
                await mine.delete_topic("orders")
            for nobody in (Shown(), bearer("qv_wrong")):
                with pytest.raises(Unauthenticated):
                    await clients.of(nobody)
            await clients.close()

    @edge_test
    async def test_one_address_cannot_use_up_the_forwarders_attempts(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED) as run:
            clients = ForwarderClients(f"quiver://{run.address}", ManualClock())
            for number in range(5):
                with pytest.raises(Unauthenticated):
                    await clients.of(bearer(f"wrong-{number}"))
            with pytest.raises(QuotaExceeded):
                await clients.of(bearer("wrong"))
            other = Shown(f"Bearer {await token(run, 'a')}", address="192.0.2.2")
            await (await clients.of(other)).list_topics()
            await clients.close()

    @edge_test
    async def test_how_many_are_held_is_bounded(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED) as run:
            clock = ManualClock()
            clients = ForwarderClients(f"quiver://{run.address}", clock, clients_max=1)
            first = await clients.of(bearer(await token(run, "a")))
            second = await token(run, "b")
            with pytest.raises(Overloaded):
                await clients.of(bearer(second))
            await clock.advance(300)
            await clients.of(bearer(second))
            assert first._closed
            await clients.close()


@edge_test
async def test_the_audit_log_says_from_where_a_shared_client_was_used(tmp_path: Path) -> None:
    async with running(tmp_path, security=ASKED) as run:
        clients = clients_of(run)
        text = await token(run, "root")

        async def create(name: str, address: str) -> None:
            client = await clients.of(Shown(f"Bearer {text}", address=address))
            await client.create_topic(name)

        processors = [structlog.contextvars.merge_contextvars]
        with capture_logs(processors) as lines:
            for name, address in (("a", "192.0.2.7"), ("b", "192.0.2.8")):
                await asyncio.create_task(create(name, address))
        audit = {line["resource"]: line["address"] for line in lines if line["event"] == "audit"}
        assert audit == {"a": "192.0.2.7", "b": "192.0.2.8"}
        await clients.close()
