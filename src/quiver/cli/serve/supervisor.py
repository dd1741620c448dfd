"""Runs several processes, starts those that end again, and stops all of them together.

Each process is a fork of this one, which has loaded the server already: it starts in a fraction of the
time, and shares that memory. This process has no event loop and no threads of its own. On Linux the
kernel kills the others when it ends, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import structlog

from quiver.cli.serve.restarts import Restarts

Work = Callable[[int, Callable[[], None]], int]
"""What the process with a number does: it says when it is ready, and returns its exit code."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1
_NEVER_S = 3600.0

logger = structlog.get_logger()


class Supervisor:
    """``run`` it once. ``on_ready`` is called when every process has been ready."""

    def __init__(
        self, count: int, work: Work, *, on_ready: Callable[[], None], stop_s_max: float
    ) -> None:
        self._count = count
        self._work = work
        self._on_ready = on_ready
        self._stop_s_max = stop_s_max
        self._restarts = Restarts()
        self._numbers: dict[int, int] = {}
        """By process id: the numbers of those that run."""
        self._due: dict[int, float] = {}
        """By number: when to start those that do not."""
        self._telling: dict[int, int] = {}
        """By pipe: the numbers of those that have not said yet that they are ready."""
        self._unready = set(range(count))
        self._is_ready = False
        self._asked = 0
        self._kill_at = _NEVER_S
        self._code = 0
        self._woken, self._wake = os.pipe()
        for one in (self._woken, self._wake):
            os.set_blocking(one, False)
        self._prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def run(self) -> int:
        """Until SIGTERM or SIGINT, or a process fails before all were ready; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_asked)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._due = dict.fromkeys(range(self._count), 0.0)
        try:
            while self._numbers or not self._is_stopping:
                self._start_due()
                self._wait()
                self._reap()
                if self._is_stopping and time.monotonic() >= self._kill_at:
                    self._signal(signal.SIGKILL)
        finally:
            self._signal(signal.SIGKILL)  # nobody is left, unless something is very wrong
        return self._code

    # ------------------------------------------------------------------ starting

    def _start_due(self) -> None:
        now = time.monotonic()
        for number in [one for one, at in self._due.items() if at <= now]:
            if not self._is_stopping:
                del self._due[number]
                self._start(number, now)

    def _start(self, number: int, now: float) -> None:
        reading, writing = os.pipe()
        # What is signalled meanwhile waits until the child knows what to do about it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._be_child(number, parent, writing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(writing)
        self._telling[reading] = number
        self._numbers[pid] = number
        self._restarts.started(number, now)

    def _be_child(self, number: int, parent: int, writing: int) -> NoReturn:
        code = 1
        try:
            if self._prctl is not None:
                self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # it ended before that was asked for
            # Ctrl-C is for the supervisor, which stops everybody.
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for one in _SIGNALS:
                signal.signal(one, signal.SIG_DFL)
            for pipe in (self._woken, self._wake, *self._telling):
                os.close(pipe)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            code = self._work(number, lambda: _tell(writing))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    # ------------------------------------------------------------------ watching

    def _wait(self) -> None:
        """Until something happens, or is due."""
        times = [self._kill_at] if self._is_stopping else list(self._due.values())
        left = min((at - time.monotonic() for at in times), default=_NEVER_S)
        readable, _, _ = select.select([self._woken, *self._telling], [], [], max(0.0, left))
        for one in readable:
            if one == self._woken:
                os.read(one, 4096)
            else:
                self._take_ready(one)

    def _take_ready(self, pipe: int) -> None:
        number = self._telling.pop(pipe)
        if os.read(pipe, 1):
            self._unready.discard(number)
        os.close(pipe)
        if not self._unready and not self._is_ready:
            self._is_ready = True
            self._on_ready()

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._numbers.pop(pid, None)
            if number is not None:
                self._ended(number, os.waitstatus_to_exitcode(status))

    def _ended(self, number: int, code: int) -> None:
        if self._is_stopping:
            self._code = self._code or (0 if code in (0, -signal.SIGTERM) else 1)
        elif not self._is_ready:
            # It has said why. Whatever it is, it would be so again.
            self._code = code if code > 0 else 1
            self._stop()
        else:
            now = time.monotonic()
            pause_s = self._restarts.pause_s(number, now)
            logger.error(
                "a process ended and is started again", process=number, code=code, in_s=pause_s
            )
            self._due[number] = now + pause_s

    # ------------------------------------------------------------------ stopping

    @property
    def _is_stopping(self) -> bool:
        return self._kill_at != _NEVER_S

    def _on_asked(self, *_: object) -> None:
        """Asked once, all are stopped in order; asked again, at once."""
        self._asked += 1
        if self._asked > 1:
            self._kill_at = time.monotonic()
        elif not self._is_stopping:
            self._stop()

    def _stop(self) -> None:
        self._kill_at = time.monotonic() + self._stop_s_max
        self._signal(signal.SIGTERM)

    def _signal(self, which: signal.Signals) -> None:
        for pid in self._numbers:
            try:
                os.kill(pid, which)
            except ProcessLookupError:
                continue


def in_child(work: Callable[[], int]) -> int:
    """The exit code of the work, done in a child: this process stays without threads, fit to be forked."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 1


def _tell(pipe: int) -> None:
    os.write(pipe, b"\0")
    os.close(pipe)
