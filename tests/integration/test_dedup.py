"""``dedup_id``: a message is stored once within the window, whoever sends it, over restarts too."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import quiver
from quiver.errors import InvalidSetting
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.integration.queue_node import clocked


def stored(q: quiver.Client, topic: str) -> list[bytes]:
    return [row for batch in q.read(topic) for row in batch.column("payload").to_pylist()]


def test_a_repeat_is_answered_with_where_the_original_is(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_topic("t", partitions=4)
    first = q.publish("t", b"1", dedup_id="order-1")
    again = q.publish("t", b"1 again", dedup_id="order-1")
    other = q.publish("t", b"2", dedup_id="order-2")
    assert not first.duplicate
    assert again.duplicate
    assert (again.id, again.partition, again.offset) == (first.id, first.partition, first.offset)
    assert other.id != first.id
    assert sorted(stored(q, "t")) == [b"1", b"2"]


def test_of_a_batch_only_what_is_new_is_stored(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_topic("t")
    (known,) = q.publish_many("t", pa.record_batch({"payload": [b"k"], "dedup_id": ["known"]}))
    rows = {
        "payload": [b"a", b"k2", b"b", b"a2", b"c"],
        "dedup_id": ["a", "known", "b", "a", "c"],
    }
    placed = q.publish_many("t", pa.record_batch(rows))
    assert [one.offset for one in placed] == [1, known.offset, 2, 1, 3]
    assert [one.duplicate for one in placed] == [False, True, False, True, False]
    assert stored(q, "t") == [b"k", b"a", b"b", b"c"]
    follows = q.publish("t", b"next")
    assert follows.offset == 4


def test_the_producer_goes_on_after_repeats_and_after_a_restart(tmp_path: Path) -> None:
    with quiver.open(tmp_path) as q:
        q.create_topic("t")
    with quiver.open(tmp_path) as q, q.producer("t") as p:
        p.send(b"1", dedup_id="1")
        p.flush()
        for _ in range(3):
            assert p.send(b"1", dedup_id="1").result().duplicate
        assert p.send(b"2").result().offset == 1
    with quiver.open(tmp_path) as q, q.producer("t") as p:
        assert p.send(b"1", dedup_id="1").result().duplicate
        assert p.send(b"3").result().offset == 2
        assert stored(q, "t") == [b"1", b"2", b"3"]


@async_test
async def test_the_window_ends_and_survives_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("t", dedup_window="5m")
        await q.publish("t", b"1", dedup_id="x")
        await clock.advance(299)
        assert (await q.publish("t", b"2", dedup_id="x")).duplicate
    async with clocked(tmp_path, clock) as q:
        assert (await q.publish("t", b"3", dedup_id="x")).duplicate
        await clock.advance(2)
        assert not (await q.publish("t", b"4", dedup_id="x")).duplicate


def test_without_a_window_nothing_is_dropped(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_topic("t", dedup_window=0)
    q.publish("t", b"1", dedup_id="x")
    assert not q.publish("t", b"2", dedup_id="x").duplicate
    q.alter_topic("t", dedup_window="1m")
    q.publish("t", b"3", dedup_id="x")
    assert q.publish("t", b"4", dedup_id="x").duplicate
    with pytest.raises(InvalidSetting, match="dedup_window"):
        q.create_topic("u", dedup_window="2d")


def test_another_client_with_the_same_id_is_a_repeat_too(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs")
    with q.producer("jobs") as one, q.producer("jobs") as other:
        first = one.send(b"1", dedup_id="x").result()
        second = other.send(b"1", dedup_id="x").result()
    assert (second.id, second.duplicate) == (first.id, True)
    assert len(q.receive("jobs")) == 1
