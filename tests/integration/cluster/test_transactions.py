"""Transactions over partitions of several leaders: all or nothing, whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time

import pytest

import quiver
from quiver.errors import QuiverError, TransactionFenced
from tests.integration.cluster.nodes import SECONDS_MAX, Cluster, waited
from tests.integration.cluster.test_publishing import payloads

TRANSACTIONS = "__transactions"


def coordinator(cluster: Cluster, transaction: int) -> int:
    """The node that coordinates a transaction."""
    count = len(cluster.client().describe_topic(TRANSACTIONS).partitions)
    return cluster.leader(TRANSACTIONS, (transaction >> 20) % count)


def topics(client: quiver.Client, *names: str) -> None:
    for name in names:
        client.create_topic(name, partitions=3)


@pytest.mark.parametrize("entry", [0, 1, 2])
def test_a_transaction_reaches_every_leader_through_any_node(three: Cluster, entry: int) -> None:
    client, name = three.client(entry), f"tx-everywhere-{entry}"
    client.create_topic(name, partitions=6)
    client.create_queue(f"{name}-in")
    client.publish_many(f"{name}-in", [str(n).encode() for n in range(20)])
    with client.transaction() as tx:
        for message in client.receive(f"{name}-in", 20, wait="20s"):
            tx.publish(name, message.payload, key=message.payload)
            tx.ack(message)
        assert payloads(client, name) == []
    assert sorted(payloads(client, name), key=int) == [str(n).encode() for n in range(20)]
    assert three.client((entry + 1) % 3).describe_transaction(tx.id) == "committed"
    info = client.describe_subscription(f"{name}-in")
    assert (info.ready, info.leased) == (0, 0)


def test_the_coordinators_of_a_cluster_share_the_work(three: Cluster) -> None:
    client = three.client()
    with client.transaction() as tx:
        pass
    assert tx.state == "committed"
    assert len(client.describe_topic(TRANSACTIONS).partitions) == 8


def test_a_name_fences_across_nodes(three: Cluster) -> None:
    topics(three.client(), "tx-fenced")
    old = three.client(0).transaction(name="billing")
    old.begin()
    old.publish("tx-fenced", b"old")
    with three.client(1).transaction(name="billing") as new:
        new.publish("tx-fenced", b"new")
    with pytest.raises(TransactionFenced):
        old.commit()
    assert payloads(three.client(2), "tx-fenced") == [b"new"]


@pytest.mark.parametrize("what", ["coordinator", "partition"])
def test_a_leader_that_is_killed_before_the_commit_holds_up_nothing(
    three: Cluster, what: str
) -> None:
    client, name = three.client(), f"tx-killed-{what}"
    client.create_topic(name)
    tx = client.transaction()
    tx.begin()
    tx.publish(name, b"before")
    victim = coordinator(three, tx.id) if what == "coordinator" else three.leader(name)
    three.kill(victim)
    tx.publish(name, b"after")
    tx.commit()
    assert payloads(client, name) == [b"before", b"after"]


def test_all_or_nothing_while_nodes_are_killed(three: Cluster) -> None:
    """Each transaction writes to two topics and takes from a queue, one node after the other dies."""
    client = three.client()
    topics(client, "tx-left", "tx-right")
    client.create_queue("tx-work")
    total = 150
    client.publish_many("tx-work", [str(n).encode() for n in range(total)])
    is_over = threading.Event()

    def work() -> None:
        with quiver.Client(three.url) as own:
            while not is_over.is_set():
                with contextlib.suppress(QuiverError), own.transaction(timeout="20s") as tx:
                    for message in own.receive("tx-work", 5, wait="1s"):
                        tx.publish("tx-left", message.payload, key=message.payload)
                        tx.publish("tx-right", message.payload, key=message.payload)
                        tx.ack(message)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for index in range(3):
        time.sleep(1.0)
        three.kill(index)
        three.revive(index)
    try:
        waited(lambda: len(payloads(client, "tx-right")) >= total or None, "all work is done")
    finally:
        is_over.set()
        for worker in workers:
            worker.join(SECONDS_MAX)
    expected = sorted(str(n).encode() for n in range(total))
    assert sorted(payloads(client, "tx-left")) == expected
    assert sorted(payloads(client, "tx-right")) == expected


def test_coordinators_that_move_lose_no_transaction_and_decide_none_twice(three: Cluster) -> None:
    client = three.client()
    topics(client, "tx-moved")
    with client.transaction():
        pass  # so that there are coordinators
    is_over, committed = threading.Event(), list[bytes]()

    def work(worker: int) -> None:
        with quiver.Client(three.url) as own:
            for number in itertools.count():
                if is_over.is_set():
                    return
                payload = b"%d-%d" % (worker, number)
                with own.transaction() as tx:
                    tx.publish("tx-moved", payload, key=payload)
                committed.append(payload)

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for worker in workers:
        worker.start()
    try:
        nodes = [one.id for one in client.describe_cluster().nodes if one.role == "full"]
        for index in range(8):
            leader = three.leader(TRANSACTIONS, index)
            client.transfer_lead(TRANSACTIONS, index, nodes[(leader + 1) % 3])
            time.sleep(0.2)
    finally:
        is_over.set()
        for worker in workers:
            worker.join(SECONDS_MAX)
    assert sorted(payloads(client, "tx-moved")) == sorted(committed)
    assert len(committed) > 20
