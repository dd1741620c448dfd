"""Tests that interrupt a child work in every run, however the run was started."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.paths import REPOSITORY

pytestmark = pytest.mark.process

CHILD = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
RUN = f"""
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it starts with &
from tests.interrupts import restore_interrupts
restore_interrupts()
child = subprocess.run([sys.executable, "-c", {CHILD!r}], stderr=subprocess.DEVNULL)
sys.exit(-child.returncode)
"""


def test_a_child_of_a_run_in_the_background_can_be_interrupted() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], cwd=REPOSITORY, check=False)
    assert done.returncode == signal.SIGINT
