"""Transactions of clients in a cluster: whatever node dies, each is seen once and as a whole."""

from __future__ import annotations

import contextlib
import time
from collections import Counter

import httpx
import pytest

import quiver
from quiver.errors import StaleReceipt, TransactionError, Unavailable
from tests.integration.cluster.nodes import SECONDS_MAX, Cluster, waited


def book(q: quiver.Client, order: quiver.ReceivedMessage, entries: str) -> None:
    transfer = order.json()
    with q.transaction(f"bank-{entries}") as tx:
        for sign in (-1, 1):
            entry = {"transfer": transfer["id"], "cents": sign * transfer["cents"]}
            tx.publish(entries, entry, key=str(sign))
        tx.ack(order)


@pytest.mark.parametrize("what", ["input", "output", "coordinator"])
def test_a_leader_dies_amid_transfers(three: Cluster, what: str) -> None:
    count = 60
    transfers, entries = f"transfers-{what}", f"entries-{what}"
    dies = {"input": transfers, "output": entries, "coordinator": "__transactions"}[what]
    q = three.client()
    q.create_queue(transfers, visibility="5s", backoff={"min": 0})
    q.create_topic(entries, partitions=2)
    q.publish_many(transfers, [{"id": n, "cents": 10 + n} for n in range(count)])
    booked: set[int] = set()
    deadline = time.monotonic() + SECONDS_MAX
    with q.consumer(transfers) as orders:
        for number, order in enumerate(orders):
            if number == 20:
                three.kill(three.leader(dies))
            # What is not booked, or may be, comes again or is done.
            with contextlib.suppress(TransactionError, StaleReceipt, Unavailable):
                book(q, order, entries)
                booked.add(order.json()["id"])
            assert time.monotonic() < deadline, booked
            if len(booked) >= count - 1:
                break
    seen: Counter[int] = Counter()

    def is_settled() -> bool:
        found = [message.json() for message in q.read(entries).messages()]
        seen.clear()
        seen.update(entry["transfer"] for entry in found)
        return booked <= seen.keys()

    waited(is_settled, "the entries of all that was committed")
    assert set(seen.values()) == {2}


def test_each_request_of_a_transaction_may_go_to_another_node(three: Cluster) -> None:
    q = three.client()
    q.create_queue("jobs")
    q.create_topic("results", partitions=3)
    q.publish("jobs", b"1")
    nodes = [httpx.Client(base_url=three.http(n), timeout=30, trust_env=False) for n in range(3)]
    with contextlib.ExitStack() as stack:
        one, two, other = (stack.enter_context(node) for node in nodes)
        tx = one.post("/transactions").json()["id"]
        within = {"Quiver-Transaction": tx}
        for number in range(6):
            place = (one, two, other)[number % 3]
            message = {"message": number, "key": str(number)}
            sent = place.post("/topics/results/messages", json=message, headers=within)
            assert sent.status_code == 201, sent.text
        (received,) = two.get("/queues/jobs/messages?wait=20").json()["messages"]
        path = f"/queues/jobs/messages/{received['receipt_handle']}"
        assert other.delete(path, headers=within).status_code == 204
        assert list(q.read("results").messages()) == []
        assert two.post(f"/transactions/{tx}/commit").status_code == 200
        assert len(list(q.read("results").messages())) == 6
        assert q.describe_subscription("jobs").leased == 0
        assert other.get(f"/transactions/{tx}").json()["state"] == "committed"
