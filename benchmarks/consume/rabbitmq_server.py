"""RabbitMQ on this machine, if Debian's package of it and its Python client happen to be there.

It is a private process on free ports of the loopback interface, with all its files in a folder of
the benchmark. A service that the system may run is neither used nor touched.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from benchmarks.harness.child import running
from benchmarks.harness.ports import free_ports

_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""The script itself: the one on the path changes to the system's user and folder."""
_SECONDS_MAX = 60.0
_SETTINGS = """
listeners.tcp.local = 127.0.0.1:{port}
log.file = false
log.console = true
log.console.level = error
"""


def rabbitmq_is_installed() -> bool:
    return bool(
        os.access(_SERVER, os.X_OK) and shutil.which("epmd") and importlib.util.find_spec("pika")
    )


@contextmanager
def rabbitmq_server(folder: str) -> Iterator[int]:
    """A server with default settings; the port of it."""
    port, distribution_port, names_port = free_ports(3)
    data = os.path.abspath(f"{folder}/rabbitmq")
    os.mkdir(data)
    _write(f"{data}/rabbitmq.conf", _SETTINGS.format(port=port))
    _write(f"{data}/plugins", "[].")
    variables = {
        "HOME": data,
        "RABBITMQ_MNESIA_BASE": data,
        "RABBITMQ_LOG_BASE": data,
        "RABBITMQ_CONFIG_FILE": f"{data}/rabbitmq.conf",
        "RABBITMQ_CONF_ENV_FILE": f"{data}/no-variables",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{data}/plugins",
        "RABBITMQ_PID_FILE": f"{data}/pid",
        "RABBITMQ_NODENAME": f"bench-{os.getpid()}-{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names_port),
        "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server: one process to end
    }
    # The server starts a daemon that registers names unless there is one, and again if it ends.
    with (
        running(["epmd"], f"{data}/epmd.log", variables),
        running([_SERVER], f"{data}/log", variables) as process,
    ):
        deadline = time.monotonic() + _SECONDS_MAX
        while not _answers(port):
            assert process.poll() is None, f"rabbitmq-server ended: {process.returncode}"
            assert time.monotonic() < deadline, "rabbitmq-server does not answer"
            time.sleep(0.1)
        yield port


def _answers(port: int) -> bool:
    import pika

    with suppress(pika.exceptions.AMQPError, OSError):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).close()
        return True
    return False


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
