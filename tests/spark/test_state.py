"""Delivery state as a table: one row for each pending message, at one position of the log."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException


def test_every_pending_message_is_a_row_with_state_attempts_and_age(client, topic, load) -> None:
    queue = f"{topic}-queue"
    client.create_queue(queue, visibility="10m")
    client.publish_many(queue, [str(number) for number in range(10)])
    taken = client.receive(queue, max_messages=4, wait="5s")
    taken[0].ack()
    taken[1].nack(delay="1h", error="later")
    client.publish(queue, "much later", delay="1d")
    rows = load(subscription=queue, view="state").collect()
    found = {row.offset: (row.state, row.attempts) for row in rows}
    leased = {one.offset for one in taken[2:]}
    assert len(rows) == 10
    assert taken[0].offset not in found
    assert found[taken[1].offset] == ("delayed", 1)
    assert found[10] == ("delayed", 0)
    assert {found[offset] for offset in leased} == {("leased", 1)}
    assert [state for state, _ in found.values()].count("ready") == 6
    assert all(0 <= row.age_seconds < 120 for row in rows)
    assert {(row.subscription, row.topic, row.position) for row in rows} == {(queue, queue, 11)}


def test_columns_that_are_not_asked_for_are_not_computed(client, topic, load) -> None:
    client.create_subscription(f"{topic}-s", topics=[topic])
    client.publish(topic, b"x", partition=1)
    rows = load(subscription=f"{topic}-s", view="state", columns="partition,offset,state").collect()
    assert [tuple(row) for row in rows] == [(1, 0, "ready")]


def test_a_subscription_that_is_not_there_is_told(load) -> None:
    with pytest.raises(PySparkException, match="nobody"):
        load(subscription="nobody", view="state").collect()
