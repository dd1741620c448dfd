"""Nodes that ask for a token, or talk TLS only: told by options, and secrets stay out of sight."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

import quiver
from quiver.client import Tls
from tests.integration.certificates import Authority
from tests.serving import Served, served


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "guarded", QUIVER_SECURITY_AUTHENTICATION="true") as node:
        yield node


def copied(spark, options: dict[str, str], checkpoint: Path):
    """Copy topic ``a`` to ``b`` with a stream that reads and writes; the query, and its source."""
    frame = (
        spark.readStream.format("quiver")
        .options(**options, topic="a", startingOffsets="earliest")
        .load()
    )
    query = (
        frame.select("value")
        .writeStream.format("quiver")
        .options(**options, topic="b", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return frame, query


def test_a_token_lets_queries_in_and_is_shown_nowhere(spark, guarded, tmp_path) -> None:
    admin = (guarded.data / "admin.token").read_text().strip()
    with quiver.Client(guarded.url, token=admin) as client:
        client.create_topic("a")
        client.create_topic("b")
        client.publish("a", b"x")
        _, token = client.create_token("spark", ["consume:a", "publish:b"])
        assert token is not None
        options = {"url": guarded.url, "token": token}
        with pytest.raises(PySparkException, match="requires a token"):
            spark.read.format("quiver").options(url=guarded.url, topic="a").load().collect()
        frame, query = copied(spark, options, tmp_path / "checkpoint")
        assert [one.payload for one in client.read("b").messages()] == [b"x"]
    with pytest.raises(PySparkException) as refused:
        spark.read.format("quiver").options(**options, topic="c").load().collect()
    seen = StringIO()
    with redirect_stdout(seen):
        frame.explain(extended=True)
        query.explain(extended=True)
    shown = [seen.getvalue(), str(refused.value), json.dumps(query.lastProgress, default=str)]
    kept = [
        file.read_bytes().decode(errors="replace") for file in files_in(tmp_path / "checkpoint")
    ]
    assert len(kept) > 3
    assert not [text for text in (*shown, *kept, guarded.log) if token in text]


def files_in(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def test_a_node_that_talks_tls_is_reached_by_whoever_trusts_it(spark, tmp_path) -> None:
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    certificate, key = authority.issue("node", "127.0.0.1")
    security = {
        "QUIVER_SECURITY_TLS_CERTIFICATE": certificate,
        "QUIVER_SECURITY_TLS_KEY": key,
    }
    with served(tmp_path / "node", **security) as node:
        url = node.url.replace("quiver://", "quivers://")
        with quiver.Client(url, tls=Tls(ca=authority.file)) as client:
            client.create_topic("a")
            client.create_topic("b")
            client.publish("a", b"x")
            copied(spark, {"url": url, "caFile": authority.file}, tmp_path / "checkpoint")
            assert [one.payload for one in client.read("b").messages()] == [b"x"]
        distrusting = spark.read.format("quiver").options(url=url, caFile=other.file, topic="a")
        with pytest.raises(PySparkException, match="cannot be trusted"):
            distrusting.load().collect()
