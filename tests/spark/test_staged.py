"""Queries that an earlier version began: their last decision is carried out, and what it staged goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import quiver
from quiver.errors import ProducerError
from quiver.spark.write.staged.cleanup import remove_sinks, sinks, staging_topic
from tests.serving import Commands, Served
from tests.spark.staging import StagingSink
from tests.spark.test_exactly_once import Sink, another_process, rows_of

__all__ = ["another_process"]


class Earlier:
    """A sink of that version and the same of this one."""

    def __init__(self, client: quiver.Client, url: str, topic: str) -> None:
        self.sink = Sink(client, url, topic)
        self.staging = StagingSink(client, self.sink.name, topic)

    def decided(self, batch: int, values: range, published: int) -> None:
        """A driver of that version has decided a batch and published so many entries."""
        number, entries = self.staging.stage(batch, rows_of(values))
        self.staging.publish(self.staging.decide(batch, number, entries), published)

    def topics(self) -> set[str]:
        names = {info.name for info in self.sink.client.list_topics()}
        return {name for name in names if name.startswith(self.sink.name)}


@pytest.fixture
def earlier(client: quiver.Client, node: Served, topic: str) -> Iterator[Earlier]:
    return Earlier(client, node.url, topic)


@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_batch_that_was_decided_is_finished_and_not_written_again(
    earlier: Earlier, published: int
) -> None:
    sink = earlier.sink
    earlier.decided(4, range(100), published)
    again = sink.written(4, range(100))
    assert again.part is None
    sink.commit(4, again)
    assert sink.values() == list(range(100))
    assert earlier.topics() == {sink.name}, (
        "which batch was the last is known as long as it matters"
    )
    sink.commit(5, sink.written(5, range(100, 120)))
    sink.commit(5, sink.written(5, range(100, 120)))
    assert sink.values() == list(range(120))
    assert earlier.topics() == set()


def test_a_batch_that_was_only_staged_is_written_again(earlier: Earlier) -> None:
    sink = earlier.sink
    earlier.decided(0, range(20), 2)
    earlier.staging.stage(1, rows_of(range(20, 30)))
    sink.commit(1, sink.written(1, range(20, 30)))
    assert sink.values() == list(range(30))
    assert earlier.topics() == set()


def test_a_batch_that_nobody_finished_is_finished_by_the_one_after_it(earlier: Earlier) -> None:
    sink = earlier.sink
    earlier.decided(0, range(20), 1)
    sink.commit(1, sink.written(1, range(20, 30)))
    assert sink.values() == list(range(30))


def test_a_driver_that_dies_while_it_finishes_is_followed_by_another(earlier: Earlier) -> None:
    sink = earlier.sink
    number, entries = earlier.staging.stage(0, rows_of(range(50)))
    decision = earlier.staging.decide(0, number, entries)
    for count in (1, 2, 2):
        earlier.staging.publish(decision, count)
    sink.commit(0, sink.written(0, range(50)))
    assert sink.values() == list(range(50))


def test_a_topic_made_anew_under_a_decision_is_told(earlier: Earlier) -> None:
    number, entries = earlier.staging.stage(0, rows_of(range(50)))
    decision = earlier.staging.decide(0, number, entries)
    later = [type(one)(one.topic, one.partition, 7) for one in decision.targets]
    with pytest.raises(ProducerError, match="does not remember this query"):
        earlier.staging.publish(type(decision)(**{**fields(decision), "targets": later}), 2)


def fields(decision) -> dict[str, object]:
    return {name: getattr(decision, name) for name in decision.__struct_fields__}


def test_sinks_that_are_idle_for_long_are_removed_and_no_others(earlier: Earlier, capsys) -> None:
    sink, client = earlier.sink, earlier.sink.client
    quiver = Commands(sink.options.nodes.url, capsys)
    earlier.decided(0, range(5), 2)
    earlier.staging.stage(1, rows_of(range(5)))
    mine = {sink.name, *(staging_topic(sink.name, batch) for batch in (0, 1))}
    assert quiver("pipeline", "tidy", "--idle", "1h").code == 0
    assert earlier.topics() == mine
    dry = quiver("pipeline", "tidy", "--idle", "0s", "--dry-run", "--json")
    assert sink.name in {one["sink"] for one in dry.json}
    assert earlier.topics() == mine
    (idle,) = (one.idle_s for one in sinks(client) if one.name == sink.name)
    remove_sinks(client, idle_s=idle)
    assert earlier.topics() == set()
