"""Transactions in a replicated partition: what readers see when its leader changes, or is far away."""

from __future__ import annotations

import quiver
from tests.integration.cluster.nodes import Cluster, waited
from tests.integration.cluster.test_publishing import payloads


def test_a_transaction_that_its_leader_leaves_open_is_ended_by_the_next(three: Cluster) -> None:
    client = three.client()
    client.create_topic("left-open")
    client.publish("left-open", b"before")
    with client.transaction() as transaction:
        transaction.publish("left-open", b"in").result()
        client.publish("left-open", b"after")
        three.kill(three.leader("left-open"))
        assert payloads(client, "left-open") == [b"before"]
    waited(
        lambda: payloads(client, "left-open") == [b"before", b"in", b"after"],
        "the next leader ends it",
    )


def test_what_was_aborted_stays_hidden_at_the_next_leader(three: Cluster) -> None:
    client = three.client()
    client.create_queue("hidden")
    for number in range(30):
        with client.transaction() as transaction:
            transaction.publish("hidden", b"in %d" % number).result()
            if number % 3:
                transaction.abort()
        client.publish("hidden", b"plain %d" % number)
    expected = payloads(client, "hidden")
    assert len(expected) == 40
    three.kill(three.leader("hidden"))
    assert payloads(client, "hidden") == expected
    got: list[bytes] = []
    while len(got) < len(expected):
        for message in client.receive("hidden", 100, wait="20s"):
            got.append(message.payload)
            message.ack()
    assert got == expected
    assert client.receive("hidden", 1) == []


def test_a_replica_nearby_shows_nothing_that_is_open_or_aborted(three: Cluster) -> None:
    client = three.client()
    client.create_topic("near-open")
    zone = f"zone-{three.follower('near-open')}"

    def seen() -> list[bytes]:
        with quiver.Client(three.url, zone=zone) as near:
            messages = near.read("near-open", read_from="nearest").messages()
            return [one.payload for one in messages]

    client.publish("near-open", b"before")
    with client.transaction() as transaction:
        transaction.publish("near-open", b"aborted").result()
        client.publish("near-open", b"between")
        assert seen() == [b"before"]
        transaction.abort()
    waited(lambda: seen() == [b"before", b"between"], "the transaction has ended")
    with client.transaction() as transaction:
        transaction.publish("near-open", b"committed")
    client.publish("near-open", b"after")
    assert seen() == [b"before", b"between", b"committed", b"after"]
