"""Spark Connect: a client that talks to a server of Spark, each with processes of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from quiver.spark.session import INTERPRETER
from tests.serving import environment
from tests.spark.killing import JVM
from tests.spark.test_driver_killed import ROOT

FOLDER = Path(sys.prefix) / "connect"
"""What a client needs, as ``make setup`` puts it there."""
PROGRAM = """
import sys

url, topic, checkpoint, needed = sys.argv[1:]
sys.path.insert(0, needed)  # here, and not in the server's processes
from pyspark.sql import SparkSession
from quiver.spark import register

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert type(spark).__module__ == "pyspark.sql.connect.session"
register(spark)
quiver = {"url": url, "topic": topic}
rows = spark.read.format("quiver").options(**quiver).load().where("offset >= 1").collect()
print(sorted((row.partition, row.offset, bytes(row.value).decode()) for row in rows))
stream = spark.readStream.format("quiver").options(**quiver, startingOffsets="earliest").load()
stream.select("key", "value").writeStream.format("quiver").options(
    url=url, topic=f"{topic}-copy", checkpointLocation=checkpoint
).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def test_a_client_of_spark_connect_reads_and_writes_topics(client, node, topic, tmp_path) -> None:
    assert FOLDER.is_dir(), "run make setup"
    client.create_topic(f"{topic}-copy")
    for number in range(4):
        client.publish(topic, str(number), partition=number % 2)
    done = subprocess.run(
        [
            *(sys.executable, "-c", PROGRAM),
            *(node.url, topic, str(tmp_path / "checkpoint"), str(FOLDER)),
        ],
        env=environment(
            JAVA_TOOL_OPTIONS=JVM,
            PYSPARK_PYTHON=INTERPRETER,
            SPARK_QUIVER_PYTHON=sys.executable,
            SPARK_LOCAL_IP="127.0.0.1",
            PYTHONPATH=str(ROOT),
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "[(0, 1, '2'), (1, 1, '3')]"
    copied = sorted(one.payload for one in client.read(f"{topic}-copy").messages())
    assert copied == [b"0", b"1", b"2", b"3"]
