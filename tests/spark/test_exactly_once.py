"""The sink through everything that can happen between two of its steps: each row arrives once."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import quiver
from quiver.errors import TransactionAborted, TransactionFenced, TransactionTimedOut
from quiver.spark.connections import Nodes
from quiver.spark.options import WriteOptions
from quiver.spark.write import batches
from quiver.spark.write import sink as sink_module
from quiver.spark.write.sink import BatchWriter, StreamWriter, WrittenRows, sink_name
from tests.serving import Served, eventually, served, unused_address

SCHEMA = StructType([StructField("key", StringType()), StructField("value", StringType())])
_numbers = itertools.count()


def rows_of(values: range) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pydict(
            {"key": [f"k{n % 11}" for n in part], "value": [str(n) for n in part]}
        )
        for part in (values[: len(values) // 2], values[len(values) // 2 :])
    ]


class Sink:
    """The steps of a sink, one by one, as Spark's tasks and drivers take them."""

    def __init__(self, client: quiver.Client, url: str, topic: str, **options: object) -> None:
        self.client = client
        self.topic = topic
        self.name = sink_name(f"query-{next(_numbers)}")
        self.options = WriteOptions(nodes=Nodes(url=url), topic=topic, **options)

    def written(self, batch: int, values: range) -> WrittenRows:
        """An attempt of a task, to its end."""
        return self.writer._write(iter(rows_of(values)), self.name, batch)

    def killed(self, batch: int, values: range) -> None:
        """An attempt of a task that has written all its rows, and is gone."""
        self.written(batch, values)

    def commit(self, batch: int, *messages: WrittenRows) -> None:
        """What a driver does once the tasks are done."""
        self.writer.commit(list(messages), batch)

    @property
    def writer(self) -> StreamWriter:
        return StreamWriter(self.options, SCHEMA)

    def values(self) -> list[int]:
        return sorted(int(one.payload) for one in self.client.read(self.topic).messages())


@pytest.fixture(autouse=True)
def another_process() -> Iterator[None]:
    """Each test begins as a process does: it knows of no sink."""
    sink_module._checked.clear()
    sink_module._finished.clear()
    yield
    batches._kept.clear()


@pytest.fixture
def sink(client: quiver.Client, node: Served, topic: str) -> Sink:
    return Sink(client, node.url, topic)


def test_nothing_is_visible_before_the_driver_commits(sink: Sink) -> None:
    first, second = sink.written(0, range(100)), sink.written(0, range(100, 200))
    assert sink.values() == []
    assert len(list(sink.client.read(sink.topic, isolation="uncommitted").messages())) == 200
    sink.commit(0, first, second)
    assert sink.values() == list(range(200))


def test_only_the_attempt_that_won_counts(sink: Sink) -> None:
    sink.killed(0, range(100))  # a speculative duplicate, or one whose executor died at its end
    winner = sink.written(0, range(100))
    sink.commit(0, winner)
    assert sink.values() == list(range(100)), "and the other holds no reader back"


def test_an_attempt_that_was_slower_adds_nothing_later(sink: Sink) -> None:
    rows = iter(rows_of(range(100)))

    def slowly() -> Iterator[pa.RecordBatch]:
        yield next(rows)
        sink.commit(0, sink.written(0, range(100)))  # the other attempt, and the driver
        yield next(rows)

    with contextlib.suppress(quiver.QuiverError):
        sink.writer._write(slowly(), sink.name, 0)
    sink.commit(1, sink.written(1, range(100, 120)))
    eventually(lambda: sink.values() == list(range(120)), "the rows of the one that won")


def test_a_batch_that_comes_again_after_its_commit_adds_nothing(sink: Sink) -> None:
    """The driver died when the batch was committed, before Spark knew of it."""
    sink.commit(0, sink.written(0, range(100)))
    again = sink.written(0, range(100))
    assert again.part is None
    sink.commit(0, again)
    sink.commit(1, sink.written(1, range(100, 150)))
    assert sink.values() == list(range(150))


def test_of_two_drivers_with_one_batch_the_first_that_commits_counts(sink: Sink) -> None:
    ours, theirs = sink.written(0, range(50)), sink.written(0, range(50))
    sink.commit(0, theirs)
    sink.commit(0, ours)  # one that was believed dead
    assert sink.values() == list(range(50))


def test_a_driver_that_died_before_its_commit_leaves_nothing(sink: Sink) -> None:
    sink.commit(0, sink.written(0, range(10)))
    sink.killed(1, range(10, 60))
    sink.killed(1, range(60, 90))
    # The rows of the batch that is run again lie differently.
    sink.commit(1, sink.written(1, range(89, 9, -1)))
    assert sink.values() == list(range(90))


def test_a_driver_of_an_earlier_batch_cannot_come_back(sink: Sink) -> None:
    old = sink.written(0, range(50))
    sink.written(1, range(50, 80))
    with pytest.raises(TransactionFenced):
        sink.commit(0, old)
    with pytest.raises(TransactionFenced):
        sink.written(0, range(50))
    assert sink.values() == []


def test_a_batch_without_rows_is_committed_too(sink: Sink) -> None:
    sink.commit(0, sink.written(0, range(0)))
    sink.commit(1, sink.written(1, range(5)))
    assert sink.values() == list(range(5))


def test_a_task_that_fails_aborts_its_part_at_once(sink: Sink) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows_of(range(1000))
        raise RuntimeError("made to fail")

    with pytest.raises(RuntimeError):
        sink.writer._write(failing(), sink.name, 0)
    sink.client.publish(sink.topic, b"7", partition=0)
    eventually(lambda: sink.values() == [7], "nobody is held back")


def test_a_batch_that_spark_gives_up_is_aborted_with_all_its_parts(sink: Sink) -> None:
    one = sink.written(0, range(100))
    sink.killed(0, range(100, 200))
    sink.writer.abort([one, None], 0)
    sink.client.publish(sink.topic, b"7", partition=0)
    assert sink.values() == [7]
    with pytest.raises(TransactionAborted):
        sink.commit(0, one)
    sink.commit(0, sink.written(0, range(10, 20)))
    assert sink.values() == [7, *range(10, 20)]


def test_what_is_committed_cannot_be_given_up(sink: Sink) -> None:
    one = sink.written(0, range(10))
    sink.commit(0, one)
    sink.writer.abort([one], 0)
    assert sink.values() == list(range(10))


def test_a_job_without_a_name_leaves_none_and_its_late_tasks_nothing(
    client: quiver.Client, node: Served, topic: str
) -> None:
    writer = BatchWriter(WriteOptions(nodes=Nodes(url=node.url), topic=topic), SCHEMA)
    writer.commit([writer.write(iter(rows_of(range(20))))])
    with pytest.raises(quiver.QuiverError, match="ended for good"):
        writer.write(iter(rows_of(range(20))))
    values = [int(one.payload) for one in client.read(topic).messages()]
    assert sorted(values) == list(range(20))


def test_a_job_with_a_name_is_done_once_by_its_version(
    client: quiver.Client, node: Served, topic: str
) -> None:
    for version, values in ((3, range(10)), (3, range(10)), (2, range(5)), (4, range(10, 12))):
        options = WriteOptions(nodes=Nodes(url=node.url), topic=topic, job=(topic, version))
        writer = BatchWriter(options, SCHEMA)
        writer.commit([writer.write(iter(rows_of(values)))])
    found = [int(one.payload) for one in client.read(topic).messages()]
    assert sorted(found) == list(range(12))


def test_the_producers_of_a_batch_serve_the_next(sink: Sink) -> None:
    """A partition knows a bounded number of producers."""
    producers = set()
    for batch in range(3):
        parts = [sink.written(batch, range(2 * batch, 2 * batch + 2)) for _ in range(1)]
        producers |= {one.part.transaction >> 20 for one in parts}
        sink.commit(batch, *parts)
    assert len(producers) == 1
    assert sink.values() == list(range(6))


@pytest.mark.parametrize("change", ["split", "made anew"])
def test_a_topic_that_changes_between_two_batches_is_written_as_it_is_then(
    sink: Sink, change: str
) -> None:
    sink.commit(0, sink.written(0, range(100)))
    before = list(range(100))
    if change == "split":
        sink.client.split_partition(sink.topic, 0)
    else:
        sink.client.delete_topic(sink.topic)
        sink.client.create_topic(sink.topic, partitions=5)
        before = []
    sink.commit(1, sink.written(1, range(100, 200)))
    assert sink.values() == [*before, *range(100, 200)]
    assert_keys_are_where_clients_send_them(sink)


def assert_keys_are_where_clients_send_them(sink: Sink) -> None:
    written = {
        one.key: one.partition
        for one in sink.client.read(sink.topic).messages()
        if int(one.payload) >= 100
    }
    assert len(written) == 11
    for key, partition in written.items():
        assert sink.client.publish(sink.topic, b"0", key=key).partition == partition


def test_a_batch_that_nobody_writes_is_aborted_after_its_time(
    client: quiver.Client, node: Served, topic: str
) -> None:
    sink = Sink(client, node.url, topic, transaction_timeout_s=1.0)
    one = sink.written(0, range(10))
    client.publish(topic, b"7", partition=0)
    eventually(lambda: sink.values() == [7], "the time limit is over")
    with pytest.raises(TransactionTimedOut):
        sink.commit(0, one)


def test_a_task_that_takes_long_keeps_the_batch_open(
    client: quiver.Client, node: Served, topic: str
) -> None:
    sink = Sink(client, node.url, topic, transaction_timeout_s=1.0)
    done = sink.written(0, range(10))
    other = Sink(client, node.url, f"{topic}-other", transaction_timeout_s=1.0)
    client.create_topic(other.topic)

    def until_another_would_be_over() -> Iterator[pa.RecordBatch]:
        yield from rows_of(range(10, 20))
        abandoned = other.written(0, range(3))
        client.publish(other.topic, b"7")
        eventually(lambda: other.values() == [7], f"{abandoned} is aborted")

    rows = until_another_would_be_over()
    sink.commit(0, done, sink.writer._write(rows, sink.name, 0))
    assert sink.values() == list(range(20))


@pytest.mark.parametrize("point", ["written", "committed"])
def test_a_node_killed_between_two_steps_loses_nothing(tmp_path: Path, point: str) -> None:
    address = unused_address()
    with served(tmp_path / "node", "--native", address) as node, quiver.Client(node.url) as client:
        client.create_topic("t", partitions=2)
        sink = Sink(client, node.url, "t")
        written = sink.written(0, range(500))
        if point == "committed":
            sink.commit(0, written)
        node.stop(signal.SIGKILL)
        with served(tmp_path / "node", "--native", address):
            sink.commit(0, written)
            sink.commit(0, sink.written(0, range(500)))
            assert sink.values() == list(range(500))
