"""Child processes to measure: ready when their ready file is there, killed at the end in any case."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

_SECONDS_MAX = 60.0
_POLL_S = 0.001
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_QUIVER = "from quiver.cli.main import main; main()"
_TICKS = os.sysconf("SC_CLK_TCK")


class Child(msgspec.Struct, frozen=True):
    """A child process that is ready."""

    pid: int
    ready: dict[str, Any]
    start_seconds: float
    """From its start until it was ready."""

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.ready["native"].rpartition(":")
        return host, int(port)

    @property
    def http_address(self) -> tuple[str, int]:
        host, _, port = self.ready["http"].rpartition(":")
        return host, int(port)

    @property
    def url(self) -> str:
        return f"quiver://{self.ready['native']}"

    def memory_mb(self, kind: str) -> float:
        """Its memory by the kernel's account: ``VmRSS``, ``RssAnon`` or ``RssFile``."""
        with open(f"/proc/{self.pid}/status") as status:
            for line in status:
                name, _, value = line.partition(":")
                if name == kind:
                    return int(value.split()[0]) * 1024 / 1e6
        raise KeyError(kind)

    def cpu_seconds(self) -> float:
        """The time that it has spent on cores, its own and the kernel's."""
        return _cpu_seconds(self.pid)

    def family_cpu_seconds(self) -> float:
        """The same, with the processes that it has started."""
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as children:
            pids = [self.pid, *map(int, children.read().split())]
        return sum(map(_cpu_seconds, pids))


@contextmanager
def served(folder: str, *settings: str) -> Iterator[Child]:
    """``quiver serve`` with its data in ``folder``, and default settings but for these flags."""
    ready_file = os.path.abspath(f"{folder}/node.json")
    with suppress(FileNotFoundError):
        os.unlink(ready_file)  # of an earlier life
    addresses = tuple(
        part
        for flag in ("--native", "--http")
        if flag not in settings
        for part in (flag, "127.0.0.1:0")
    )
    flags = ("--data", f"{folder}/data", *addresses, "--ready-file", ready_file, *settings)
    with started([sys.executable, "-c", _QUIVER, "serve", *flags], ready_file) as child:
        yield child


@contextmanager
def started(command: Sequence[str], ready_file: str) -> Iterator[Child]:
    """Run a command that writes ``ready_file``, JSON with its address, once it is ready."""
    began = time.perf_counter()
    with running(command, f"{ready_file}.log") as process:
        deadline = began + _SECONDS_MAX
        while not os.path.exists(ready_file):
            assert process.poll() is None, f"{command} ended: {_text_of(f'{ready_file}.log')}"
            assert time.perf_counter() < deadline, f"{command} is not ready"
            time.sleep(_POLL_S)
        seconds = time.perf_counter() - began
        yield Child(process.pid, json.loads(_text_of(ready_file)), seconds)


@contextmanager
def running(
    command: Sequence[str], log: str, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, and also if this process dies."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUIVER_")}
    environment |= variables or {}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, no lock
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(_SECONDS_MAX)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _text_of(path: str) -> str:
    with open(path) as file:
        return file.read()
