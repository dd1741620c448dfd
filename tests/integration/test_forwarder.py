"""The native protocol through a forwarder: it is as if the client were connected with the node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from quiver import AsyncClient
from quiver.client.transport.access import Access
from quiver.config import Limits, Security
from quiver.edge.forwarder import Forwarder
from quiver.errors import (
    ConnectionLost,
    NodeGone,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    Unauthenticated,
)
from quiver.protocol import (
    Consume,
    Consuming,
    Failed,
    Fetch,
    Hello,
    Ping,
    Progress,
    Received,
    Settled,
    Settlement,
    Welcome,
    encode,
)
from quiver.protocol.frames import PREFACE, frame
from tests.integration.certificates import Authority
from tests.integration.edge_node import edge_test, running, until
from tests.integration.forwarding import RecordingDialer, forwarder_of
from tests.integration.native_peer import Peer
from tests.ports import free_port


@edge_test
async def test_a_client_does_everything_through_a_forwarder_alone(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as run,
        forwarder_of(f"quiver://{run.address}") as forwarder,
    ):
        address = str(forwarder.native_address)
        dialer = RecordingDialer(Access(), [address])
        async with AsyncClient(f"quiver://{address}", dialer=dialer) as client:
            await client.create_topic("orders", partitions=2)
            await client.create_subscription("billing", topics=["orders"], start="earliest")
            await client.publish("orders", b"one")
            await client.publish_many("orders", [f"{n}" for n in range(100)])
            await client.publish_table("orders", pa.table({"payload": [b"row"] * 50}))
            async with client.producer("orders", name="till") as producer:
                for number in range(10):
                    await producer.send(b"named", sequence=number)
            table = await client.read("orders", start="earliest").table()
            assert table.num_rows == 161
            received = 0
            async with client.consumer("billing") as messages:
                async for message in messages:
                    await message.ack()
                    received += 1
                    if received == 161:
                        break
            described = await client.describe_subscription("billing")
            assert (described.ready, described.leased) == (0, 0)
            await client.delete_subscription("billing")
        assert {one for one, _ in dialer.dialed} == {address}


@edge_test
async def test_the_node_checks_the_clients_own_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, security=Security(authentication=True)) as run:
        root = (tmp_path / "data" / "admin.token").read_text().strip()
        async with AsyncClient(f"quiver://{run.address}", token=root) as admin:
            await admin.create_queue("emails")
            _, weak = await admin.create_token("shop", ["publish:emails"])
        monkeypatch.setenv("QUIVER_TOKEN", root)  # the forwarder's own: nobody acts with it
        async with forwarder_of(f"quiver://{run.address}") as forwarder:
            url = f"quiver://{forwarder.native_address}"
            async with AsyncClient(url, token=weak) as shop:
                await shop.publish("emails", b"one")
                with pytest.raises(PermissionDenied, match="shop has no grant"):
                    await shop.purge("emails")
            monkeypatch.delenv("QUIVER_TOKEN")
            async with AsyncClient(url) as nobody:
                with pytest.raises(Unauthenticated):
                    await nobody.list_topics()


@edge_test
async def test_one_address_tries_few_wrong_tokens_through_a_forwarder(tmp_path: Path) -> None:
    async with (
        running(tmp_path, security=Security(authentication=True)) as run,
        forwarder_of(f"quiver://{run.address}") as forwarder,
    ):
        assert forwarder.native_address is not None
        codes = []
        for _ in range(20):
            peer = await Peer.connect(forwarder.native_address, greet=False)
            peer.write(PREFACE)
            codes.append(
                (await peer.refusal(peer.request(Hello(versions=[1], token="qv_no")))).code
            )
            await peer.reset()
        assert codes[0] == Unauthenticated.code
        assert codes[-1] == QuotaExceeded.code
        assert codes.count(Unauthenticated.code) < 10  # of which the node has heard


@edge_test
async def test_a_forwarder_is_listed_with_a_token_of_its_own_and_works_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, security=Security(authentication=True)) as run:
        root = (tmp_path / "data" / "admin.token").read_text().strip()
        live, clock = run.node.services.forwarders, run.node.services.clock
        async with AsyncClient(f"quiver://{run.address}", token=root) as admin:
            _, own = await admin.create_token("edge", ["consume:cluster:*"])
            async with forwarder_of(f"quiver://{run.address}") as unknown:
                await until(lambda: run.errors("unauthenticated") > 0)
                assert live.count(clock.monotonic()) == 0
                async with AsyncClient(f"quiver://{unknown.native_address}", token=root) as client:
                    await client.create_queue("emails")
            assert own is not None
            monkeypatch.setenv("QUIVER_TOKEN", own)
            async with forwarder_of(f"quiver://{run.address}", name="edge-1") as forwarder:
                await until(lambda: live.count(clock.monotonic()) == 1)
                node, listed = (await admin.describe_cluster()).nodes
                assert (node.role, listed.role) == ("full", "forwarder")
                assert (listed.id, listed.address) == ("edge-1", str(forwarder.native_address))
            await until(lambda: live.count(clock.monotonic()) == 0)


@edge_test
async def test_both_sides_of_a_forwarder_are_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("QUIVER_CA_FILE", authority.file)
    async with (
        running(tmp_path, security=authority.node()) as run,
        forwarder_of(f"quivers://{run.address}", security=authority.node()) as forwarder,
        AsyncClient(f"quivers://{forwarder.native_address}", tls=authority.trusting()) as client,
    ):
        await client.create_queue("emails")
        payload = b"x" * 900_000
        await client.publish("emails", payload)
        (message,) = await client.receive("emails", wait="20s")
        assert message.payload == payload
        await message.ack()


@edge_test
async def test_a_forwarder_connects_with_nothing_but_its_nodes(tmp_path: Path) -> None:
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    async with (
        running(tmp_path) as run,
        forwarder_of(f"quiver://{run.address}") as forwarder,
    ):
        assert forwarder.native_address is not None
        peer = await Peer.connect(forwarder.native_address, greet=False)
        peer.write(PREFACE)
        with pytest.raises(NodeGone, match="not the address of a node"):
            await peer.ask(Hello(versions=[1], node=f"{host}:{port}"), expect=Welcome)
        await peer.reset()
    listening.close()


@edge_test
async def test_what_a_client_leaves_unread_slows_the_node_down(tmp_path: Path) -> None:
    """Of what the client does not read, the forwarder keeps little, and the node stops sending."""
    async with (
        running(tmp_path) as run,
        forwarder_of(f"quiver://{run.address}") as forwarder,
        AsyncClient(f"quiver://{forwarder.native_address}") as client,
    ):
        await client.create_topic("large")
        for _ in range(64):
            await client.publish("large", b"x" * 1_000_000)
        assert forwarder.native_address is not None
        before = _forwarded(forwarder, "to_clients")
        peer = await Peer.connect(forwarder.native_address)
        peer.stop_reading()
        for offset in range(64):
            peer.request(Fetch(topic="large", partition=0, offset=offset, bytes_max=1))
        await until(lambda: _forwarded(forwarder, "to_clients") - before > 1_000_000)
        await until(lambda: run.unsent_bytes > 0)  # the node waits for the forwarder
        assert _forwarded(forwarder, "to_clients") - before < 48_000_000
        await peer.reset()


@edge_test
async def test_a_client_that_is_cut_off_frees_its_messages_at_once(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as run,
        forwarder_of(f"quiver://{run.address}") as forwarder,
        AsyncClient(f"quiver://{forwarder.native_address}") as client,
    ):
        assert forwarder.native_address is not None
        await client.create_queue("emails", visibility="10m")
        await client.publish_many("emails", ["1", "2", "3"])
        peer = await Peer.connect(forwarder.native_address)
        session = peer.request(Consume(subscription="emails", window=3))
        consuming, _ = await peer.answer(session)
        assert isinstance(consuming, Consuming)
        pushed, _ = await peer.answer(session)
        assert isinstance(pushed, Received)
        taken = [Settlement(one.lease, one.offsets) for one in pushed.portions]
        await peer.ask(Progress(session=session, started=taken), expect=Settled)
        assert (await client.describe_subscription("emails")).leased == 3
        await peer.reset()
        received: list[str] = []
        async with asyncio.timeout(20):
            while len(received) < 3:
                received += [m.text() for m in await client.receive("emails", wait="10s")]
        assert sorted(received) == ["1", "2", "3"]


@edge_test
async def test_bytes_that_are_no_greeting_are_refused(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as run,
        forwarder_of(
            f"quiver://{run.address}", limits=Limits(handshake_timeout_s=0.3)
        ) as forwarder,
    ):
        assert forwarder.native_address is not None
        for sent, refusal in (
            ([b"GET / HTTP/1.1\r\n\r\n"], "the bytes are not the native protocol"),
            ([PREFACE, b"\xff\xff\xff\x7f\x00\x00\x00\x00"], "a frame is not valid"),
            ([PREFACE, *frame(encode(Ping(id=1)))], "the first request must be hello"),
            ([PREFACE], "did not say hello"),
        ):
            peer = await Peer.connect(forwarder.native_address, greet=False)
            peer.write(*sent)
            reply, _ = await peer.reply()
            assert isinstance(reply, Failed)
            assert refusal in reply.message
            await peer.hangup()
            await peer.reset()


@edge_test
async def test_a_forwarder_has_as_many_connections_as_it_allows(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as run,
        forwarder_of(f"quiver://{run.address}", limits=Limits(connections_max=2)) as forwarder,
    ):
        assert forwarder.native_address is not None
        peers = [await Peer.connect(forwarder.native_address) for _ in range(2)]
        one_more = await Peer.connect(forwarder.native_address, greet=False)
        one_more.write(PREFACE)
        refusal = await one_more.refusal(one_more.request(Hello(versions=[1])))
        assert isinstance(refusal, Overloaded)
        await peers[0].close()
        await until(
            lambda: len(run.connections) == 2
        )  # the other client's, and the forwarder's own
        peers.append(await Peer.connect(forwarder.native_address))
        for peer in (*peers, one_more):
            await peer.reset()


@edge_test
async def test_without_a_node_behind_it_a_forwarder_says_so() -> None:
    async with (
        forwarder_of(f"quiver://127.0.0.1:{free_port()}") as forwarder,
        AsyncClient(f"quiver://{forwarder.native_address}", timeout="1s") as client,
    ):
        with pytest.raises(ConnectionLost, match="forwarder-1 cannot connect to"):
            await client.list_topics()


def _forwarded(forwarder: Forwarder, direction: str) -> float:
    name = f"quiver_forwarded_bytes_total{{direction={direction}}}"
    return float(forwarder.metrics.values().get(name, 0))
