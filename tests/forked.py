"""Processes that are forked from one that has loaded a node already: a start costs next to nothing.

They are real processes, and killing one is a real end. All of a run's share one server, which is
started with the first of them.
"""

from __future__ import annotations

import os
import sys
from multiprocessing import get_context

processes = get_context("forkserver")
processes.set_forkserver_preload(
    ["quiver.edge.http.app", "tests.integration.client_node", "tests.integration.cluster.nodes"]
)


def write_output_to(log: str) -> None:
    """In such a process: standard output and error go to this file, and not to the first test's."""
    descriptor = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
