"""A Spark session with the settings for Quiver's pipelines.

It is local by default, quiet, in UTC, and fast for small micro-batches. Given settings override these.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from quiver.errors import InvalidSetting
from quiver.spark.source import PUSHDOWN, register

JAVA_LEAST = 17
_JVM_OPTIONS = "spark.driver.extraJavaOptions"
_HERE = os.path.dirname(os.path.abspath(__file__))
INTERPRETER = os.path.join(_HERE, "python")
"""Of Spark's Python processes on this machine; ``SPARK_QUIVER_PYTHON`` is what it runs."""
_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    PUSHDOWN: "true",
}
"""With the two about sockets and checkpoints a small micro-batch takes a third of the time. Record
batches of a thousand messages stay in the processor's cache on their way to a sink; Spark asks for the
size of a batch at each of its rows, which takes the longer the more rows there are, if lists are null."""


def session(
    name: str, *, master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session in which ``format("quiver")`` is known."""
    require_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    _choose_interpreter(master)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in _quiet({**SETTINGS, **(settings or {})}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def _quiet(settings: dict[str, str]) -> dict[str, str]:
    """The same with Spark's logging set up, unless there is a folder of settings for that."""
    if "SPARK_CONF_DIR" in os.environ or "SPARK_HOME" in os.environ:
        return settings
    logging = f"-Dlog4j2.configurationFile=file:{_HERE}/log4j2.properties"
    options = settings.get(_JVM_OPTIONS)
    return {**settings, _JVM_OPTIONS: logging if options is None else f"{logging} {options}"}


def _choose_interpreter(master: str) -> None:
    """Have Spark's Python processes run what this one runs, by a short way where that is known."""
    os.environ.setdefault("SPARK_QUIVER_PYTHON", sys.executable)
    is_ours = master.startswith("local") and "SPARK_HOME" not in os.environ
    quick = is_ours and os.access(INTERPRETER, os.X_OK)
    if os.environ.get("PYSPARK_PYTHON", INTERPRETER) == INTERPRETER:  # nobody has said another
        os.environ["PYSPARK_PYTHON"] = INTERPRETER if quick else sys.executable


def require_java() -> None:
    """``InvalidSetting`` if there is no Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    hint = f"Spark needs Java {JAVA_LEAST} or newer: install openjdk-{JAVA_LEAST}-jre-headless"
    if java is None:
        raise InvalidSetting(f"java is not on the PATH. {hint}, or set JAVA_HOME")
    try:
        output = subprocess.run(  # noqa: S603 - the java that Spark itself would start
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidSetting(f"{java} does not run: {error}. {hint}") from error
    version = output.partition('"')[2].partition('"')[0].split(".")[0]
    if version.isdigit() and int(version) < JAVA_LEAST:
        raise InvalidSetting(f"{java} is Java {version}. {hint}, or set JAVA_HOME")
