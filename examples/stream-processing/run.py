"""Orders joined with their payments, as they come: two topics in, one topic out, on Spark.

    python examples/stream-processing/run.py

starts a node of its own, publishes orders and payments, joins them in a window of ten minutes with
Spark, and prints the orders that were paid. With ``--url`` it uses a node that is running.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import quiver
from quiver.spark.pipelines import joined
from quiver.spark.session import session

ORDERS = [{"order": number, "customer": f"c-{number % 3}"} for number in range(10)]
PAYMENTS = [{"order": number, "amount": 10.0 + number} for number in range(0, 10, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a node that is running")
    url = parser.parse_args().url
    with tempfile.TemporaryDirectory() as folder, node(url, folder) as address:
        with quiver.Client(address) as client:
            for topic in ("orders", "payments", "paid-orders"):
                client.create_topic(topic, partitions=2, exist_ok=True)
            client.publish_many("orders", ORDERS)
            client.publish_many("payments", PAYMENTS)
        spark = session("orders and payments", master="local[2]")
        try:
            run(spark, address, f"{folder}/checkpoint")
        finally:
            spark.stop()
        with quiver.Client(address) as client:
            paid = sorted(
                (message.json() for message in client.read("paid-orders").messages()),
                key=lambda one: one["order"],
            )
        for one in paid:
            print(json.dumps(one))
        print(f"{len(paid)} of {len(ORDERS)} orders are paid")


def run(spark: SparkSession, url: str, checkpoint: str) -> None:
    """Join what is there, exactly once; run again, it goes on from its checkpoint."""
    orders = table_of(spark, url, "orders", "order BIGINT, customer STRING")
    payments = table_of(spark, url, "payments", "order BIGINT, amount DOUBLE")
    paid = joined(orders, payments, on="order", within="10 minutes")
    (
        paid.select(
            f.col("customer").alias("key"),
            f.to_json(f.struct("order", "customer", "amount")).alias("value"),
        )
        .writeStream.format("quiver")
        .option("url", url)
        .option("topic", "paid-orders")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def table_of(spark: SparkSession, url: str, topic: str, schema: str) -> DataFrame:
    """A topic of JSON as a stream of rows."""
    messages = (
        spark.readStream.format("quiver")
        .option("url", url)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    value = f.from_json(f.col("value").cast("string"), schema)
    return messages.select(value.alias("value"), "timestamp").select("value.*", "timestamp")


@contextmanager
def node(url: str | None, folder: str) -> Iterator[str]:
    """The node at the address, or one that lives as long as this program."""
    if url is not None:
        yield url
        return
    ready = f"{folder}/ready.json"
    flags = ("--data", f"{folder}/data", "--native", "127.0.0.1:0", "--http", "off")
    program = "from quiver.cli.main import main; main()"
    server = subprocess.Popen(
        [sys.executable, "-c", program, "serve", *flags, "--ready-file", ready],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not os.path.exists(ready):
            if server.poll() is not None:
                raise SystemExit("the node did not start")
            time.sleep(0.05)
        with open(ready) as file:
            yield f"quiver://{json.load(file)['native']}"
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
