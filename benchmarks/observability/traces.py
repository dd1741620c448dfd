"""Sending messages with nothing set up for traces, and with traces that go nowhere."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.harness.bench import Bench
from benchmarks.harness.rounds import median_of
from benchmarks.harness.row import Row

_PROGRAM = """
import sys, time
if sys.argv[2] == "traced":
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
import quiver
with quiver.open(sys.argv[1]) as q:
    q.create_topic("orders", durability="os")
    with q.producer("orders") as p:
        p.send(b"first").result()
        count = int(sys.argv[3])
        began = time.perf_counter()
        for _ in range(count):
            p.send(b"payload")
        p.flush()
        print(count / (time.perf_counter() - began))
"""


def send_with_and_without_traces(bench: Bench) -> list[Row]:
    """A process each: what sets up traces does so for the whole of it."""
    count = bench.pick(100_000, 200)

    def rate(how: str) -> float:
        with bench.folder() as folder:
            done = subprocess.run(
                [sys.executable, "-c", _PROGRAM, f"{folder}/data", how, str(count)],
                capture_output=True,
                text=True,
                timeout=90,
                check=True,
            )
        return float(done.stdout.splitlines()[-1])

    rounds = bench.pick(3, 1)
    plain, traced = (
        median_of(rounds, lambda: rate("plain")),
        median_of(rounds, lambda: rate("traced")),
    )
    return [
        Row(
            name="send one by one with a span for each",
            value=traced,
            unit="msg/s",
            yardstick=plain,
            yardstick_name="no traces set up",
            ratio=traced / plain,
            note="the broker is in the same process; without a set-up not even the API is loaded, and "
            "sending takes the same steps as before there were traces",
        )
    ]
