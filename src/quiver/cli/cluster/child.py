"""One process of a cluster on this machine: started, watched, and stopped within a bound.

On Linux the kernel kills it when the process that started it ends, however that ends. It is in a
session of its own, so that Ctrl-C reaches only the one that stops everything in its order.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 4096


class Child:
    def __init__(self, name: str, command: Sequence[str], log: str) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Run it; its output goes to its log."""
        with self._new_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_dying_with(os.getpid()),
            )

    def _new_log(self) -> BinaryIO:
        """An empty one; that of the time before is kept beside it."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.log, f"{self.log}.1")
        return open(self.log, "wb")

    async def ended(self) -> int:
        """Wait until it ends; how it did, negative for a signal."""
        assert self._process is not None, "it was started"
        return await self._process.wait()

    async def stop(self, within_s: float) -> None:
        """Ask it to end, and end it if it does not."""
        if not self.is_running:
            return
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.ended(), within_s)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self.ended()

    def last_line(self) -> str:
        """The last thing it said."""
        with open(self.log, "rb") as log:
            log.seek(max(0, os.path.getsize(self.log) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was started"
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def shown_end(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}"


def _dying_with(parent: int) -> Callable[[], None] | None:
    """What a child does before it becomes another program; prepared here, as little is safe there."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the parent ended before this was asked for

    return die_with_parent
