"""A cluster whose leader is killed in the middle of a query: another takes over, the query goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import quiver
from tests.integration.test_cli_cluster_up import up
from tests.spark.test_streaming import numbered


def test_a_query_goes_on_exactly_once_when_a_leader_is_killed(spark, tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "3") as cluster:
        nodes = {node["native"]: node["pid"] for node in cluster.ready["nodes"]}
        options = {"url": "quiver://" + ",".join(nodes), "timeout": "90s"}
        with quiver.Client(options["url"], timeout="90s") as client:
            client.create_topic("origin", replicas=3)
            client.create_topic("copy", replicas=3)
            client.publish_many("origin", numbered(range(60)))
            (partition,) = client.describe_topic("origin").partitions

            def copy(batch, number: int) -> None:
                if number == 1:
                    os.kill(nodes[partition.leader], signal.SIGKILL)
                (
                    batch.select("value")
                    .write.format("quiver")
                    .options(**options, topic="copy", txnAppId="copying", txnVersion=number)
                    .mode("append")
                    .save()
                )

            query = (
                spark.readStream.format("quiver")
                .options(**options, topic="origin", startingOffsets="earliest")
                .option("maxOffsetsPerTrigger", 20)
                .load()
                .writeStream.foreachBatch(copy)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            (later,) = client.describe_topic("origin").partitions
            assert later.leader != partition.leader
            values = sorted(int(one.payload) for one in client.read("copy").messages())
            assert values == list(range(60))
