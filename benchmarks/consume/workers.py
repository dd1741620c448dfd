"""Several workers on one queue, each in its own process, against one of them alone."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier

from benchmarks.consume.quiver_queue import QuiverQueue, unsettled
from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.rounds import compare
from benchmarks.harness.row import Row, ratio_at_least
from quiver import Client

_WORKERS = 4
_SECONDS_MAX = 3.0
_STARTING_S_MAX = 60.0
_POLL_S = 0.01


def share_a_queue(bench: Bench) -> list[Row]:
    messages = bench.pick(150_000, 500)
    names = iter(range(1_000))

    def rate(node: Child, workers: int) -> float:
        queue = QuiverQueue(node, f"shared-{next(names)}")
        queue.create()
        queue.fill(messages)
        return _rate(queue, messages, workers)

    with bench.folder() as folder, served(folder) as node:
        compared = compare(bench.pick(3, 1), lambda: rate(node, _WORKERS), lambda: rate(node, 1))
    return [
        Row(
            name=f"consume and ack 1 KB one by one, {_WORKERS} workers, in all",
            value=compared.value,
            unit="msg/s",
            yardstick=compared.yardstick,
            yardstick_name="one worker",
            ratio=compared.ratio,
            target=ratio_at_least(1.0),
            note="each a process with a blocking client, on one queue; fsync; until all acks are "
            f"stored, for up to {_SECONDS_MAX:g} s",
        )
    ]


def _rate(queue: QuiverQueue, messages: int, workers: int) -> float:
    """Acks that were stored in a second."""
    with Client(queue.node.url) as client, _working(queue, workers):
        began = time.perf_counter()
        left, seconds = messages, 0.0
        while left and seconds < _SECONDS_MAX:
            time.sleep(_POLL_S)
            left = unsettled(client, queue.name)
            seconds = time.perf_counter() - began
        return (messages - left) / seconds


@contextmanager
def _working(queue: QuiverQueue, workers: int) -> Iterator[None]:
    """Workers that begin now; they are killed at the end, wherever they are."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(workers + 1)
    processes = [
        context.Process(target=_work, args=(queue, ready), daemon=True) for _ in range(workers)
    ]
    try:
        for process in processes:
            process.start()
        ready.wait(_STARTING_S_MAX)
        yield
    finally:
        for process in processes:
            process.kill()
            process.join(_STARTING_S_MAX)


def _work(queue: QuiverQueue, ready: Barrier) -> None:
    ready.wait(_STARTING_S_MAX)
    until = time.monotonic() + 2 * _SECONDS_MAX
    queue.consume(lambda _: time.monotonic() > until)
