"""DataFrames into topics: what arrives, and that a failing task leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf

import quiver
from quiver.client import OutgoingMessage
from tests.serving import eventually
from tests.spark.test_reading import random_messages


def contents(client, topic: str) -> list[tuple]:
    """The messages of a topic without where they are, in a comparable order."""
    return sorted(
        (one.key or b"", one.payload, tuple(sorted(one.headers.items())), one.priority)
        for one in client.read(topic).messages()
    )


def wait_for_rows(url: str, topic: str) -> None:
    """Wait until another task has published its rows, which nobody sees yet."""
    with quiver.Client(url) as client:
        eventually(
            lambda: any(True for _ in client.read(topic, isolation="uncommitted").messages()),
            "the other task's rows are there",
        )


def save(frame, node, topic: str) -> None:
    frame.write.format("quiver").option("url", node.url).option("topic", topic).mode(
        "append"
    ).save()


def test_what_is_read_and_written_again_is_equal(client, node, topic, load) -> None:
    client.publish_many(topic, random_messages(3, 400))
    client.publish(topic, bytes(1_000_000), key="large")
    client.create_topic(f"{topic}-copy", partitions=5)
    frame = load(topic, columns="key,value,headers,priority")
    save(frame.repartition(3), node, f"{topic}-copy")
    assert contents(client, f"{topic}-copy") == contents(client, topic)


def test_a_key_goes_where_every_client_would_send_it(client, spark, node, topic) -> None:
    rows = [(f"key-{number % 20}", str(number)) for number in range(200)]
    save(spark.createDataFrame(rows, "key string, value string").coalesce(1), node, topic)
    by_key: dict[bytes, list[tuple[int, int]]] = {}
    for one in client.read(topic).messages():
        by_key.setdefault(one.key, []).append((one.partition, int(one.payload)))
    for number in range(20):
        key = f"key-{number}"
        partition = client.publish(topic, b"", key=key).partition
        assert {place for place, _ in by_key[key.encode()]} == {partition}
        assert [value for _, value in by_key[key.encode()]] == list(range(number, 200, 20))


def test_columns_say_where_and_how(client, spark, node, topic) -> None:
    client.create_topic(f"{topic}-other")
    frame = spark.sql(
        f"""
        select '{topic}' as topic, 'a' as value, 2 as partition, 9 as priority,
               map('h', 'x') as headers, timestamp '2026-01-02 03:04:05' as event_time, 60 as delay
        union all
        select '{topic}-other', 'b', null, null, null, null, null
        """
    )
    frame.write.format("quiver").option("url", node.url).mode("append").save()
    (one,) = client.read(topic).messages()
    (other,) = client.read(f"{topic}-other").messages()
    assert (one.payload, one.partition, one.priority, one.headers) == (b"a", 2, 9, {"h": "x"})
    assert one.event_time.isoformat() == "2026-01-02T03:04:05+00:00"
    assert 55_000_000 < one.deliver_at_us - one.timestamp_us <= 60_000_000
    assert (other.payload, other.headers, other.deliver_at_us) == (b"b", {}, None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("1 as value", "column 'value' must be string or binary, not int"),
        ("'x' as payload", "a message has no column 'payload'"),
        ("'k' as key", "no column 'value'"),
    ],
)
def test_a_schema_that_does_not_fit_is_told_before_any_task(
    spark, node, topic, columns, message
) -> None:
    with pytest.raises(PySparkException, match=message):
        save(spark.sql(f"select {columns}"), node, topic)


def test_an_unknown_topic_is_told_before_any_task(spark, node) -> None:
    with pytest.raises(PySparkException, match="nowhere"):
        save(spark.sql("select 'x' as value"), node, "nowhere")


def test_rows_of_a_failed_attempt_are_never_published(client, spark, node, topic, tmp_path) -> None:
    marks = str(tmp_path)

    @udf("string", useArrow=False)
    def fail_once(number: int) -> str:
        """Fail half-way, the first time that each task is tried."""
        mark = Path(marks) / f"tried-{number}"
        if number % 2000 == 1500 and not mark.exists():
            mark.touch()
            raise RuntimeError("made to fail half-way")
        return str(number)

    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "100")
    try:
        frame = spark.range(4000, numPartitions=2).select(fail_once("id").alias("value"))
        save(frame, node, topic)
    finally:
        spark.conf.set(setting, before)
    assert len(list(tmp_path.iterdir())) == 2, "both tasks were tried and failed once"
    values = sorted(int(one.payload) for one in client.read(topic).messages())
    assert values == list(range(4000))


def test_a_job_that_fails_for_good_publishes_nothing(client, spark, node, topic) -> None:
    """The task that fails waits for the other one, so that there is something to abort."""
    url = node.url

    @udf("string", useArrow=False)
    def fail(number: int) -> str:
        if number == 999:
            wait_for_rows(url, topic)
            raise RuntimeError("made to fail at the end")
        return str(number)

    with pytest.raises(PySparkException, match="made to fail at the end"):
        save(spark.range(1000, numPartitions=2).select(fail("id").alias("value")), node, topic)
    for partition in range(3):
        client.publish(topic, b"later", partition=partition)
    eventually(
        lambda: [one.payload for one in client.read(topic).messages()] == 3 * [b"later"],
        "nobody is held back",
    )


def test_no_topic_is_left_behind(client, spark, node, topic) -> None:
    before = {one.name for one in client.list_topics()}
    save(spark.sql("select 'x' as value"), node, topic)
    assert {one.name for one in client.list_topics()} == before


def test_a_null_value_is_refused_with_one_clear_error(client, spark, node, topic) -> None:
    with pytest.raises(PySparkException, match="column 'value' has a null"):
        save(spark.sql("select cast(null as string) as value"), node, topic)


def test_a_stream_copies_every_message_once_in_many_batches(
    client, topic, stream, run_into
) -> None:
    client.create_topic(f"{topic}-copy", partitions=2)
    client.publish_many(
        topic, [OutgoingMessage(payload=str(n), key=f"k{n % 9}") for n in range(300)]
    )
    frame = stream(topic, maxOffsetsPerTrigger=70).select("key", "value")
    assert len(run_into(frame, f"{topic}-copy")) >= 4
    client.publish_many(topic, [OutgoingMessage(payload=str(n)) for n in range(300, 350)])
    run_into(frame, f"{topic}-copy")
    values = sorted(int(one.payload) for one in client.read(f"{topic}-copy").messages())
    assert values == list(range(350))
