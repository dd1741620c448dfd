"""``quiver`` as child processes: a node that is served, and commands that are run against it.

A node is ready when its ready file is there; nothing waits without a bound, and whatever is still
running at the end is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from quiver.cli import main
from quiver.cli.support.exit_codes import run
from tests.ports import free_port

app = typer.main.get_command(main.app)
"""The command line, put together once: that is most of what a command costs."""
_SECONDS_MAX = 60.0
_PROGRAM = "from quiver.cli.main import main; main()"
_UNSYNCED = "import os; os.fsync = os.fdatasync = lambda descriptor: None; os.RWF_DSYNC = 0; "


def command(*arguments: str, synced: bool = True) -> list[str]:
    """How to start ``quiver`` as a child, with this interpreter, and perhaps without any fsync."""
    return [sys.executable, "-c", _PROGRAM if synced else _UNSYNCED + _PROGRAM, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without anything of Quiver's, and with ``variables``.

    Nor does it say how large a terminal is: whoever has one asks it.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("QUIVER_") and name not in ("COLUMNS", "LINES")
    }
    return {**kept, **variables}


class Served:
    """A node in a child process.

    Alerts that exist from the start are off: what fires, and so what topics and log there are, would
    depend on how long a test takes and on the machine's disk.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        data: Path | None = None,
        launcher: Sequence[str] = (),
        synced: bool = True,
        **variables: str,
    ) -> None:
        """``data`` is in ``folder`` unless it is given; ``launcher`` comes before the command."""
        folder.mkdir(parents=True, exist_ok=True)
        self._ready_file = folder / "ready.json"
        self._ready_file.unlink(missing_ok=True)  # of a node that was killed
        self._output = (folder / "stdout").open("w+")
        self._log = (folder / "stderr").open("w+")
        self.data = data or folder / "data"
        address = [
            part
            for flag in ("--native", "--http")
            if flag not in flags
            for part in (flag, "127.0.0.1:0")
        ]
        self._process = subprocess.Popen(
            [
                *launcher,
                *command("serve", "--data", str(self.data), *address, synced=synced),
                *("--ready-file", str(self._ready_file), *flags),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._log,
            env=environment(**{"QUIVER_ALERTS_DEFAULTS": "false"} | variables),
        )
        self.ready: dict[str, Any] = {}

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _SECONDS_MAX
        while not self._ready_file.exists():
            ended = self._process.poll()
            assert ended is None, f"the node ended with {ended}: {self.log}"
            assert time.monotonic() < deadline, f"the node is not ready: {self.log}"
            time.sleep(0.01)
        self.ready = json.loads(self._ready_file.read_text())

    @property
    def url(self) -> str:
        return f"quiver://{self.ready['native']}"

    @property
    def http(self) -> str:
        return f"http://{self.ready['http']}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return Path(self._output.name).read_text()

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    @property
    def has_ready_file(self) -> bool:
        return self._ready_file.exists()

    def wait(self) -> int:
        return self._process.wait(_SECONDS_MAX)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; its exit code."""
        self._process.send_signal(how)
        return self.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self.wait()
        self._output.close()
        self._log.close()


@contextmanager
def served(folder: Path, *flags: str, **variables: str) -> Iterator[Served]:
    """A node that is ready, and gone afterwards."""
    node = Served(folder, *flags, **variables)
    try:
        node.wait_ready()
        yield node
    finally:
        node.close()


class Run(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Commands:
    """Runs commands against a node, inside this process, where they cost no start-up."""

    def __init__(self, url: str, capture: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capture = capture

    def __call__(self, *arguments: str, url: str | None = None) -> Run:
        self._capture.readouterr()
        code = run(app, ["--url", url or self.url, *arguments])
        told = self._capture.readouterr()
        return Run(code, told.out, told.err)

    def start(self, *arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
        """The command as a child process."""
        return subprocess.Popen(command("--url", self.url, *arguments), env=environment(), **pipes)


def unused_address() -> str:
    """An address at which nobody listens."""
    return f"127.0.0.1:{free_port()}"


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds, within the bound."""
    deadline = time.monotonic() + _SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"not within {_SECONDS_MAX:g} s: {what}"
        time.sleep(0.01)
