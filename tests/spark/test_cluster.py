"""A standalone cluster: a master, two workers, a driver and the node, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from quiver.client import OutgoingMessage
from tests.serving import environment, unused_address
from tests.spark.killing import JVM
from tests.spark.test_driver_killed import PROGRAM, ROOT

_SECONDS_MAX = 120.0
DEPLOY = "org.apache.spark.deploy"
JARS = str(Path(pyspark.__file__).parent / "jars" / "*")


def variables(folder: Path) -> dict[str, str]:
    return environment(
        PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_HOME=str(Path(pyspark.__file__).parent),
        SPARK_SCALA_VERSION="2.13",
        SPARK_WORKER_DIR=str(folder / "work"),
        KILL_AT="never",
        KILL_PID=str(folder / "pid"),
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The URL of a master that has two workers of one core each."""
    host, port = unused_address().split(":")
    url, log = f"spark://{host}:{port}", tmp_path / "master.log"
    master = ("master.Master", "--host", host, "--port", port, "--webui-port", "0")
    worker = ("worker.Worker", "--host", host, "-c", "1", "-m", "640m", "--webui-port", "0", url)
    with ExitStack() as stack:
        for number, (kind, *arguments) in enumerate((master, worker, worker)):
            output = stack.enter_context(log.open("a"))
            process = subprocess.Popen(
                ["java", "-Xmx256m", *JVM.split(), "-cp", JARS, f"{DEPLOY}.{kind}", *arguments],
                env=variables(tmp_path),
                stdout=output,
                stderr=output,
            )
            stack.callback(process.wait, _SECONDS_MAX)
            stack.callback(process.kill)
            said = "I have been elected leader" if number == 0 else "Registering worker"
            _wait_for(log, said, max(1, number))
        yield url


def _wait_for(log: Path, text: str, times: int) -> None:
    deadline = time.monotonic() + _SECONDS_MAX
    while log.read_text().count(text) < times:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def test_executors_in_other_processes_read_and_write_exactly_once(
    client, node, topic, cluster, tmp_path
) -> None:
    copy = f"{topic}-copy"
    client.create_topic(copy, partitions=2)
    client.publish_many(
        topic, [OutgoingMessage(payload=str(n), key=f"k{n % 7}") for n in range(200)]
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", PROGRAM),
            *(node.url, topic, copy, str(tmp_path / "checkpoint"), cluster),
        ],
        env=variables(tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(int(one.payload) for one in client.read(copy).messages()) == list(range(200))
    executors = list((tmp_path / "work").glob("app-*/*"))
    assert len(executors) == 2, "each worker ran an executor"
