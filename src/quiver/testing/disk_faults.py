"""When an operation of the simulated disk goes wrong, and how far it gets before it does.

Two things interrupt an operation: a fault that a test asked for, which is an ``OSError``, and a
crash at a given operation, which is ``SimulatedCrash`` and leaves the disk without power.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import Literal

Operation = Literal[
    "append",
    "create",
    "make_folder",
    "overwrite",
    "remove",
    "rename",
    "sync",
    "sync_folder",
    "truncate",
    "exists",
    "free_bytes",
    "list_folder",
    "lock",
    "map",
    "open",
    "read",
    "size",
]

CHANGES: frozenset[Operation] = frozenset(
    (
        "append",
        "create",
        "make_folder",
        "overwrite",
        "remove",
        "rename",
        "sync",
        "sync_folder",
        "truncate",
    )
)
_PARTIAL: frozenset[Operation] = frozenset(("append", "overwrite"))


class SimulatedCrash(BaseException):
    """The power went out: no handler of errors is to go on. ``SimulatedDisk.crash`` restores it."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """Makes matching operations fail; ``hits`` counts those that did.

    ``path`` is a shell pattern, in which ``*`` also matches ``/``. Of the matching operations the
    first ``after`` succeed, the next ``times`` fail (``None``: all of them).
    """

    operation: Operation
    error: int
    path: str | None = None
    times: int | None = 1
    after: int = 0
    partial: int | None = None
    hits: int = 0

    def strikes(self, operation: Operation, path: str) -> bool:
        if operation != self.operation:
            return False
        if self.path is not None and not fnmatchcase(path, self.path):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.times is not None and self.hits >= self.times:
            return False
        self.hits += 1
        return True


class Hazards:
    """Counts the operations and interrupts those that are to go wrong.

    Operations are done one at a time, whichever threads they come from.
    """

    def __init__(self, rng: Random) -> None:
        self.operation_count = 0
        self.crash_at: int | None = None
        self.faults: list[Fault] = []
        self.lock = threading.RLock()
        self._rng = rng
        self._powered = True

    def restore_power(self) -> None:
        self._powered = True
        self.crash_at = None

    @contextmanager
    def during(self, operation: Operation, path: str, amount: int = 1) -> Iterator[int]:
        """Around an operation: gives how much of ``amount`` it gets done before it goes wrong.

        Most operations are done or not, whence the amount of 1; of a write it is the bytes.
        """
        with self.lock:
            interruption = self._interruption(operation, path, amount)
            if interruption is None:
                yield amount
                return
            error, done = interruption
            if not done:
                raise error
            try:
                yield done
            finally:
                raise error

    def _interruption(
        self, operation: Operation, path: str, amount: int
    ) -> tuple[BaseException, int] | None:
        if not self._powered:
            raise SimulatedCrash(f"there is no power for {operation} {path}")
        if operation in CHANGES:
            self.operation_count += 1
            if self.operation_count == self.crash_at:
                self._powered = False
                crash = SimulatedCrash(f"operation {self.crash_at}: {operation} {path}")
                return crash, self._rng.choice((0, amount, self._rng.randint(0, amount)))
        for fault in self.faults:
            if fault.strikes(operation, path):
                error = OSError(fault.error, os.strerror(fault.error), path)
                return error, self._written(fault, amount) if operation in _PARTIAL else 0
        return None

    def _written(self, fault: Fault, amount: int) -> int:
        if fault.partial is None:
            return self._rng.randint(0, amount)
        return min(fault.partial, amount)
