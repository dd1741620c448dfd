"""How long the command line takes to show its help."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row, at_most

_QUIVER = "from quiver.cli.main import main; main()"


def show_help(bench: Bench) -> list[Row]:
    help_s = [_seconds(_QUIVER, "--help") for _ in range(bench.pick(11, 1))]
    python_s = [_seconds("pass") for _ in range(bench.pick(11, 1))]
    return [
        Row(
            name="quiver --help",
            value=statistics.median(help_s),
            unit="s",
            yardstick=statistics.median(python_s),
            yardstick_name="Python alone",
            target=at_most(0.25),
            note=f"from its start to its end, {min(help_s):.3f} s to {max(help_s):.3f} s",
        )
    ]


def _seconds(program: str, *arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=60,
    )
    return time.perf_counter() - began
