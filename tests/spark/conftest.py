"""One node and one Spark session for all tests here: each takes seconds to start.

Tests have topics of their own, so they run in any order. Without Java they fail, and say so.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import quiver
from quiver.spark.session import SETTINGS, session
from tests.serving import Served, served
from tests.spark.killing import JVM

ROOT = str(Path(__file__).parents[2])
MASTER = "local[2,3]"
"""Two cores, and a task may fail twice."""
SECONDS_MAX = 600
_numbers = itertools.count()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a busy machine the first query alone takes a minute: all have time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Spark's Python processes import what is pickled by name, from here too.
    os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    os.environ["SPARK_LAUNCHER_OPTS"] = JVM
    # Also where a pipeline asks for this session: there is little to shuffle.
    SETTINGS["spark.sql.shuffle.partitions"] = "2"
    spark = session(
        "tests",
        master=MASTER,
        settings={
            "spark.driver.extraJavaOptions": JVM,
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield spark
    spark.stop()


@pytest.fixture
def client(node: Served) -> Iterator[quiver.Client]:
    with quiver.Client(node.url) as client:
        yield client


@pytest.fixture
def topic(client: quiver.Client) -> str:
    """A topic of three partitions that no other test knows."""
    name = f"topic-{next(_numbers)}"
    client.create_topic(name, partitions=3)
    return name


@pytest.fixture
def load(spark: SparkSession, node: Served) -> Callable[..., DataFrame]:
    """``load(topic, **options)``: a batch read."""

    def load(topic: str | None = None, **options: object) -> DataFrame:
        if topic is not None:
            options["topic"] = topic
        return _with_options(spark.read.format("quiver").option("url", node.url), options).load()

    return load


@pytest.fixture
def stream(spark: SparkSession, node: Served) -> Callable[..., DataFrame]:
    """``stream(topic, **options)``: a stream read, from the beginning unless told otherwise."""

    def stream(topic: str | None = None, **options: object) -> DataFrame:
        if topic is not None:
            options["topic"] = topic
        options.setdefault("startingOffsets", "earliest")
        reader = spark.readStream.format("quiver").option("url", node.url)
        return _with_options(reader, options).load()

    return stream


@pytest.fixture
def run_into(node: Served, tmp_path: Path) -> Callable[..., list[dict]]:
    """``run_into(frame, topic)``: write what is there to a topic; the batches' progress."""

    def run_into(frame: DataFrame, topic: str, checkpoint: str = "checkpoint") -> list[dict]:
        query = (
            frame.writeStream.format("quiver")
            .option("url", node.url)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    return run_into


def _with_options(reader, options):
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader
