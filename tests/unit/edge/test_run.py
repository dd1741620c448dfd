"""A node as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import asyncio, gc, os, signal, sys
from quiver.config import Address, NodeConfig
from quiver.edge.run import run_node

made = []

def on_ready(*_):
    made.extend([] for _ in range(100_000))
    os.kill(os.getpid(), signal.SIGTERM)

config = NodeConfig(data=sys.argv[1], native=Address("127.0.0.1", 0), http=None)
asyncio.run(run_node(config, on_ready))
print(len(gc.get_objects()))
"""


@pytest.mark.process
def test_a_process_that_ends_does_not_look_for_garbage_among_what_its_node_had(
    tmp_path: Path,
) -> None:
    """With 2,000 used queues this took four fifths of the time of a stop."""
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "data")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(ended.stdout.splitlines()[-1]) < 10_000, "the collector looks at none of them"
