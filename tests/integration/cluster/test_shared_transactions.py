"""Shared transactions in a cluster: parts go through any node, and a coordinator that dies loses nothing."""

from __future__ import annotations

import pytest

import quiver
from quiver.client import AsyncClient
from quiver.client.transaction.shared import PartReference, SharedTransactions
from quiver.model.transaction import producer_of
from tests.integration.cluster.nodes import Cluster, waited


def part_of(
    client: quiver.Client, name: str, number: int, topic: str, value: str
) -> PartReference | None:
    """One task that writes its part; ``None`` if the number is committed already."""

    async def write(inner: AsyncClient) -> PartReference | None:
        part = await SharedTransactions(inner.cluster, name, 120.0).part(number)
        if part is None:
            return None
        await (await part.producer(topic)).send(value.encode(), key=value)
        return await part.stored()

    return client.run(write)


def commit(client: quiver.Client, name: str, number: int, *parts: PartReference | None) -> None:
    named = [part for part in parts if part is not None]

    async def end(inner: AsyncClient) -> None:
        await SharedTransactions(inner.cluster, name, 120.0).commit(number, named)

    client.run(end)


def values(client: quiver.Client, topic: str) -> list[str]:
    return sorted(one.payload.decode() for one in client.read(topic).messages())


def test_parts_of_all_nodes_are_committed_together(three: Cluster) -> None:
    clients = [three.client(index) for index in range(3)]
    clients[0].create_topic("together", partitions=3)
    for number in range(4):  # names are coordinated by different nodes
        name = f"sink-{number}"
        parts = [part_of(q, name, 0, "together", f"{number}{i}") for i, q in enumerate(clients)]
        lost = part_of(clients[0], name, 0, "together", "lost")
        commit(clients[number % 3], name, 0, *parts)
        assert part_of(clients[1], name, 0, "together", "again") is None
        state = clients[2].describe_transaction(lost.transaction if lost else 0)
        assert state == "aborted"
    wanted = sorted(f"{number}{i}" for number in range(4) for i in range(3))
    waited(lambda: values(clients[0], "together") == wanted, "all that was committed")


@pytest.mark.parametrize("when", ["written", "committed"])
def test_the_coordinator_dies(three: Cluster, when: str) -> None:
    topic, name = f"copy-{when}", f"query-{when}"
    q = three.client()
    q.create_topic(topic, partitions=2)
    parts = [part_of(q, name, 0, topic, value) for value in ("a", "b")]
    part_of(q, name, 0, topic, "lost")
    if when == "committed":
        commit(q, name, 0, *parts)
    partitions = len(q.describe_topic("__transactions").partitions)
    assert parts[0] is not None
    producer, _ = producer_of(parts[0].transaction)
    three.kill(three.leader("__transactions", producer % partitions))
    commit(q, name, 0, *parts)
    assert part_of(q, name, 0, topic, "again") is None
    commit(q, name, 1, part_of(q, name, 1, topic, "c"))
    waited(lambda: values(q, topic) == ["a", "b", "c"], "each once")
