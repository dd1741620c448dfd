"""A node over its native protocol: publishing, reading, latency.

The yardstick for publishing is a bare server that does the least that a durable publish takes.
"""

from benchmarks.broker.latencies import publish_and_follow
from benchmarks.broker.publish import publish_ready_batches
from benchmarks.broker.read import read_a_topic
from benchmarks.broker.send import send_one_by_one

BENCHMARKS = (
    publish_ready_batches,
    send_one_by_one,
    read_a_topic,
    publish_and_follow,
)
