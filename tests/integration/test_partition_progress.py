"""How far a subscription has come in each of its partitions: committed offset and lag."""

from __future__ import annotations

import time

import quiver
from tests.integration.observability.test_metrics import Figures


def progress(q: quiver.Client, name: str) -> dict[tuple[str, int], tuple[int, int, int]]:
    partitions = q.describe_subscription(name).partitions
    assert partitions is not None
    return {(one.topic, one.partition): (one.committed, one.end, one.lag) for one in partitions}


def test_describe_shows_the_committed_offset_and_the_lag_of_each_partition(
    quiver_broker: quiver.Client,
) -> None:
    q = quiver_broker
    q.create_topic("orders", partitions=2)
    q.create_subscription("billing", ["orders"])
    sent = {0: 0, 1: 0}
    for number in range(40):
        sent[q.publish("orders", b"x", key=f"k{number}").partition] += 1
    assert progress(q, "billing") == {
        ("orders", 0): (0, sent[0], sent[0]),
        ("orders", 1): (0, sent[1], sent[1]),
    }
    of_first = [one for one in q.receive("billing", 100) if one.partition == 0]
    q.ack("billing", [one for one in of_first if one.offset != 3])
    # What is after a message that is not acknowledged is done, and cannot be committed yet.
    assert progress(q, "billing") == {
        ("orders", 0): (3, sent[0], 1),
        ("orders", 1): (0, sent[1], sent[1]),
    }
    q.ack("billing", [one for one in of_first if one.offset == 3])
    assert progress(q, "billing")["orders", 0] == (sent[0], sent[0], 0)


def test_a_group_and_a_stream_commit_offsets_too(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_topic("orders")
    q.create_subscription("ledger", ["orders"], ordering="partition")
    q.create_subscription("stream", ["orders"])
    q.publish_many("orders", [b"a", b"b", b"c"])
    q.ack("ledger", q.receive("ledger", 2, consumer="one"))
    q.seek("stream", {("orders", 0): 1})  # as a pipeline of Spark does after each of its batches
    assert progress(q, "ledger") == {("orders", 0): (2, 3, 1)}
    assert progress(q, "stream") == {("orders", 0): (1, 3, 2)}


def test_metrics_have_them_with_topic_and_partition(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", partitions=2)
    for number in range(20):
        q.publish("jobs", b"x", key=f"k{number}")
    of_first = [one for one in q.receive("jobs", 100) if one.partition == 0]
    q.ack("jobs", of_first[:3])
    expected = {
        ("jobs", topic, str(partition)): (committed, lag)
        for (topic, partition), (committed, _, lag) in progress(q, "jobs").items()
    }
    assert len(expected) == 2
    deadline = time.monotonic() + 50
    while True:  # metrics may be a second old
        figures = Figures(q.metrics())
        shown = {
            labels: (
                figures.get("subscription_partition_committed_offset", *labels),
                figures.get("subscription_partition_lag_messages", *labels),
            )
            for labels in expected
        }
        if shown == expected:
            return
        assert time.monotonic() < deadline, (shown, expected)
        time.sleep(0.1)
