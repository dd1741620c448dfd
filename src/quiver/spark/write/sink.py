"""Writing: a batch is one transaction. Tasks publish their rows in parts of it, and the driver commits.

The transaction has the name of the sink and the number of the batch. Its coordinator commits each number
once, with the parts that the driver names: those of the attempts that Spark took. A batch that comes again,
because a driver died before Spark knew of its commit, is known to be committed, and adds nothing.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from quiver.client import AsyncClient, Client
from quiver.client.transaction.shared import PartReference, TransactionPart
from quiver.errors import InvalidRequest, QuiverError
from quiver.spark.connections import spare_collector
from quiver.spark.options import WriteOptions
from quiver.spark.write.batches import transactions_of
from quiver.spark.write.rows import check_columns
from quiver.spark.write.staged.cleanup import SINKS, remove_topic
from quiver.spark.write.staged.leftovers import decided_before, finish
from quiver.spark.write.task_writer import TaskWriter

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
Messages = list[WriterCommitMessage | None]
_SINKS_MAX = 1_000
_checked: set[str] = set()
"""Sinks of which a task of this process knows that no earlier version has decided their batch."""
_finished: set[str] = set()
"""Sinks of which the driver knows that nothing is left of an earlier version."""


class WrittenRows(WriterCommitMessage):
    """What a task tells the driver: whose rows these are, and the part that has them, if there are any."""

    def __init__(self, sink: str, part: PartReference | None) -> None:
        self.sink = sink
        self.part = part


def sink_name(owner: str) -> str:
    """The name of the transactions of a query or job. Earlier versions had topics of this name."""
    return f"{SINKS}{owner}"


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

    is_last = False
    """Whether a sink has one batch, and nobody writes it again."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic is not None)
        self.options = options
        if options.topic is not None:
            self._client.describe_topic(options.topic)  # an unknown topic is told before any task

    @property
    def _client(self) -> Client:
        return self.options.nodes.client()

    # ------------------------------------------------------------------ in tasks

    def _write(self, rows: Iterator[pa.RecordBatch], sink: str, batch: int) -> WrittenRows:
        """Publish the rows of an attempt of a task, for the driver to commit."""
        some = filter(len, rows)
        first = next(some, None)
        if first is None:
            return WrittenRows(sink, None)
        task = TaskContext.get()
        client = self.options.nodes.task_client()
        part = self._part(client, sink, batch)
        if part is None:
            for _ in some:  # Spark wants its rows taken, and these are published already
                pass
            return WrittenRows(sink, None)
        number = 0 if task is None else task.partitionId()
        return WrittenRows(
            sink, TaskWriter(self.options, client, part, number).write(chain([first], some))
        )

    def _part(self, client: Client, sink: str, batch: int) -> TransactionPart | None:
        """A part of the batch's transaction; ``None`` if the batch is published already."""
        if not self.is_last and sink not in _checked:
            if decided_before(client, sink, batch):
                return None
            _note(sink, _checked)

        async def begin(inner: AsyncClient) -> TransactionPart | None:
            timeout_s = self.options.transaction_timeout_s
            return await (await transactions_of(inner, sink, timeout_s)).part(batch)

        return client.run(begin)

    # ------------------------------------------------------------------ in the driver

    def _commit(self, messages: Messages, batch: int) -> None:
        spare_collector()
        written = [message for message in messages if isinstance(message, WrittenRows)]
        if not written:
            return
        client, sink = self._client, written[0].sink
        is_earlier = not self.is_last and sink not in _finished and finish(client, sink, batch)
        parts = _parts(messages)
        if parts:
            self._commit_parts(client, sink, batch, parts)
            if is_earlier:  # from now on the coordinator knows which batch was the last
                with contextlib.suppress(QuiverError):
                    remove_topic(client, sink)
        if parts or not is_earlier:
            _note(sink, _finished)

    def _commit_parts(
        self, client: Client, sink: str, batch: int, parts: list[PartReference]
    ) -> None:
        async def commit(inner: AsyncClient) -> None:
            transactions = await transactions_of(inner, sink, self.options.transaction_timeout_s)
            await transactions.commit(batch, parts, is_last=self.is_last)

        client.run(commit)

    def _abort(self, sink: str, batch: int, messages: Messages) -> None:
        """Abort all that was written, unless the batch is committed. If this fails, it is aborted later."""

        async def abort(inner: AsyncClient) -> None:
            transactions = await transactions_of(inner, sink, self.options.transaction_timeout_s)
            await transactions.abort(batch, _parts(messages), is_last=self.is_last)

        with contextlib.suppress(QuiverError):
            self._client.run(abort)


def _parts(messages: Messages) -> list[PartReference]:
    written = (message for message in messages if isinstance(message, WrittenRows))
    return [message.part for message in written if message.part is not None]


def _note(sink: str, sinks: set[str]) -> None:
    if len(sinks) >= _SINKS_MAX:
        sinks.clear()
    sinks.add(sink)


class BatchWriter(_WriterBase, DataSourceArrowWriter):
    """``df.write``: all rows of the job are visible when all tasks are done.

    With the options ``txnAppId`` and ``txnVersion`` a write that is repeated adds nothing.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        job, self._batch = options.job or (str(uuid.uuid4()), 0)
        self._sink = sink_name(f"batch.{job}")
        self.is_last = options.job is None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, self._sink, self._batch)

    def commit(self, messages: Messages) -> None:
        self._commit(messages, self._batch)

    def abort(self, messages: Messages) -> None:
        self._abort(self._sink, self._batch, messages)


class StreamWriter(_WriterBase, DataSourceStreamArrowWriter):
    """``df.writeStream``: exactly once by query and batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query, batch = query_and_batch(TaskContext.get())
        return self._write(iterator, sink_name(query), batch)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        self._commit(messages, batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        for message in messages:
            if isinstance(message, WrittenRows):
                self._abort(message.sink, batchId, messages)
                return
