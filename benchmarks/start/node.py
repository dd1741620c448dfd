"""How long a node takes to start, and what it needs when nobody asks it for anything."""

from __future__ import annotations

import statistics
import time

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import served
from benchmarks.harness.row import Row, at_most


def start_and_idle(bench: Bench) -> list[Row]:
    starts, memory = [], []
    for _ in range(bench.pick(5, 1)):
        with bench.folder() as folder, served(folder) as node:
            starts.append(node.start_seconds)
            time.sleep(bench.pick(1, 0))
            memory.append(node.memory_mb("VmRSS"))
    return [
        Row(
            name="start of a node, until it is ready",
            value=statistics.median(starts),
            unit="s",
            target=at_most(0.8),
            note=f"{min(starts):.2f} s to {max(starts):.2f} s; empty folder",
        ),
        Row(
            name="memory of an idle node",
            value=statistics.median(memory),
            unit="MB",
            target=at_most(100),
            note="resident, libraries included",
        ),
    ]
