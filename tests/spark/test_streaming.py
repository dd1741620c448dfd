"""Stream reads: batches of bounded size, resumed exactly, through new partitions and lost data."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from pyspark.errors import StreamingQueryException

import quiver
from quiver.client import OutgoingMessage
from tests.serving import Served, unused_address


def numbered(numbers: range, partition: int | None = None) -> list[OutgoingMessage]:
    return [OutgoingMessage(payload=str(number), partition=partition) for number in numbers]


def collect(frame, name: str, checkpoint, **trigger) -> tuple[list[int], list[dict]]:
    """Run what is available into memory: the numbers in the payloads, and each batch's progress."""
    seen: list[int] = []

    def take(batch, _) -> None:
        seen.extend(int(row.value) for row in batch.select("value").collect())

    query = (
        frame.writeStream.foreachBatch(take)
        .queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    query.awaitTermination()
    return seen, [one for one in query.recentProgress if one["numInputRows"]]


def test_batches_are_bounded_and_a_checkpoint_is_resumed_exactly(
    client, topic, stream, tmp_path
) -> None:
    client.publish_many(topic, numbered(range(100)))
    frame = stream(topic, maxOffsetsPerTrigger=40)
    first, batches = collect(frame, "first", tmp_path / "checkpoint")
    assert sorted(first) == list(range(100))
    assert [one["numInputRows"] <= 42 for one in batches] == [True] * 3
    client.publish_many(topic, numbered(range(100, 130)))
    again, _ = collect(stream(topic), "again", tmp_path / "checkpoint")
    assert sorted(again) == list(range(100, 130))


def test_bytes_bound_a_batch_too(client, topic, stream, tmp_path) -> None:
    payload = "7".rjust(4_000, "0")
    client.publish_many(topic, [OutgoingMessage(payload=payload, partition=0)] * 30)
    frame = stream(topic, maxBytesPerTrigger="40KB")
    seen, batches = collect(frame, "bytes", tmp_path / "checkpoint")
    assert len(seen) == 30
    assert 3 <= len(batches) <= 5


def as_offsets(told):
    return json.loads(told) if isinstance(told, str) else told


def test_progress_shows_how_far_the_source_is_behind(client, topic, stream, tmp_path) -> None:
    client.publish_many(topic, numbered(range(10), partition=1))
    frame = stream(topic, maxOffsetsPerTrigger=4)
    _, batches = collect(frame, "behind", tmp_path / "checkpoint")
    source = batches[0]["sources"][0]
    assert as_offsets(source["endOffset"])[topic]["1"] == 4
    assert as_offsets(source["latestOffset"])[topic]["1"] == 10


def test_a_subscription_shows_the_lag_of_the_query(client, topic, stream, tmp_path) -> None:
    client.create_subscription(f"{topic}-spark", topics=[topic], start="earliest")
    client.publish_many(topic, numbered(range(30)))

    def waiting() -> int:
        one = client.describe_subscription(f"{topic}-spark")
        return sum(count or 0 for count in (one.ready, one.delayed, one.leased, one.unseen))

    assert waiting() == 30
    collect(stream(topic, subscription=f"{topic}-spark"), "lag", tmp_path / "checkpoint")
    assert waiting() == 0
    client.publish_many(topic, numbered(range(5)))
    assert waiting() == 5


def test_topics_that_appear_later_are_read_from_their_beginning(
    client, topic, stream, tmp_path
) -> None:
    client.publish_many(topic, numbered(range(5)))
    frame = stream(subscribePattern=f"{topic}.*", startingOffsets="latest")
    first, _ = collect(frame, "before", tmp_path / "checkpoint")
    client.create_topic(f"{topic}-late", partitions=2)
    client.publish_many(f"{topic}-late", numbered(range(5, 9)))
    later, _ = collect(frame, "after", tmp_path / "checkpoint")
    assert (first, sorted(later)) == ([], [5, 6, 7, 8])


def test_a_topic_made_anew_is_data_loss(client, topic, stream, tmp_path) -> None:
    client.publish_many(topic, numbered(range(9), partition=0))
    collect(stream(topic), "old", tmp_path / "checkpoint")
    client.delete_topic(topic)
    client.create_topic(topic, partitions=3)
    client.publish_many(topic, numbered(range(2), partition=0))
    with pytest.raises(StreamingQueryException, match="ends at offset 2, before 9"):
        collect(stream(topic), "new", tmp_path / "checkpoint")
    lenient = stream(topic, failOnDataLoss="false")
    assert collect(lenient, "go-on", tmp_path / "checkpoint")[0] == []
    client.publish_many(topic, numbered(range(2, 5), partition=0))
    assert collect(lenient, "further", tmp_path / "checkpoint")[0] == [2, 3, 4]


class Copying:
    """A query over a node of its own, which may be killed while the query runs."""

    def __init__(self, spark, folder) -> None:
        self._spark, self._folder = spark, folder
        self._address = unused_address()
        self.nodes: list[Served] = []
        self.seen: list[int] = []

    def serve(self) -> Served:
        self.nodes.append(Served(self._folder / "node", "--native", self._address))
        return self.nodes[-1]

    def fill(self, messages: list[OutgoingMessage]) -> None:
        with quiver.Client(f"quiver://{self._address}") as client:
            client.create_topic("t")
            client.publish_many("t", messages)

    def run(self, timeout: str = "30s", before_batch=lambda number: None) -> None:
        def take(batch, number) -> None:
            before_batch(number)
            self.seen.extend(int(row.value) for row in batch.select("value").collect())

        reader = self._spark.readStream.format("quiver").option("timeout", timeout)
        frame = (
            reader.option("url", f"quiver://{self._address}")
            .option("topic", "t")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 20)
            .load()
        )
        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


@pytest.fixture
def copying(spark, tmp_path) -> Iterator[Copying]:
    copying = Copying(spark, tmp_path)
    copying.serve().wait_ready()
    copying.fill(numbered(range(50)))
    yield copying
    for node in copying.nodes:
        node.close()


def test_a_node_restarted_in_the_middle_only_delays_the_query(copying: Copying) -> None:
    def restart(number: int) -> None:
        if number == 1:
            copying.nodes[-1].stop(signal.SIGKILL)
            copying.serve()

    copying.run(before_batch=restart)
    assert len(copying.nodes) == 2
    assert copying.seen == list(range(50))


def test_a_node_away_for_too_long_ends_the_query_which_goes_on_later(copying: Copying) -> None:
    def stop(number: int) -> None:
        if number == 1:
            copying.nodes[-1].stop(signal.SIGKILL)

    with pytest.raises(StreamingQueryException, match=r"ConnectionLost: .*(refused|reached)"):
        copying.run("1s", stop)
    assert copying.seen == list(range(20))
    copying.serve().wait_ready()
    copying.run()
    assert copying.seen == list(range(50))
