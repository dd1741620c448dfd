"""Writing: tasks stage their rows, and the driver publishes the staged rows exactly once.

The driver first records its decision about a batch in an internal topic of the sink. From then on the
batch will be published as decided, by this driver or by one that starts from the checkpoint later, and
what was already published is recognised. Rows of failed attempts are never published.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from quiver.client import Client
from quiver.errors import InvalidRequest, TopicNotFound
from quiver.spark.connections import spare_collector
from quiver.spark.options import WriteOptions
from quiver.spark.write.cleanup import remove_staging, remove_topic
from quiver.spark.write.decisions import Decision, Decisions
from quiver.spark.write.publish import publish_staged
from quiver.spark.write.rows import check_columns
from quiver.spark.write.staging import StagedRows, StagingWriter, sink_name, staging_topic

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
Messages = list[WriterCommitMessage | None]
_tidied: set[str] = set()
"""Sinks whose leftovers this process has removed: once is enough for each start of a query."""


def query_and_batch(task: TaskContext | None) -> tuple[str, int]:
    """The streaming query that a task is part of, and the batch."""
    query = None if task is None else task.getLocalProperty(_QUERY)
    batch = None if task is None else task.getLocalProperty(_BATCH)
    if not query or not batch:
        raise InvalidRequest(
            f"this version of Spark does not give a task its query and batch ({_QUERY}, "
            f"{_BATCH}), which exactly-once needs: use another version"
        )
    return query, int(batch)


class _WriterBase:
    """What both writers share: where to, and how a batch is carried out."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic is not None)
        self.options = options
        if options.topic is not None:
            self._client.describe_topic(options.topic)  # an unknown topic is told before any task

    @property
    def _client(self) -> Client:
        return self.options.nodes.client()

    def _stage(self, rows: Iterator[pa.RecordBatch], sink: str, batch: int) -> StagedRows:
        last = Decisions(self._client, sink).last()
        if last is not None and last.batch >= batch:
            for _ in rows:  # Spark wants its rows taken, and these are decided already
                pass
            return StagedRows(sink, batch, 0, [])
        task = TaskContext.get()
        assert task is not None, "write runs in a task"
        return StagingWriter(self.options, sink, batch, task.partitionId()).write(rows)

    def _publish(self, messages: Messages, batch: int) -> str | None:
        """Decide and publish a batch; the sink's name, if there was a task at all."""
        spare_collector()
        staged = [message for message in messages if isinstance(message, StagedRows)]
        if not staged:
            return None
        sink = staged[0].sink
        decisions = Decisions(self._client, sink)
        before = decisions.last()
        if before is not None and before.batch < batch:
            self._carry_out(sink, before)  # as a rule it was, and nothing is left to do
        if sink not in _tidied:
            remove_staging(self._client, sink, batch)
            _tidied.add(sink)
        entries = [entry for message in staged for entry in message.entries]
        decision = decisions.decide(batch, _number(staged), entries)
        if decision.batch == batch:
            self._carry_out(sink, decision)
        return sink

    def _carry_out(self, sink: str, decision: Decision) -> None:
        """Publish what was decided, unless that was done: then its staging topic is gone."""
        staging = staging_topic(sink, decision.batch)
        try:
            number = self._client.describe_topic(staging).number
        except TopicNotFound:
            return
        if number == decision.staging_number:
            self._client.run(lambda client: publish_staged(client, staging, decision))
        remove_topic(self._client, staging)

    def _abandon(self, sink: str, batch: int) -> None:
        """Remove what was staged, unless it is decided that it will be published."""
        last = Decisions(self._client, sink).last()
        if last is None or last.batch < batch:
            remove_topic(self._client, staging_topic(sink, batch))


def _number(staged: list[StagedRows]) -> int | None:
    """The number of the one staging topic in which all of these lie."""
    numbers = {message.number for message in staged if message.entries}
    if len(numbers) > 1:
        raise InvalidRequest(
            "the staging topic was deleted while tasks wrote to it: run the query again"
        )
    return numbers.pop() if numbers else None


class BatchWriter(_WriterBase, DataSourceArrowWriter):
    """``df.write``: all rows of the job are published when all tasks are done.

    With the options ``txnAppId`` and ``txnVersion`` a write that is repeated adds nothing.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        job, self._batch = options.job or (str(uuid.uuid4()), 0)
        self._sink = sink_name(f"batch.{job}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(iterator, self._sink, self._batch)

    def commit(self, messages: Messages) -> None:
        self._publish(messages, self._batch)
        if self.options.job is None:
            remove_topic(self._client, self._sink)

    def abort(self, messages: Messages) -> None:
        self._abandon(self._sink, self._batch)


class StreamWriter(_WriterBase, DataSourceStreamArrowWriter):
    """``df.writeStream``: exactly once by query and batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query, batch = query_and_batch(TaskContext.get())
        return self._stage(iterator, sink_name(query), batch)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        self._publish(messages, batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        for message in messages:
            if isinstance(message, StagedRows):
                self._abandon(message.sink, batchId)
                return
