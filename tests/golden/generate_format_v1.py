"""Writes the folder ``format-v1``: ``python -m tests.golden.generate_format_v1``.

It was run once, when format version 1 was new. The folder is never written again: it is what
installed logs look like, and every later version has to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from quiver.log.disk.real_disk import RealDisk
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.batch import UnstoredBatch
from quiver.model.envelope import ProducerStamp, seal_batch
from quiver.model.ids import LeaderEpoch, ProducerEpoch, ProducerId, Sequence
from quiver.model.schema import COLUMN_BIT, schema_of
from tests.golden.content_v1 import BATCHES, Written
from tests.unit.log.small_logs import SetClock

FOLDER = Path(__file__).parent / "format-v1"
SETTINGS = LogSettings(segment_age_s=3600, index_interval_bytes=512)


def sealed(written: Written) -> UnstoredBatch:
    mask = sum(COLUMN_BIT[name] for name in written.columns)
    batch = pa.RecordBatch.from_pydict(written.columns, schema=schema_of(mask))
    options = pa.ipc.IpcWriteOptions(compression=written.compression)
    producer_id, epoch, sequence = written.producer
    stamp = ProducerStamp(ProducerId(producer_id), ProducerEpoch(epoch), Sequence(sequence))
    return seal_batch(serialized(batch, options), written.messages, mask, stamp)


def serialized(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> bytes:
    """The batch as one Arrow IPC message: what follows the schema in a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return bytes(reader.read_next_message().serialize())


def main() -> None:
    if FOLDER.exists():
        sys.exit(f"{FOLDER} is there: it is never written again")
    clock = SetClock()
    log = SegmentedLog(str(FOLDER), RealDisk(), clock, SETTINGS)
    for written in BATCHES:
        clock.now_us = written.append_time
        log.append([sealed(written)], LeaderEpoch(written.epoch))
    log.close()


if __name__ == "__main__":
    main()
