"""Child processes to be killed, many in a row, without paying for their imports each time.

``ChildServer`` is a process that has imported a function; each ``start`` forks it, and the fork
calls the function with the arguments. A child speaks in lines of text (``report``); what it said
before it was killed is never lost, because it is in the pipe once ``report`` has returned. Each line
carries the time when it was said, on the clock that all processes of the machine share.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_ROOT = str(Path(__file__).parent.parent)
_SECONDS_MAX = 60.0
_CHUNK = 1 << 16


def report(*words: object) -> None:
    """Tell the parent one line; whole or not at all, since a pipe takes short writes at once."""
    line = f"{time.monotonic_ns()} {' '.join(map(str, words))}\n".encode()
    assert len(line) < select.PIPE_BUF
    assert line.count(b"\n") == 1
    os.write(sys.__stdout__.fileno(), line)


class Report(NamedTuple):
    time_ns: int
    line: str


class Child:
    """A forked process that is running, and what it has reported so far."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        self._server = server
        self._partial = b""
        self.reports: list[Report] = []
        self.status: int | None = None
        """How it ended, as ``os.waitstatus_to_exitcode`` has it; ``None`` while it runs."""
        self._read_until(lambda: bool(self.reports), time.monotonic() + _SECONDS_MAX)
        self.pid = int(self.reports.pop(0).line.removeprefix("pid "))

    def run_for(self, seconds: float) -> None:
        """Let it run and take in its reports; returns sooner if it ends."""
        self._read_until(lambda: self.status is not None, time.monotonic() + seconds)

    def run_until(self, reports: int) -> None:
        """Let it run until it has reported so much; returns sooner if it ends or takes too long."""

        def enough() -> bool:
            return len(self.reports) >= reports or self.status is not None

        self._read_until(enough, time.monotonic() + _SECONDS_MAX)

    def run_to_some_moment(self, rng: random.Random, reports_max: int) -> None:
        """Let it run until any moment: sometimes as it begins, mostly amid its work."""
        if rng.random() < 0.2:
            self.run_for(rng.uniform(0, 0.1))
        else:
            self.run_until(rng.randrange(1, reports_max))
            self.run_for(rng.uniform(0, 0.02))

    def kill(self) -> list[Report]:
        """End it with SIGKILL if it still runs; everything it reported, once it is gone."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._read_until(lambda: self.status is not None, time.monotonic() + _SECONDS_MAX)
            assert self.status is not None, f"process {self.pid} does not end"
        return self.reports

    def _read_until(self, done: Callable[[], bool], deadline: float) -> None:
        assert self._server.stdout is not None
        descriptor = self._server.stdout.fileno()
        while not done():
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                return
            data = os.read(descriptor, _CHUNK)
            assert data, "the child server has ended"
            *lines, self._partial = (self._partial + data).split(b"\n")
            for text in lines:
                time_ns, _, line = text.decode().partition(" ")
                if line.startswith("exit "):
                    self.status = int(line.removeprefix("exit "))
                else:
                    self.reports.append(Report(int(time_ns), line))


class ChildServer:
    """Starts children that call ``target`` (``module:function``), one at a time."""

    def __init__(self, target: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.killable", target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
        )
        self._child: Child | None = None

    def start(self, **arguments: Any) -> Child:
        assert self._child is None or self._child.status is not None, "one child at a time"
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
        self._process.stdin.flush()
        self._child = Child(self._process)
        return self._child

    def close(self) -> None:
        try:
            if self._child is not None:
                self._child.kill()
        finally:
            self._process.kill()
            self._process.communicate()


def _serve(target: str) -> None:
    module, _, function = target.partition(":")
    call = getattr(importlib.import_module(module), function)
    for line in sys.stdin.buffer:
        process = os.fork()
        if process == 0:
            _run_child(call, json.loads(line))
        _, status = os.waitpid(process, 0)
        report("exit", os.waitstatus_to_exitcode(status))


def _run_child(call: Callable[..., None], arguments: dict[str, Any]) -> None:
    try:
        report("pid", os.getpid())
        call(**arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
