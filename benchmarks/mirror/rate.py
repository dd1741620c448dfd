"""A mirror that is behind, beside one reader of the same topic: rate, and the CPU of both nodes."""

from __future__ import annotations

import os
import random
import statistics
import time

import msgspec

from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row, at_most, ratio_at_least
from benchmarks.mirror.stage import MESSAGES, Stage, two_nodes, wait
from quiver import MirrorCompression

_READER = "one reader of the source, as record batches"
_FILE = "a bare file, written and synced 16 MB at a time"
_PIECE = 16 << 20
_JSON = "lines"
_TOPICS = {
    "orders": (MirrorCompression.AUTO,),
    _JSON: (MirrorCompression.AUTO, MirrorCompression.ZSTD),
}
"""How each topic is copied: random bytes, and JSON that shrinks to a fifth."""


class _Copied(msgspec.Struct, frozen=True):
    rate: float
    source_us: float
    """CPU of the node for each message."""
    target_us: float
    ratio: float
    """To a reader in the same round."""
    read_rate: float
    write_rate: float
    """What the disk takes of such messages in the same round: it is shared, and a reader needs none."""


def copy_a_topic(bench: Bench) -> list[Row]:
    batches, rounds = bench.pick(6_000, 64), bench.pick(7, 1)
    rows: list[Row] = []
    with two_nodes(bench) as stage, bench.folder() as folder:
        for topic, compressions in _TOPICS.items():
            end = stage.publish(batches, topic, is_text=topic == _JSON)
            _read(stage, topic, end)
            for compression in compressions:
                copied = [
                    _round(stage, topic, compression, turn, end, folder) for turn in range(rounds)
                ]
                rows += _rows(
                    topic, compression, copied, f"{batches * MESSAGES:,} messages of 1 KB"
                )
    return rows


def _rows(topic: str, compression: str, copied: list[_Copied], of: str) -> list[Row]:
    """The bounds hold for the default: over a near link, where nothing is compressed."""
    what = " JSON" if topic == _JSON else ""
    is_default = compression == MirrorCompression.AUTO
    name = f"a mirror copies{what}{'' if is_default else f', {compression}'}"
    note = (
        f"{of}{what and f' of{what}'} in batches of {MESSAGES}, one partition, synced at the copy"
    )
    return [
        Row(
            name=name,
            value=statistics.median(one.rate for one in copied),
            unit="msg/s",
            yardstick=statistics.median(one.read_rate for one in copied),
            yardstick_name=_READER,
            ratio=statistics.median(one.ratio for one in copied),
            target=ratio_at_least(0.8) if is_default else None,
            note=f"{note}; both nodes and the reader share the cores",
        ),
        Row(
            name=name,
            value=statistics.median(one.rate for one in copied),
            unit="msg/s",
            yardstick=statistics.median(one.write_rate for one in copied),
            yardstick_name=_FILE,
            ratio=statistics.median(one.rate / one.write_rate for one in copied),
        ),
        Row(
            name=f"{name}: CPU of the source for each message",
            value=statistics.median(one.source_us for one in copied),
            unit="µs",
            target=at_most(1.0) if is_default else None,
        ),
        Row(
            name=f"{name}: CPU of the target for each message",
            value=statistics.median(one.target_us for one in copied),
            unit="µs",
            target=at_most(2.5) if is_default else None,
        ),
    ]


def _round(stage: Stage, topic: str, compression: str, turn: int, end: int, folder: str) -> _Copied:
    """Each of the two is first in every other round."""
    name = f"{compression}-{turn}"
    read_rate = _read(stage, topic, end) if turn % 2 else 0.0
    copied = _copy(stage, topic, name, compression, end)
    read_rate = read_rate or _read(stage, topic, end)
    return msgspec.structs.replace(
        copied, ratio=copied.rate / read_rate, read_rate=read_rate, write_rate=_write(folder, end)
    )


def _write(folder: str, messages: int) -> float:
    """Messages in a second that fit into a file that is synced as often as a mirror syncs."""
    path, data = f"{folder}/bare", memoryview(random.Random(0).randbytes(_PIECE))
    pieces = max(1, messages * 1_000 // _PIECE)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        began = time.perf_counter()
        for _ in range(pieces):
            os.write(descriptor, data)
            os.fdatasync(descriptor)
        return pieces * _PIECE / 1_000 / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        os.unlink(path)


def _read(stage: Stage, topic: str, end: int) -> float:
    began = time.perf_counter()
    with stage.there.read(topic, start="earliest", end="latest") as reader:
        rows = sum(batch.num_rows for batch in reader)
    assert rows == end
    return rows / (time.perf_counter() - began)


def _copy(stage: Stage, topic: str, name: str, compression: str, end: int) -> _Copied:
    """From the first messages on: a mirror that is new looks for its topics first."""
    copy = f"{name}.{topic}"
    stage.here.create_mirror(
        name, stage.source.url, topic, rename=f"{name}.{{topic}}", compression=compression
    )
    wait(lambda: stage.copied(copy) > 0)
    began, first = time.perf_counter(), stage.copied(copy)
    cpu = stage.source.cpu_seconds(), stage.target.cpu_seconds()
    wait(lambda: stage.copied(copy) == end)
    seconds = time.perf_counter() - began
    source_s = stage.source.cpu_seconds() - cpu[0]
    target_s = stage.target.cpu_seconds() - cpu[1]
    stage.here.delete_mirror(name)
    stage.here.delete_topic(copy)
    count = max(1, end - first)
    return _Copied(count / seconds, source_s / count * 1e6, target_s / count * 1e6, 0.0, 0.0, 0.0)
