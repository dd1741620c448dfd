"""Spark on a node's topics: reading, writing and archiving, beside Spark's own Parquet."""

from benchmarks.spark.archiving import archive_a_topic
from benchmarks.spark.reading import read_batches, read_streams
from benchmarks.spark.small_batches import smallest_micro_batch
from benchmarks.spark.writing import write_a_stream

BENCHMARKS = (
    read_batches,
    read_streams,
    smallest_micro_batch,
    write_a_stream,
    archive_a_topic,
)
