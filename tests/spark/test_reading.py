"""Topics as tables: what a batch read returns, and how little it fetches for it."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException

import quiver
from quiver.client import OutgoingMessage


def random_messages(seed: int, count: int) -> list[OutgoingMessage]:
    """Messages with everything that may be in them, and sometimes nothing."""
    rng = random.Random(seed)
    texts = ["", "ascii", "ünïcödé ✓", "𝄞" * 3, "a" * 1000]
    return [
        OutgoingMessage(
            payload=rng.choice([b"", rng.randbytes(rng.randrange(200)), "ß✓".encode()]),
            key=rng.choice([None, b"", rng.randbytes(3), "schlüssel"]),
            headers=rng.choice(
                [None, {"a": rng.choice(texts)}, {f"h{n}": rng.choice(texts) for n in range(3)}]
            ),
            priority=rng.choice([None, rng.randrange(10)]),
        )
        for _ in range(count)
    ]


def stored(client: quiver.Client, topic: str) -> dict[tuple[int, int], tuple]:
    """Every message by partition and offset, as the client's own reader has it."""
    return {
        (one.partition, one.offset): (
            one.key,
            one.payload,
            one.timestamp_us,
            sorted(one.headers.items()),
        )
        for one in client.read(topic).messages()
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_a_read_returns_what_is_stored_whatever_it_is(client, topic, load, seed) -> None:
    messages = random_messages(seed, 300)
    for part in (messages[:1], messages[1:50], messages[50:]):
        client.publish_many(topic, part)
    client.publish(topic, bytes(1_000_000))
    rows = load(topic).selectExpr("*", "unix_micros(timestamp) as at").collect()
    expected = stored(client, topic)
    found = {
        (row.partition, row.offset): (
            None if row.key is None else bytes(row.key),
            bytes(row.value),
            row["at"],
            sorted((one.key, bytes(one.value).decode()) for one in row.headers or []),
        )
        for row in rows
    }
    assert len(rows) == 301
    assert found == expected
    assert {row.topic for row in rows} == {topic}


def test_columns_are_those_of_the_kafka_connector(load, topic) -> None:
    assert load(topic).dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]


def test_offsets_choose_a_range_of_each_partition(client, topic, load) -> None:
    for partition in range(3):
        for number in range(10):
            client.publish(topic, f"{partition}-{number}", partition=partition)
    start = json.dumps({topic: {"0": 3, "1": -2, "2": -1}})
    end = json.dumps({topic: {"0": 7, "1": 2, "2": -1}})
    found = load(topic, startingOffsets=start, endingOffsets=end).collect()
    assert sorted(bytes(row.value).decode() for row in found) == [
        *(f"0-{number}" for number in range(3, 7)),
        "1-0",
        "1-1",
    ]


def test_timestamps_choose_a_range(client, topic, load) -> None:
    placed = [client.publish(topic, str(number), partition=0) for number in range(4)]
    moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=placed[2].timestamp_us)
    since = load(topic, startingTimestamp=moment.isoformat()).collect()
    until = load(topic, endingTimestamp=moment.isoformat()).collect()
    assert [bytes(row.value) for row in since] == [b"2", b"3"]
    assert [bytes(row.value) for row in until] == [b"0", b"1"]


def test_a_large_partition_is_split_and_every_offset_read_once(client, topic, load) -> None:
    client.publish_many(topic, [OutgoingMessage(payload=b"x", partition=0)] * 1000)
    client.publish(topic, b"y", partition=2)
    frame = load(topic, minPartitions=8)
    assert frame.rdd.getNumPartitions() >= 8
    offsets = sorted((row.partition, row.offset) for row in frame.collect())
    assert offsets == [*((0, offset) for offset in range(1000)), (2, 0)]


def test_lists_patterns_and_assignments_choose_topics(client, topic, load) -> None:
    client.publish(topic, b"one", partition=1)
    client.create_topic(f"{topic}-more")
    client.publish(f"{topic}-more", b"two")

    def values(**options: str) -> list[str]:
        return sorted(bytes(row.value).decode() for row in load(**options).collect())

    assert values(subscribe=f"{topic}, {topic}-more") == ["one", "two"]
    assert values(subscribePattern=f"{topic}.*") == ["one", "two"]
    assert values(assign=json.dumps({topic: [1]})) == ["one"]
    assert values(assign=json.dumps({topic: [0]})) == []


def test_filters_cut_what_is_fetched(client, topic, load) -> None:
    for _ in range(20):
        client.publish_many(topic, [OutgoingMessage(payload=bytes(10_000), partition=1)] * 20)
    client.publish_many(topic, [OutgoingMessage(payload=bytes(10_000), partition=0)] * 20)

    def fetched(frame) -> tuple[int, float]:
        before = client.describe_node().counters
        rows = len(frame.select("offset").collect())
        after = client.describe_node().counters
        name = "quiver_fetched_bytes_total"
        return rows, after[name] - before[name]

    everything, all_bytes = fetched(load(topic))
    one_partition, partition_bytes = fetched(load(topic).where("partition = 0"))
    few_offsets, offset_bytes = fetched(load(topic).where("partition = 1 and offset >= 390"))
    moment = load(topic).where("partition = 1 and offset = 380").first().timestamp
    late, late_bytes = fetched(load(topic).where(f"timestamp >= '{moment}' and partition = 1"))
    assert everything == 420
    assert all_bytes > 4_000_000
    assert (one_partition, few_offsets, late) == (20, 10, 20)
    assert partition_bytes < all_bytes / 10
    assert offset_bytes < all_bytes / 10
    assert late_bytes < all_bytes / 10


def test_filters_work_where_spark_does_not_push_them(spark, node, client, topic) -> None:
    from quiver.spark import register
    from quiver.spark.source import PUSHDOWN

    client.publish_many(topic, [OutgoingMessage(payload=b"x", partition=0)] * 10)
    other = spark.newSession()
    other.conf.set(PUSHDOWN, "false")
    register(other)
    frame = other.read.format("quiver").option("url", node.url).option("topic", topic).load()
    assert frame.where("offset < 4").count() == 4


def test_only_the_columns_asked_for_are_there(client, topic, load) -> None:
    client.publish(topic, b"x", key="k", priority=7, partition=0)
    frame = load(topic, columns="offset,priority,dedup_id")
    assert frame.columns == ["offset", "priority", "dedup_id"]
    assert [tuple(row) for row in frame.collect()] == [(0, 7, None)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "nowhere"}, "nowhere"),
        ({}, "one of the options topic, subscribe"),
        ({"topic": "x", "startingOffset": "earliest"}, "there is no option 'startingoffset'"),
        ({"topic": "x", "startingOffsets": "soon"}, 'startingOffsets must be "earliest"'),
        ({"topic": "x", "minPartitions": "none"}, "minPartitions must be 1 or more"),
        ({"topic": "x", "columns": "offset,colour"}, "no column 'colour'"),
    ],
)
def test_a_mistake_is_told_before_any_task_starts(load, options, message) -> None:
    with pytest.raises(PySparkException, match=message):
        load(**options).collect()


def test_a_node_that_is_not_there_is_told_at_once(spark) -> None:
    from tests.serving import unused_address

    frame = spark.read.format("quiver").option("url", f"quiver://{unused_address()}")
    with pytest.raises(PySparkException, match=r"could not be reached|refused|cannot connect"):
        frame.option("topic", "orders").load().collect()


def test_offsets_that_retention_removed_are_data_loss(client, topic, load) -> None:
    client.publish_many(topic, [OutgoingMessage(payload=b"x", partition=0)] * 10)
    places = {"0": 4, "1": 0, "2": 0}
    beyond = json.dumps({topic: {**places, "0": 20}})
    start = json.dumps({topic: places})
    with pytest.raises(PySparkException, match="holds offsets 0 to 9, and 4 to 19 are needed"):
        load(topic, startingOffsets=start, endingOffsets=beyond).collect()
    kept = load(topic, startingOffsets=start, endingOffsets=beyond, failOnDataLoss="false")
    assert sorted(row.offset for row in kept.collect()) == list(range(4, 10))


def test_sparks_python_processes_use_the_installed_package_not_its_zip(spark) -> None:
    """Of the zip each of them would compile all modules anew, which takes more than a second."""

    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    (file,) = spark.sparkContext.parallelize([1], 1).map(where).collect()
    assert ".zip" not in file
