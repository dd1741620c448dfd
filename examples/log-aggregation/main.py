"""Starts writers as processes of their own, and counts what they write, batch by batch."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import quiver

URL = os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401")
SERVICES = ("web", "search", "cart", "mail")
LINES = 2500
WAIT_S = 60


def counted(batch: pa.RecordBatch) -> pa.Table:
    """How many lines of each service and level are in a batch."""
    levels = pc.list_element(pc.map_lookup(batch.column("headers"), "level", "all"), 0)
    table = pa.table({"service": batch.column("key").cast(pa.string()), "level": levels})
    return table.group_by(["service", "level"]).aggregate([([], "count_all")])


def aggregate(q: quiver.Client, subscription: str) -> tuple[pa.Table, int]:
    """The counts of all lines, and how many batches they came in."""
    parts: list[pa.Table] = []
    lines, deadline = 0, time.monotonic() + WAIT_S
    while lines < len(SERVICES) * LINES:
        if time.monotonic() > deadline:
            sys.exit(f"only {lines} lines came")
        batch = q.receive_batch(subscription, wait="1s")
        if batch.num_rows:
            parts.append(counted(batch))
            q.ack(subscription, batch)
            lines += batch.num_rows
    totals = pa.concat_tables(parts).group_by(["service", "level"])
    return totals.aggregate([("count_all", "sum")]).sort_by("service"), len(parts)


if __name__ == "__main__":
    topic = f"logs-{secrets.token_hex(3)}"  # of this run, and removed after it
    with quiver.Client(URL) as q:
        q.create_topic(topic, partitions=2, durability="interval")
        q.create_subscription(f"{topic}-counts", topics=[topic])
        writer = Path(__file__).with_name("writer.py")
        writers = [
            subprocess.Popen([sys.executable, writer, topic, service, str(LINES)])
            for service in SERVICES
        ]
        try:
            totals, batches = aggregate(q, f"{topic}-counts")
        finally:
            for process in writers:
                process.wait(WAIT_S)
        for row in totals.to_pylist():
            print(f"{row['service']:8} {row['level']:8} {row['count_all_sum']:6}")
        print(
            f"total: {sum(totals.column('count_all_sum').to_pylist())} lines in {batches} batches"
        )
        q.delete_subscription(f"{topic}-counts")
        q.delete_topic(topic)
