"""The run that a benchmark is part of: how long it may be, and where its files go."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from benchmarks.harness.machine import Machine

SCRATCH = ".bench"
"""In the current folder, hence on a real disk: the folder for temporary files may be in memory."""


class Bench(msgspec.Struct, frozen=True):
    machine: Machine
    quick: bool = False
    """Only see that everything runs; the numbers mean nothing."""

    def pick(self, full: int, quick: int) -> int:
        """A count for a full run, or for a quick one."""
        return quick if self.quick else full

    @contextmanager
    def folder(self) -> Iterator[str]:
        """An empty folder, removed at the end."""
        with scratch_folder() as folder:
            yield folder


@contextmanager
def scratch_folder() -> Iterator[str]:
    os.makedirs(SCRATCH, exist_ok=True)
    folder = tempfile.mkdtemp(dir=SCRATCH)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, onerror=_unless_gone)
        with suppress(OSError):  # another run may have its folder there
            os.rmdir(SCRATCH)


def _unless_gone(
    _: object, __: str, failure: tuple[type[BaseException], BaseException, object]
) -> None:
    """The ready file of a killed node is removed by its own guard, perhaps at this moment."""
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]
