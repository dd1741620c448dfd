"""Nodes that talk over TLS and ask for tokens: whoever is let in is let in by all, for what is theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import quiver
from quiver.cluster.metadata.open import open_store
from quiver.config import Metadata, Security
from quiver.edge.peers.secrets import PeerSecrets
from quiver.errors import PermissionDenied, QuiverError, Unauthenticated
from quiver.model.clock import SystemClock
from tests.integration.certificates import Authority
from tests.integration.cluster.nodes import Cluster, ForwarderProcess, waited


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Cluster, Authority, str]]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "certificates")
    certificate, key = authority.issue("node", "127.0.0.1")
    security = Security(
        authentication=True, tls_certificate=certificate, tls_key=key, tls_ca=authority.file
    )
    cluster = Cluster(folder, 2, security=security)
    try:
        cluster.start()
        files = [cluster.data(index) / "admin.token" for index in range(2)]
        found = [file for file in files if file.exists()]
        assert len(found) == 1, "the first token is made once"
        yield cluster, authority, found[0].read_text().strip()
    finally:
        cluster.close()


def _client(secured: tuple[Cluster, Authority, str], node: int, token: str) -> quiver.Client:
    cluster, authority, _ = secured
    url = f"quivers://{cluster.address(node)}"
    return quiver.Client(url, token=token, tls=authority.trusting())


def test_tokens_and_permissions_hold_on_every_node(
    secured: tuple[Cluster, Authority, str],
) -> None:
    _cluster, _, admin = secured
    with _client(secured, 0, admin) as client:
        client.create_queue("orders", partitions=2)
        client.create_queue("secret", partitions=2)
        _, token = client.create_token("shop", ["publish:topic:orders", "consume:queue:orders"])
        assert token is not None
    for node in range(2):
        with _client(secured, node, token) as shop:
            stored = waited(lambda: _published(shop), "the token is known")
            assert len(stored) == 10
            for refused in (
                lambda: shop.publish("secret", b"x"),
                lambda: shop.receive("secret"),
                lambda: shop.describe_subscription("secret"),
                lambda: shop.purge("secret"),
            ):
                with pytest.raises(PermissionDenied):
                    refused()
    with _client(secured, 1, token) as shop:
        got = 0
        while got < 20:
            messages = shop.receive("orders", 20, wait="5s")
            assert messages
            shop.ack("orders", messages)
            got += len(messages)
    for node in range(2):
        with pytest.raises(QuiverError), _client(secured, node, "quiver_wrong") as stranger:
            stranger.list_topics()


def test_tokens_and_tls_hold_through_a_forwarder(
    secured: tuple[Cluster, Authority, str], tmp_path: Path
) -> None:
    cluster, authority, admin = secured
    with _client(secured, 0, admin) as client:
        client.create_queue("forwarded", partitions=4, replicas=1)
        _, token = client.create_token("outside", ["publish:forwarded", "consume:queue:forwarded"])
        _, own = client.create_token("edge", ["consume:cluster:*"])
    assert token is not None
    assert own is not None
    certificate, key = authority.issue("forwarder", "127.0.0.1")
    security = Security(authentication=True, tls_certificate=certificate, tls_key=key)
    forwarder = ForwarderProcess(tmp_path, f"quivers://{cluster.address(0)}", security=security)
    forwarder.variables = {"QUIVER_CA_FILE": authority.file, "QUIVER_TOKEN": own}
    with forwarder:
        url = f"quivers://{forwarder.address}"
        with quiver.Client(url, token=token, tls=authority.trusting()) as outside:
            for partition in range(4):  # which both nodes lead
                waited(lambda: outside.publish("forwarded", b"x", partition=partition), "known")  # noqa: B023
            for _, message in zip(range(4), outside.consume("forwarded"), strict=False):
                message.ack()
            with pytest.raises(PermissionDenied, match="outside has no grant"):
                outside.delete_topic("forwarded")
            roles = waited(lambda: _roles(outside), "it is listed")
            assert sorted(roles) == ["forwarder", "full", "full"]
        with (
            pytest.raises(Unauthenticated),
            quiver.Client(url, token="qv_x", tls=authority.trusting()) as no,
        ):
            no.list_topics()


def _roles(client: quiver.Client) -> list[str] | None:
    roles = [one.role for one in client.describe_cluster().nodes]
    return roles if "forwarder" in roles else None


def _published(client: quiver.Client) -> list[object] | None:
    try:
        return list(client.publish_many("orders", [b"x"] * 10))
    except Unauthenticated:
        return None


def secret_in(cluster: Cluster) -> str:
    """The secret of the nodes, as somebody reads it who has access to etcd."""

    async def read() -> str:
        metadata = Metadata(store="etcd", endpoints=cluster.etcd.endpoint)
        store = await open_store(metadata, "", SystemClock())
        try:
            return (await PeerSecrets.open(store, SystemClock())).current
        finally:
            await store.close()

    return asyncio.run(read())


def test_the_secret_of_the_nodes_lets_nobody_in_without_the_certificate_of_a_node(
    secured: tuple[Cluster, Authority, str],
) -> None:
    cluster, authority, _ = secured
    secret = secret_in(cluster)
    url = f"quivers://{cluster.address(0)}"
    for tls in (authority.trusting(), authority.trusting("shop", "shop.example")):
        with (
            pytest.raises(Unauthenticated),
            quiver.Client(url, token=secret, tls=tls, timeout="10s") as thief,
        ):
            thief.list_topics()
    with httpx.Client(verify=authority.context(), trust_env=False) as http:
        reply = http.get(
            cluster.http(0).replace("http:", "https:") + "/topics",
            headers={"Authorization": f"Bearer {secret}"},
        )
        assert reply.status_code == 401
    node = authority.trusting("node", "127.0.0.1")
    with quiver.Client(url, token=secret, tls=node, timeout="10s") as known:
        known.list_topics()
        with pytest.raises(PermissionDenied):
            known.create_token("me", ["admin:*"])


def test_the_secret_of_the_nodes_is_replaced_while_they_run(
    secured: tuple[Cluster, Authority, str],
) -> None:
    cluster, _, admin = secured
    before = secret_in(cluster)
    with _client(secured, 0, admin) as client:
        client.create_topic("rotated", partitions=4, replicas=2)
        client.publish_many("rotated", [b"x"] * 20)
        client.rotate_peer_secret()
        assert secret_in(cluster) != before
        client.create_topic("later", partitions=4, replicas=2)
    for node in range(2):
        with _client(secured, node, admin) as client:
            for topic in ("rotated", "later"):
                assert len(client.publish_many(topic, [b"x"] * 20)) == 20
