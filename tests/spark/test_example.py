"""The example of stream processing, run as its reader runs it."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.serving import environment
from tests.spark.test_driver_killed import ROOT


def test_the_example_joins_orders_with_their_payments(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "stream-processing" / "run.py")],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *paid, summary = done.stdout.splitlines()
    assert [json.loads(line) for line in paid] == [
        {"order": number, "customer": f"c-{number % 3}", "amount": 10.0 + number}
        for number in range(0, 10, 2)
    ]
    assert summary == "5 of 10 orders are paid"
