"""A message that comes alone over HTTP: stored without a producer, with the same result."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from quiver import AsyncClient
from quiver.edge.auth.principal import ANONYMOUS
from quiver.edge.lone_publisher import LonePublisher
from quiver.errors import PartitionUnavailable
from quiver.testing.disk import SimulatedDisk
from tests.integration.edge_node import edge_test, running, until
from tests.integration.http.http_node import HttpNode, http_node, problem
from tests.integration.http.test_http_access import ASKED, admin_token, bearer, made_token

PATH = "/queues/emails/messages"


def count(node: HttpNode, name: str) -> float:
    return node.node.services.metrics.values().get(name, 0)


def producers(node: HttpNode) -> float:
    return count(node, "quiver_requests_total{call=open_producer}")


@edge_test
async def test_a_lone_message_is_stored_without_a_producer(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        sent = [(await node.http.post(PATH, json={"message": n})).json() for n in range(3)]
        assert producers(node) == 0
        assert count(node, "quiver_requests_total{call=publish}") == 3
        assert count(node, "quiver_published_batches_total") == 3
        received = {message["id"]: message["body"] for message in await node.received()}
        assert received == {one["id"]: number for number, one in enumerate(sent)}


@edge_test
async def test_a_message_is_alone_beside_a_receive_that_waits(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        waiting = asyncio.create_task(node.received(wait=20))
        await until(lambda: count(node, "quiver_requests_total{call=receive}") == 1)
        assert (await node.http.post(PATH, json={"message": 1})).status_code == 201
        assert [message["body"] for message in await waiting] == [1]
        assert producers(node) == 0


@edge_test
async def test_messages_that_come_together_share_a_batch(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n" % PATH.encode()
        sockets = [
            await asyncio.open_connection(node.address.host, node.address.port) for _ in range(20)
        ]
        for _, writer in sockets:
            writer.write(head + b'{"message": 1}')
        for reader, _ in sockets:
            assert (await reader.readline()).startswith(b"HTTP/1.1 201")
        for _, writer in sockets:
            writer.close()
            await writer.wait_closed()
        assert count(node, "quiver_published_batches_total") <= 5
        assert await node.depth("emails", "ready") == 20


@edge_test
async def test_a_repeat_with_the_same_idempotency_key_is_not_stored_again(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(partitions=3)
        headers = {"Idempotency-Key": "order-7"}
        first, again = [
            (await node.http.post(PATH, json={"message": n}, headers=headers)).json()
            for n in range(2)
        ]
        assert again == first | {"duplicate": True}
        assert producers(node) == 0
        assert await node.depth("emails", "ready") == 1


@edge_test
async def test_keys_lead_to_the_same_partition_as_they_do_from_a_client(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(partitions=5)
        async with AsyncClient(f"quiver://{node.node.native_address}") as client:
            for key in ("a", "b", "customer-7", "ü", "x" * 500):
                sent = await node.http.post(PATH, json={"message": 1, "key": key})
                other = await client.publish("emails", 1, key=key)
                assert sent.json()["partition"] == other.partition
        assert producers(node) == 1  # the client's


@edge_test
async def test_messages_without_a_key_are_spread(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue(partitions=3)
        sent = [(await node.http.post(PATH, json={"message": n})).json() for n in range(100)]
        assert {one["partition"] for one in sent} == {0, 1, 2}


@edge_test
async def test_what_is_refused_is_refused_as_from_a_producer(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        problem(await node.http.post(PATH, json={"message": 1}), 404, "subscription_not_found")
        await node.queue(message_bytes_max=100)
        large = await node.http.post(PATH, json={"message": "x" * 200})
        assert "allows 100" in problem(large, 413, "message_too_large")["detail"]
        no_partition = await node.http.post(PATH, json={"message": 1, "partition": 3})
        problem(no_partition, 404, "partition_not_found")
        assert (await node.http.post(PATH, json={"message": 1})).status_code == 201
        assert await node.depth("emails", "ready") == 1


@edge_test
async def test_the_first_message_of_a_token_has_its_permission_checked_by_a_producer(
    tmp_path: Path,
) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        for name in ("emails", "orders"):
            await node.http.put(f"/queues/{name}", headers=bearer(admin_token(tmp_path)))
        headers = bearer(await made_token(node, tmp_path, "publish:emails"))
        for _ in range(3):
            sent = await node.http.post(PATH, json={"message": 1}, headers=headers)
            assert sent.status_code == 201
        assert producers(node) == 1
        assert count(node, "quiver_requests_total{call=publish}") == 3
        other = await node.http.post(
            "/queues/orders/messages", json={"message": 1}, headers=headers
        )
        problem(other, 403, "permission_denied")


@edge_test
async def test_a_topic_that_is_made_anew_takes_messages_at_once(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        for _ in range(2):
            await node.queue()
            sent = await node.http.post(PATH, json={"message": 1})
            assert (sent.status_code, sent.json()["offset"]) == (201, 0)
            assert (await node.http.delete("/queues/emails")).status_code == 204


@edge_test
async def test_a_message_that_may_be_stored_is_not_sent_again(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    async with running(tmp_path, disk=disk) as run:
        peer = await run.peer()
        await peer.create("orders")
        lone = LonePublisher(run.node.services, ANONYMOUS)
        stored = await lone.publish("orders", b"1", None, {})
        assert stored is not None
        assert stored.offset == 0
        disk.fail("sync", errno.EIO)
        with pytest.raises(PartitionUnavailable):
            await lone.publish("orders", b"2", None, {})
        assert await lone.publish("orders", b"3", None, {}) is None  # while the log opens again
        assert run.errors("partition_unavailable") == 1
        disk.heal()
