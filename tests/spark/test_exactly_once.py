"""The sink through everything that can happen between two of its steps: each row arrives once."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import quiver
from quiver.client import AsyncClient
from quiver.errors import ProducerError
from quiver.spark.connections import Nodes
from quiver.spark.options import WriteOptions
from quiver.spark.write.cleanup import remove_sinks, sinks
from quiver.spark.write.decisions import Decisions
from quiver.spark.write.publish import pieces_of, publish_staged
from quiver.spark.write.sink import StreamWriter
from quiver.spark.write.staging import StagedRows, StagingWriter, sink_name, staging_topic
from quiver.spark.write.transfer import Transfer
from tests.serving import Commands, Served, served, unused_address

SCHEMA = StructType([StructField("key", StringType()), StructField("value", StringType())])
_numbers = itertools.count()


class Sink:
    """The steps of a sink, one by one, as Spark's tasks and drivers take them."""

    def __init__(self, client: quiver.Client, url: str, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.name = sink_name(f"query-{next(_numbers)}")
        self.options = WriteOptions(nodes=Nodes(url=url), topic=topic)
        self.decisions = Decisions(client, self.name)

    def staged(self, batch: int, task: int, values: range) -> StagedRows:
        """An attempt of a task, to its end."""
        rows = [
            pa.RecordBatch.from_pydict(
                {"key": [f"k{n % 11}" for n in part], "value": [str(n) for n in part]}
            )
            for part in (values[: len(values) // 2], values[len(values) // 2 :])
        ]
        return StagingWriter(self.options, self.name, batch, task).write(rows)

    def commit(self, batch: int, *messages: StagedRows) -> None:
        """What a driver does once the tasks are done."""
        StreamWriter(self.options, SCHEMA).commit(list(messages), batch)

    def values(self) -> list[int]:
        return sorted(int(one.payload) for one in self.client.read(self.topic).messages())


@pytest.fixture
def sink(client: quiver.Client, node: Served, topic: str) -> Sink:
    return Sink(client, node.url, topic)


def test_nothing_is_visible_before_the_driver_commits(sink: Sink) -> None:
    first, second = sink.staged(0, 0, range(100)), sink.staged(0, 1, range(100, 200))
    assert sink.values() == []
    sink.commit(0, first, second)
    assert sink.values() == list(range(200))


def test_only_the_attempt_that_won_is_published(sink: Sink) -> None:
    sink.staged(0, 0, range(100))  # a speculative duplicate, or one that failed when it was done
    winner = sink.staged(0, 0, range(100))
    sink.commit(0, winner)
    assert sink.values() == list(range(100))


def test_a_batch_that_comes_again_after_its_commit_adds_nothing(sink: Sink) -> None:
    sink.commit(0, sink.staged(0, 0, range(100)))
    sink.commit(0, sink.staged(0, 0, range(100)))
    sink.commit(1, sink.staged(1, 0, range(100, 150)))
    sink.commit(1, StagedRows(sink.name, 1, 0, []))
    assert sink.values() == list(range(150))


@pytest.mark.parametrize("published", [0, 1, 3])
def test_a_driver_that_died_while_publishing_is_finished_by_the_next(
    sink: Sink, published: int
) -> None:
    sink.commit(0, sink.staged(0, 0, range(1000, 1100)))
    one, two = sink.staged(1, 0, range(100)), sink.staged(1, 1, range(100, 200))
    entries = [*one.entries, *two.entries]
    decision = sink.decisions.decide(1, one.number, entries)
    part = cut_short(decision, entries[:published])
    staging = staging_topic(sink.name, 1)
    sink.client.run(lambda client: publish_staged(client, staging, part))
    # The rows of the retried batch lie differently: in another order, in another task.
    again = sink.staged(1, 0, range(199, -1, -1))
    sink.commit(1, again)
    assert sink.values() == [*range(200), *range(1000, 1100)]
    assert staging not in {info.name for info in sink.client.list_topics()}


def test_what_a_driver_carried_half_way_the_next_one_has_copied(sink: Sink) -> None:
    """Where no node leads both partitions the driver carries the entries: the result is the same."""
    one, two = sink.staged(0, 0, range(100)), sink.staged(0, 1, range(100, 200))
    decision = sink.decisions.decide(0, one.number, [*one.entries, *two.entries])
    staging = staging_topic(sink.name, 0)

    async def carry(client: AsyncClient) -> None:
        for place, pieces in pieces_of(decision).items():
            transfer = Transfer(client.cluster, *place, decision.producer_id)
            for piece in pieces[:1]:
                await transfer.carry(client, staging, piece)

    sink.client.run(carry)
    carried = sink.values()
    assert 0 < len(carried) < 200
    sink.commit(0, one, two)
    assert sink.values() == list(range(200))


def test_the_first_decision_of_a_batch_holds(sink: Sink) -> None:
    ours, theirs = sink.staged(0, 0, range(10)), sink.staged(0, 0, range(10, 20))
    first = sink.decisions.decide(0, ours.number, ours.entries)
    second = Decisions(sink.client, sink.name).decide(0, theirs.number, theirs.entries)
    assert second == first
    sink.commit(0, theirs)
    assert sink.values() == list(range(10))


def test_a_driver_believed_dead_can_publish_its_decision_and_no_more(sink: Sink) -> None:
    old = sink.staged(0, 0, range(50))
    decision = sink.decisions.decide(0, old.number, old.entries)
    sink.commit(0, old)
    sink.commit(1, sink.staged(1, 0, range(50, 80)))
    assert sink.decisions.decide(0, old.number, old.entries).batch == 1
    assert decision.batch == 0
    assert sink.values() == list(range(80))


def test_a_batch_that_nobody_finished_is_finished_by_the_one_after_it(sink: Sink) -> None:
    first = sink.staged(0, 0, range(50))
    decision = sink.decisions.decide(0, first.number, first.entries)
    half = cut_short(decision, first.entries[:1])
    sink.client.run(lambda client: publish_staged(client, staging_topic(sink.name, 0), half))
    sink.commit(1, sink.staged(1, 0, range(50, 60)))
    assert sink.values() == list(range(60))


def test_a_batch_without_rows_is_committed_too(sink: Sink) -> None:
    sink.commit(0, sink.staged(0, 0, range(0)))
    sink.commit(1, sink.staged(1, 0, range(5)))
    assert sink.values() == list(range(5))


def test_a_topic_made_anew_under_a_query_is_told(sink: Sink) -> None:
    sink.commit(0, sink.staged(0, 0, range(50)))
    sink.client.delete_topic(sink.topic)
    sink.client.create_topic(sink.topic, partitions=3)
    with pytest.raises(ProducerError, match="does not remember this query"):
        sink.commit(1, sink.staged(1, 0, range(50, 60)))


def test_a_node_killed_between_staging_and_publishing_loses_nothing(tmp_path: Path) -> None:
    address = unused_address()
    with served(tmp_path / "node", "--native", address) as node:
        with quiver.Client(node.url) as client:
            client.create_topic("t", partitions=2)
        url = node.url
        with quiver.Client(url) as client:
            sink = Sink(client, url, "t")
            staged = sink.staged(0, 0, range(500))
            decision = sink.decisions.decide(0, staged.number, staged.entries)
            half = cut_short(decision, staged.entries[:1])
            staging = staging_topic(sink.name, 0)
            client.run(lambda inner: publish_staged(inner, staging, half))
            node.stop(signal.SIGKILL)
            with served(tmp_path / "node", "--native", address):
                sink.commit(0, staged)
                assert sink.values() == list(range(500))


def test_a_query_that_is_started_again_removes_what_earlier_batches_left(sink: Sink) -> None:
    left, other = staging_topic(sink.name, 0), staging_topic(f"{sink.name}0", 0)
    sink.staged(0, 0, range(5))  # a task that went on when its batch was long published
    StagingWriter(sink.options, f"{sink.name}0", 0, 0).write(
        [pa.RecordBatch.from_pydict({"value": [b""]})]
    )
    sink.commit(7, sink.staged(7, 0, range(5)))
    topics = {info.name for info in sink.client.list_topics()}
    assert left not in topics
    assert other in topics, "another sink's is left alone"


def test_sinks_that_are_idle_for_long_are_removed_and_no_others(sink: Sink, capsys) -> None:
    quiver = Commands(sink.options.nodes.url, capsys)
    sink.commit(0, sink.staged(0, 0, range(5)))
    sink.staged(1, 0, range(5))
    mine = {sink.name, staging_topic(sink.name, 1)}

    def there() -> set[str]:
        return mine & {info.name for info in sink.client.list_topics()}

    assert quiver("pipeline", "tidy", "--idle", "1h").code == 0
    assert there() == mine
    dry = quiver("pipeline", "tidy", "--idle", "0s", "--dry-run", "--json")
    assert sink.name in {one["sink"] for one in dry.json}
    assert there() == mine
    (idle,) = (one.idle_s for one in sinks(sink.client) if one.name == sink.name)
    remove_sinks(sink.client, idle_s=idle)
    assert there() == set()


def cut_short(decision, entries):
    """The decision as a driver carries it out that dies after these entries."""
    import msgspec

    return msgspec.structs.replace(decision, entries=entries)
