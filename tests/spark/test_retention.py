"""Retention and queries: what is removed under a query is told, and what a query needs is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

import quiver
from quiver import Retention
from quiver.client import OutgoingMessage
from tests.serving import Served, eventually, served

SEGMENT = 1 << 20
KILOBYTES_100 = [OutgoingMessage(payload=bytes(100_000))]


@pytest.fixture(scope="module")
def sweeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node that looks often for what may go."""
    folder = tmp_path_factory.mktemp("sweeping")
    with served(folder, QUIVER_LIMITS_RETENTION_INTERVAL_S="0.1") as node:
        yield node


def filled(client: quiver.Client, topic: str, retention: Retention) -> None:
    """Forty messages in several segments."""
    client.create_topic(topic, retention=retention, segment_bytes=SEGMENT)
    client.create_subscription(f"{topic}-spark", topics=[topic], start="earliest")
    for _ in range(40):
        client.publish_many(topic, KILOBYTES_100)


def start_of(client: quiver.Client, topic: str) -> int:
    return client.describe_topic(topic).partitions[0].start_offset or 0


def test_offsets_that_retention_removed_are_named(spark, sweeping) -> None:
    with quiver.Client(sweeping.url) as client:
        filled(client, "short", Retention(messages=20))
        eventually(lambda: start_of(client, "short") > 0, "old segments are removed")
        start = start_of(client, "short")
    begin = json.dumps({"short": {"0": 0}})
    reader = spark.read.format("quiver").options(
        url=sweeping.url, topic="short", startingOffsets=begin, columns="offset"
    )
    with pytest.raises(
        PySparkException, match=f"holds offsets {start} to 39, and 0 to 39 are needed"
    ):
        reader.load().collect()
    found = reader.option("failOnDataLoss", "false").load().collect()
    assert [row.offset for row in found] == list(range(start, 40))


def test_retention_by_acknowledgement_waits_for_the_query(spark, sweeping, tmp_path: Path) -> None:
    with quiver.Client(sweeping.url) as client:
        filled(client, "needed", Retention(age=None, acked=True))
        query = (
            spark.readStream.format("quiver")
            .options(url=sweeping.url, topic="needed", subscription="needed-spark")
            .options(startingOffsets="earliest", columns="offset")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        assert start_of(client, "needed") == 0, "nothing is removed that the query has not read"
        query.start().awaitTermination()
        eventually(lambda: start_of(client, "needed") > 0, "what was read is removed")
