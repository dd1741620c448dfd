"""A driver killed with SIGKILL and restarted from its checkpoint: source and sink are exactly once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quiver.client import OutgoingMessage
from tests.serving import environment

PROGRAM = "import sys; from tests.spark.killing import main; main(*sys.argv[1:])"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("point", ["reading", "written", "committed"])
def test_every_message_is_copied_once_through_sigkill(
    client, node, topic, stream, run_into, tmp_path, point
) -> None:
    copy = f"{topic}-copy"
    client.create_topic(copy, partitions=2)
    client.publish_many(
        topic, [OutgoingMessage(payload=str(n), key=f"k{n % 7}") for n in range(200)]
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", PROGRAM),
            *(node.url, topic, copy, str(tmp_path / "checkpoint")),
        ],
        env=environment(
            KILL_AT=point,
            KILL_PID=str(tmp_path / "pid"),
            PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode != 0, "the driver was not killed"
    before = [int(one.payload) for one in client.read(copy).messages()]
    assert len(before) == len(set(before)), "something was published twice"
    # A batch has 100 messages, more or less: its partitions have theirs in twos.
    if point == "committed":
        assert 190 <= len(before) <= 200
    else:
        assert 0 < len(before) <= 110, "rows of a batch that did not end were published"
    run_into(stream(topic, maxOffsetsPerTrigger=100).select("key", "value"), copy)
    after = [int(one.payload) for one in client.read(copy).messages()]
    assert sorted(after) == list(range(200)), done.stderr[-2000:]
