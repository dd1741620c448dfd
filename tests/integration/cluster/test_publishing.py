"""Publishing through any node: acknowledgements, idempotence, fencing, repeats."""

from __future__ import annotations

import pytest

import quiver
from quiver.errors import ProducerFenced
from tests.integration.cluster.nodes import Cluster, waited


def payloads(client: quiver.Client, topic: str) -> list[bytes]:
    return [
        value.as_py()
        for batch in client.read(topic, start="earliest", follow=False)
        for value in batch["payload"]
    ]


@pytest.mark.parametrize("acks", ["none", "leader", "quorum", "all"])
def test_what_was_published_with_any_acks_is_read_from_any_node(three: Cluster, acks: str) -> None:
    topic = f"acks-{acks}"
    three.client(0).create_topic(topic, partitions=3, acks=acks)
    for index in range(3):
        three.client(index).publish_many(topic, [f"{index}-{n}".encode() for n in range(10)])
    for index in range(3):
        client = three.client(index)
        waited(lambda: len(payloads(client, topic)) == 30, "everything is there")  # noqa: B023
        assert len(set(payloads(client, topic))) == 30


def test_a_named_producer_goes_on_at_another_node_and_fences_the_first(three: Cluster) -> None:
    three.client(0).create_topic("named", partitions=3)
    with three.client(1).producer("named", name="till") as first:
        for n in range(30):
            first.send(str(n), key=str(n))
        first.flush()
        with three.client(2).producer("named", name="till") as second:
            second.send("after")
            second.flush()
            with pytest.raises(ProducerFenced):
                first.send("zombie", key="1").result(30)


def test_repeats_are_dropped_whichever_node_they_come_through(three: Cluster) -> None:
    three.client(0).create_topic("repeats")
    ids = {three.client(index).publish("repeats", b"once", dedup_id="a").id for index in range(3)}
    assert len(ids) == 1
    assert payloads(three.client(), "repeats") == [b"once"]
