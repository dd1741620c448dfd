"""The supervisor with processes that do next to nothing: started again, and stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SECONDS_MAX = 60.0
LONG_S = 50.0
PROGRAM = """
import os, signal, sys, time
from quiver.cli.serve.supervisor import Supervisor

mode = sys.argv[1]

def said(line):
    os.write(1, f"{line}\\n".encode())  # whole: processes share the file

def work(number, tell_ready):
    said(f"start {number} {os.getpid()}")
    if mode == "fails" and number == 1:
        return 7
    tell_ready()
    if mode.startswith("deaf"):
        signal.signal(signal.SIGTERM, lambda *_: said("asked"))
        said(f"deaf {number}")
    while True:
        time.sleep(60)

stop_s_max = 0.5 if mode == "deaf" else float(sys.argv[2])
code = Supervisor(2, work, on_ready=lambda: said("ready"), stop_s_max=stop_s_max).run()
said(f"code {code}")
sys.exit(code)
"""


class Supervised:
    def __init__(self, mode: str, folder: Path) -> None:
        self._output = folder / "output"
        with self._output.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, mode, str(LONG_S)], stdout=output
            )

    @property
    def lines(self) -> list[str]:
        return self._output.read_text().splitlines()

    @property
    def pids(self) -> list[int]:
        return [int(line.split()[2]) for line in self._starts]

    @property
    def _starts(self) -> list[str]:
        return [line for line in self.lines if line.startswith("start")]

    def pid_of(self, number: int) -> int:
        """The process that was started last under a number: they begin in any order."""
        return next(
            int(line.split()[2])
            for line in reversed(self._starts)
            if line.split()[1] == str(number)
        )

    def wait_for(self, line: str, times: int = 1) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while sum(one.startswith(line) for one in self.lines) < times:
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.005)


@contextmanager
def supervised(mode: str, folder: Path) -> Iterator[Supervised]:
    one = Supervised(mode, folder)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait(SECONDS_MAX)


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_stops_all_and_ends_well(tmp_path: Path, how: signal.Signals) -> None:
    with supervised("works", tmp_path) as one:
        one.wait_for("ready")
        one.process.send_signal(how)
        assert one.process.wait(SECONDS_MAX) == 0
        assert not any(map(is_running, one.pids))


def test_a_process_that_ends_is_started_again_under_its_number(tmp_path: Path) -> None:
    with supervised("works", tmp_path) as one:
        one.wait_for("ready")
        other = one.pid_of(0)
        os.kill(one.pid_of(1), signal.SIGKILL)
        one.wait_for("start 1", times=2)
        assert [line.split()[1] for line in one.lines if line.startswith("start")].count("1") == 2
        assert one.lines.count("ready") == 1
        assert is_running(other)


def test_a_process_that_fails_before_all_were_ready_ends_all_with_its_code(tmp_path: Path) -> None:
    with supervised("fails", tmp_path) as one:
        assert one.process.wait(SECONDS_MAX) == 7
        assert "ready" not in one.lines
        assert not any(map(is_running, one.pids))


def test_one_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    with supervised("deaf", tmp_path) as one:
        one.wait_for("deaf", times=2)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(SECONDS_MAX) == 1
        assert not any(map(is_running, one.pids))


def test_asked_twice_it_kills_at_once(tmp_path: Path) -> None:
    with supervised("deaf for long", tmp_path) as one:
        one.wait_for("deaf", times=2)
        one.process.send_signal(signal.SIGTERM)
        one.wait_for("asked")
        assert all(map(is_running, one.pids))
        began = time.monotonic()
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(SECONDS_MAX) == 1
        assert time.monotonic() - began < LONG_S


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends them")
def test_killed_it_takes_its_processes_along(tmp_path: Path) -> None:
    with supervised("works", tmp_path) as one:
        one.wait_for("ready")
        one.process.kill()
        one.process.wait(SECONDS_MAX)
        deadline = time.monotonic() + SECONDS_MAX
        while any(map(is_running, one.pids)):
            assert time.monotonic() < deadline
            time.sleep(0.005)
