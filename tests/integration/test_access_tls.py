"""TLS and mutual TLS over real sockets: who is trusted, who is known, and certificates that change."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from shutil import copyfile

import pytest

from quiver import AsyncClient
from quiver.config import Security
from quiver.edge.auth.tls import ServerTls
from quiver.errors import ConnectionLost, InvalidSetting, PermissionDenied, Unauthenticated
from tests.integration.certificates import Authority
from tests.integration.edge_node import Running, edge_test, running
from tests.integration.native_peer import Peer, batch_of


def url(run: Running, scheme: str = "quivers") -> str:
    return f"{scheme}://{run.address}"


async def serial(run: Running, context: ssl.SSLContext) -> str:
    """The serial number of the certificate that the node shows now."""
    _, writer = await asyncio.open_connection(run.address.host, run.address.port, ssl=context)
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()
        await writer.wait_closed()


@edge_test
async def test_messages_go_both_ways_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        running(tmp_path, security=authority.node()) as run,
        AsyncClient(url(run), tls=authority.trusting()) as client,
    ):
        await client.create_queue("emails")
        payload = b"x" * 900_000
        await client.publish("emails", payload)
        (message,) = await client.receive("emails", wait="20s")
        assert message.payload == payload
        await message.ack()


@edge_test
async def test_a_node_that_nobody_trusted_signed_is_not_talked_to(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    async with (
        running(tmp_path, security=authority.node()) as run,
        AsyncClient(url(run), tls=other.trusting(), token="qv_secret") as client,
    ):
        with pytest.raises(Unauthenticated, match="cannot be trusted"):
            await client.list_topics()


@edge_test
async def test_a_node_of_another_name_is_not_talked_to(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node", "elsewhere.example")
    security = Security(tls_certificate=certificate, tls_key=key)
    async with (
        running(tmp_path, security=security) as run,
        AsyncClient(url(run), tls=authority.trusting()) as client,
    ):
        with pytest.raises(Unauthenticated, match="cannot be trusted"):
            await client.list_topics()


@edge_test
async def test_one_side_without_tls_is_told_so(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        running(tmp_path, security=authority.node()) as run,
        AsyncClient(url(run, "quiver"), timeout="3s") as client,
    ):
        with pytest.raises(ConnectionLost, match="quivers://"):
            await client.list_topics()
    (tmp_path / "plain").mkdir()
    async with (
        running(tmp_path / "plain") as run,
        AsyncClient(url(run), tls=authority.trusting(), timeout="3s") as client,
    ):
        with pytest.raises(ConnectionLost, match="TLS"):
            await client.list_topics()


class TestMutualTls:
    @edge_test
    async def test_a_certificate_stands_for_the_name_in_it(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        security = authority.node(
            authentication=True, tls_client_ca=authority.file, admins="root.example"
        )
        async with running(tmp_path, security=security) as run:
            async with AsyncClient(
                url(run), tls=authority.trusting("r", "root.example")
            ) as administrator:
                await administrator.create_topic("orders")
                await administrator.create_token(
                    "shop.example", ["publish:orders"], certificate=True
                )
            async with AsyncClient(url(run), tls=authority.trusting("s", "shop.example")) as shop:
                await shop.publish("orders", b"one")
                with pytest.raises(PermissionDenied, match=r"shop\.example has no grant"):
                    await shop.delete_topic("orders")
            for stranger in (authority.trusting("x", "stranger.example"), authority.trusting()):
                async with AsyncClient(url(run), tls=stranger) as client:
                    with pytest.raises(Unauthenticated):
                        await client.list_topics()

    @edge_test
    async def test_where_certificates_are_required_nobody_comes_without(
        self, tmp_path: Path
    ) -> None:
        authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
        security = authority.node(tls_client_ca=authority.file, tls_client_required=True)
        async with running(tmp_path, security=security) as run:
            foreign = other.trusting("shop", "shop.example")
            for tls in (
                authority.trusting(),
                type(foreign)(ca=authority.file, certificate=foreign.certificate, key=foreign.key),
            ):
                async with AsyncClient(url(run), tls=tls, timeout="3s") as client:
                    with pytest.raises(ConnectionLost):
                        await client.list_topics()
            async with AsyncClient(url(run), tls=authority.trusting("s", "s.example")) as client:
                await client.list_topics()


class TestReload:
    @edge_test
    async def test_a_new_certificate_counts_for_the_next_connection_and_breaks_none(
        self, tmp_path: Path
    ) -> None:
        authority = Authority(tmp_path)
        async with running(tmp_path, security=authority.node()) as run:
            context = authority.context()
            peer = await Peer.connect(run.address, tls=context)
            await peer.create("orders")
            before = await serial(run, context)
            assert await serial(run, context) == before
            authority.issue("node", "127.0.0.1")
            assert run.node.tls is not None
            assert run.node.tls.reload()
            assert await serial(run, context) != before
            await peer.store("orders", batch_of(b"still here"))
            assert await peer.payloads("orders") == [b"still here"]
            await peer.close()

    @edge_test
    async def test_the_files_are_followed_without_being_told(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        async with running(tmp_path, security=authority.node()) as run:
            context = authority.context()
            before = await serial(run, context)
            authority.issue("node", "127.0.0.1")
            async with asyncio.timeout(50):
                while await serial(run, context) == before:  # noqa: ASYNC110 - files are polled
                    await asyncio.sleep(0.05)
            assert await serial(run, context) != before

    @edge_test
    async def test_an_authority_that_is_replaced_lets_its_clients_in_no_more(
        self, tmp_path: Path
    ) -> None:
        old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
        clients = tmp_path / "clients.pem"
        copyfile(old.file, clients)
        security = old.node(tls_client_ca=str(clients), tls_client_required=True)
        async with running(tmp_path, security=security) as run:
            tls = old.trusting("s", "s.example")
            async with AsyncClient(url(run), tls=tls) as client:
                await client.list_topics()
            copyfile(new.file, clients)
            assert run.node.tls is not None
            assert run.node.tls.reload()
            async with AsyncClient(url(run), tls=tls, timeout="3s") as client:
                with pytest.raises(ConnectionLost):
                    await client.list_topics()

    def test_files_that_do_not_fit_change_nothing_until_they_do(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        security = authority.node()
        tls = ServerTls(security)
        assert not tls.reload()
        current = tls._current
        key = Path(security.tls_key).read_bytes()
        authority.issue("node", "127.0.0.1")
        new_key = Path(security.tls_key).read_bytes()
        Path(security.tls_key).write_bytes(key)
        assert not tls.reload()
        Path(security.tls_key).unlink()
        assert not tls.reload()
        assert tls._current is current
        Path(security.tls_key).write_bytes(new_key)
        assert tls.reload()
        assert tls._current is not current


@pytest.mark.parametrize("broken", ["missing", "empty", "garbage"])
def test_a_node_does_not_start_with_certificates_that_are_none(tmp_path: Path, broken: str) -> None:
    security = Authority(tmp_path).node()
    path = Path(security.tls_certificate)
    if broken == "missing":
        path.unlink()
    else:
        path.write_text("" if broken == "empty" else "-----BEGIN CERTIFICATE-----\nx\n")
    with pytest.raises(InvalidSetting, match=r"TLS cannot use .*node\.pem"):
        ServerTls(security)


@edge_test
async def test_connections_that_never_shake_hands_are_bounded(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    limits = {"connections_max": 20, "handshake_timeout_s": 60.0}
    async with running(tmp_path, security=authority.node(), **limits) as run:
        silent = [
            await asyncio.open_connection(run.address.host, run.address.port) for _ in range(20)
        ]
        reader, writer = await asyncio.open_connection(run.address.host, run.address.port)
        assert await reader.read() == b""  # there is no room for another handshake
        for _, one in (*silent, (reader, writer)):
            one.close()
        async with AsyncClient(url(run), tls=authority.trusting()) as client:
            assert await client.list_topics() == []
