"""A pipeline from the command line, in a process and with a JVM of its own, that is told to stop."""

from __future__ import annotations

import signal
import subprocess
import time

from tests.serving import command, environment
from tests.spark.killing import JVM
from tests.spark.test_pipelines import orders, rows_of


def test_ctrl_c_ends_a_pipeline_cleanly(client, node, topic, tmp_path) -> None:
    client.publish_many(topic, orders(range(20)))
    to, told = tmp_path / "lake", tmp_path / "stderr"
    with told.open("w") as output:
        child = subprocess.Popen(
            command("--url", node.url, "pipeline", "run", "archive", topic, "--to", str(to)),
            env=environment(JAVA_TOOL_OPTIONS=JVM),
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    try:
        deadline = time.monotonic() + 400
        while "20 rows, " not in told.read_text():
            assert child.poll() is None, told.read_text()
            assert time.monotonic() < deadline, told.read_text()
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        said, _ = child.communicate(timeout=120)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, told.read_text()
    assert said == f"20 messages archived in {to}\n"
    assert len(rows_of("parquet", to)) == 20
    noise = [
        word for word in ("Traceback", " WARN ", "log4j", "log level") if word in told.read_text()
    ]
    assert noise == [], told.read_text()
